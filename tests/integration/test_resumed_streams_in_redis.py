"""One gateway goes on with another's streams over a real broker and a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import MessageBus
from spotwise.mesh.redis.store import RedisStore
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until, until_none
from tests.unit.gateway.conftest import model_dir as model_dir
from tests.unit.gateway.conftest import text as text
from tests.unit.gateway.fake_mesh import CHAT
from tests.unit.gateway.gateways import Gateways, gateways_over
from tests.unit.gateway.keeping_mesh import Client, content

pytestmark = pytest.mark.mesh

CHATS = "/v1/chat/completions"
BODY = CHAT | {"stream": True, "max_tokens": 40, "n": 2, "logprobs": True, "return_token_ids": True, "ignore_eos": True}


@pytest.fixture
async def mesh(nats_url: str, redis_url: str, text: ChatText, model_dir: Path) -> AsyncIterator[Gateways]:
    """No gateway yet, and a worker."""
    async with AsyncExitStack() as stack:
        store = await RedisStore.connect(redis_url)
        stack.push_async_callback(store.close)

        async def new_bus() -> MessageBus:
            bus = await NatsBus.connect(nats_url, "test")
            stack.push_async_callback(bus.close)
            return bus

        yield await stack.enter_async_context(gateways_over(new_bus, store, text, model_dir))


@pytest.mark.parametrize("saves", [False, True])
async def test_a_stream_goes_on_token_for_token(mesh: Gateways, saves: bool) -> None:
    """As one stream with the same seed would have been; what was saved is not computed again; the former gateway's client is
    told, and nothing runs in the end.
    """
    first, second = await mesh.start("g0"), await mesh.start("g1")
    whole = content(await Client(first, "POST", CHATS, BODY | {"seed": 5}).events())
    client = Client(first, "POST", CHATS, BODY | {"seed": 5})
    events = [await client.event() for _ in range(30)]
    if saves:
        await mesh.generations[0].saver.save_all()
    rest = await Client(second, "POST", CHATS, BODY | {"seed": 5}, {"Last-Event-ID": events[-1].id}).events()
    assert content([*events, *rest])[:2] == whole[:2]
    await mesh.generations[0].saver.save_all()
    assert content(await client.events())[1][0]["code"] == "resumed_elsewhere"
    request_id = str(events[0].data and events[0].data["id"])
    for choice_id in (f"{request_id}#0", f"{request_id}#1"):
        assert mesh.worker.epochs[choice_id] == [1, 2]
        await until_none(partial(mesh.store.get_record, choice_id))
    await until(lambda: not mesh.worker.running)
    state = await Client(first, "GET", f"/v1/requests/{request_id}").answer()
    assert (state["state"], [choice["finish_reason"] for choice in state["choices"]]) == ("finished", ["length"] * 2)


async def test_one_key_is_one_request_at_all_gateways(mesh: Gateways) -> None:
    first, second = await mesh.start("g0"), await mesh.start("g1")
    body, key = {**BODY, "stream": False}, {"Idempotency-Key": "a"}
    answer = await Client(first, "POST", CHATS, body, key).answer()
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [40, 40]
    assert await Client(second, "POST", CHATS, body, key).answer() == answer
    refused = Client(second, "POST", CHATS, body | {"n": 1}, key)
    assert (await refused.answer())["error"]["code"] == "idempotency_mismatch"
    assert list(mesh.worker.epochs.values()) == [[1], [1]]
