"""One gateway goes on with another's streams: the gateways' own code, with a worker that draws tokens by their index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from spotwise.core.messages.mesh import LedgerEntry, TokenBatch, TokenDelta
from spotwise.core.requests.request import FinishReason
from spotwise.mesh.ports.ports import MessageBus
from spotwise.text.chat_text import ChatText
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until, until_none
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.fake_mesh import CHAT
from tests.unit.gateway.gateways import Gateways, gateways_over
from tests.unit.gateway.keeping_mesh import Client, content

CHATS = "/v1/chat/completions"
BODY = CHAT | {"stream": True, "max_tokens": 40, "n": 2, "logprobs": True, "return_token_ids": True, "ignore_eos": True}


@asynccontextmanager
async def gateways(text: ChatText, model_dir: Path) -> AsyncIterator[Gateways]:
    """In memory."""
    broker = MemoryBroker()

    async def new_bus() -> MessageBus:
        return MemoryBus(broker)

    async with gateways_over(new_bus, MemoryStore(), text, model_dir) as opened:
        yield opened


@pytest.mark.parametrize("saves", [False, True])
async def test_another_gateway_takes_a_stream_over(
    saves: bool, text: ChatText, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the tokens that were saved, which are not computed again; the former gateway's client is told, and its attempt ends.
    All is as in one stream with the same seed: text, tokens, scores.
    """
    monkeypatch.setattr("spotwise.gateway.mesh.client.SAVE_EVERY_S", 3600.0)  # only the test says when
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        whole = content(await Client(first, "POST", CHATS, BODY | {"seed": 5}).events())
        client = Client(first, "POST", CHATS, BODY | {"seed": 5})
        events = [await client.event() for _ in range(30)]
        if saves:
            await mesh.generations[0].saver.save_all()
        rest = await Client(second, "POST", CHATS, BODY | {"seed": 5}, {"Last-Event-ID": events[-1].id}).events()
        assert content([*events, *rest])[:2] == whole[:2]
        await mesh.generations[0].saver.save_all()
        told = content(await client.events())[1]
        assert told[0]["code"] == "resumed_elsewhere"
        request_id = str(events[0].data and events[0].data["id"])
        for choice_id in (f"{request_id}#0", f"{request_id}#1"):
            assert mesh.worker.epochs[choice_id] == [1, 2]
            assert (mesh.worker.drawn[choice_id].count(0) == 1) is saves
            await until_none(partial(mesh.store.get_record, choice_id))
        await until(lambda: not mesh.worker.running)


async def test_a_taken_request_stays_taken(text: ChatText, model_dir: Path) -> None:
    """The former gateway's attempt is lost, and its next one is refused by the store: it computes nothing, and says so."""
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        client = Client(first, "POST", CHATS, BODY)
        events = [await client.event() for _ in range(20)]
        other = Client(second, "POST", CHATS, BODY, {"Last-Event-ID": events[-1].id})
        await other.event()
        request_id = str(events[0].data and events[0].data["id"])
        generation = mesh.generations[0]
        for index in range(2):
            request = generation._role._requests.get(f"{request_id}#{index}")
            lost = TokenDelta(request.attempt_id, 0, None, FinishReason.ERROR, error="lost", retryable=True)
            inbox = subjects.inbox_from(MeshRole.WORKER, "g0", 1)
            await (await mesh.new_bus()).publish(inbox, encode(TokenBatch("w0", (lost,))))
        assert content(await client.events())[1][0]["code"] == "resumed_elsewhere"
        assert content(await other.events())[1] == ["[DONE]"]
        assert mesh.worker.epochs[f"{request_id}#0"] == [1, 2]


async def test_a_gateway_that_leaves_hands_its_streams_on(text: ChatText, model_dir: Path) -> None:
    """A planned end cancels what is connected; the clients go on elsewhere all the same, with what was saved at the end."""
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        whole = content(await Client(first, "POST", CHATS, BODY | {"seed": 9}).events())
        client = Client(first, "POST", CHATS, BODY | {"seed": 9})
        events = [await client.event() for _ in range(20)]
        mesh.generations[0].is_leaving = True
        client.task.cancel()
        await asyncio.gather(client.task, return_exceptions=True)
        await mesh.generations[0].saver.save_all()
        rest = await Client(second, "POST", CHATS, BODY | {"seed": 9}, {"Last-Event-ID": events[-1].id}).events()
        assert content([*events, *rest])[:2] == whole[:2]


async def test_the_same_key_at_two_gateways_is_one_request(text: ChatText, model_dir: Path) -> None:
    """The second gateway has the whole answer, from the start of the first's."""
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        key = {"Idempotency-Key": "a"}
        client = Client(first, "POST", CHATS, BODY, key)
        events = [await client.event() for _ in range(20)]
        await client.leave()
        rest = content(await Client(second, "POST", CHATS, BODY, key).events())
        assert [len(choice["token_ids"]) for _, choice in rest[0]] == [40, 40]
        so_far = content(events)[0]
        for (_, begun), (_, all_of_it) in zip(so_far, rest[0], strict=True):
            assert all_of_it["token_ids"][: len(begun["token_ids"])] == begun["token_ids"]
        assert content(await Client(first, "POST", CHATS, BODY, key).events()) == rest


async def test_an_answer_with_a_key_is_taken_over_whole(text: ChatText, model_dir: Path) -> None:
    """Without a stream: another gateway goes on from what was saved, without a word of the first one."""
    body = CHAT | {"max_tokens": 40, "seed": 3, "ignore_eos": True, "return_token_ids": True}
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        whole = await Client(first, "POST", CHATS, body).answer()
        before = len(mesh.worker.drawn)
        client = Client(first, "POST", CHATS, body, {"Idempotency-Key": "b"})
        await until(lambda: len(mesh.worker.drawn) > before and len([*mesh.worker.drawn.values()][-1]) > 10)
        await mesh.generations[0].saver.save_all()
        answer = await Client(second, "POST", CHATS, body, {"Idempotency-Key": "b"}).answer()
        assert answer["choices"] == whole["choices"]
        assert answer["usage"] == whole["usage"]
        choice_id = str(answer["id"])
        assert mesh.worker.epochs[choice_id] == [1, 2]
        assert mesh.worker.drawn[choice_id].count(0) == 1
        await mesh.generations[0].saver.save_all()
        assert (await client.answer())["error"]["code"] == "resumed_elsewhere"


async def test_of_two_connections_that_resume_at_once_one_is_told(text: ChatText, model_dir: Path) -> None:
    """At one gateway: one has the rest, the other an error that says where it is; neither hangs."""
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        whole = content(await Client(first, "POST", CHATS, BODY | {"seed": 7}).events())
        client = Client(first, "POST", CHATS, BODY | {"seed": 7})
        events = [await client.event() for _ in range(20)]
        rivals = [Client(second, "POST", CHATS, BODY | {"seed": 7}, {"Last-Event-ID": events[-1].id}) for _ in range(2)]
        rests = [await rival.events() for rival in rivals]
        told = [rest for rest in rests if content(rest)[1][0] != "[DONE]"]
        won = [rest for rest in rests if content(rest)[1] == ["[DONE]"]]
        assert [content(rest)[1][0]["code"] for rest in told] == ["resumed_elsewhere"]
        assert [content([*events, *rest])[:2] for rest in won] == [whole[:2]]
        await client.leave()


async def test_a_clients_own_id_reaches_no_others_ledger(text: ChatText, model_dir: Path) -> None:
    """A client that names its request after another's leaves that one's ledger alone; its own id leads to its request."""
    async with gateways(text, model_dir) as mesh:
        app = await mesh.start("g0")
        plain = CHAT | {"max_tokens": 2}
        theirs = str((await Client(app, "POST", CHATS, plain).answer())["id"])
        before = await mesh.store.get_ledger(theirs)
        mine = str((await Client(app, "POST", CHATS, plain, {"X-Request-Id": theirs}).answer())["id"])

        def facts(entries: list[LedgerEntry]) -> list[dict[str, object]]:
            return [dict(each.facts) for each in entries if each.stage == "received"]

        await until_none(partial(_none_received, mesh, mine))
        assert facts(await mesh.store.get_ledger(mine)) == [{"client_request_id": theirs}]
        assert facts(await mesh.store.get_ledger(theirs)) == facts(before) == []
        assert facts(await mesh.store.get_ledger(subjects.clients_name(theirs))) == [{"request_id": mine}]


async def _none_received(mesh: Gateways, request_id: str) -> bool | None:
    ledger = await mesh.store.get_ledger(request_id)
    return None if any(each.stage == "received" for each in ledger) else True
