"""What a store, a gateway and a client may lose of a kept request without harm to it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.gateway.kept_request import KeptState
from spotwise.core.messages.mesh import TokenBatch, TokenDelta
from spotwise.core.requests.request import FinishReason
from spotwise.gateway.resume.kept_forms import read_chunks
from spotwise.gateway.resume.token_saver import TokenSaver
from spotwise.mesh.ports.ports import MessageBus
from spotwise.text.chat_text import ChatText
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.fake_mesh import CHAT
from tests.unit.gateway.gateways import Gateways, gateways_over
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, content, keeping_app

CHATS = "/v1/chat/completions"
BODY = CHAT | {"stream": True, "max_tokens": 180, "return_token_ids": True, "ignore_eos": True, "seed": 9}
KEY = {"Idempotency-Key": "k"}


class LossyStore(MemoryStore):
    """May lose the tokens that it took last, as a primary's last writes are lost with it, or all that it has."""

    def lose_last_chunk(self) -> None:
        """Of the only request."""
        ((request_id, chunks),) = self._saved.items()
        chunks.pop()
        self._counts[request_id].clear()
        for chunk in chunks:
            (earlier,) = read_chunks([chunk], 1)
            self._counts[request_id][0] += len(earlier.deltas)

    def lose_all(self) -> None:
        """As one that was emptied."""
        for held in (self._kept, self._claims, self._saved, self._counts):
            held.clear()

    @property
    def kept(self) -> KeptState:
        """The only request."""
        (kept,) = self._kept.values()
        return kept


@dataclass
class LossyMesh(KeepingMesh):
    """Over a store that loses tokens."""

    store: LossyStore = field(default_factory=LossyStore)


@asynccontextmanager
async def two_gateways(text: ChatText, model_dir: Path) -> AsyncIterator[tuple[Gateways, Any, Any]]:
    broker = MemoryBroker()

    async def new_bus() -> MessageBus:
        return MemoryBus(broker)

    async with gateways_over(new_bus, LossyStore(), text, model_dir) as mesh:
        yield mesh, await mesh.start("g0"), await mesh.start("g1")


async def lose_attempt(mesh: Gateways, choice_id: str) -> None:
    """Let the first gateway's attempt end with its worker."""
    attempt_id = mesh.generations[0]._role._requests.get(choice_id).attempt_id
    lost = TokenDelta(attempt_id, 0, None, FinishReason.ERROR, error="lost", retryable=True)
    await (await mesh.new_bus()).publish(
        subjects.inbox_from(MeshRole.WORKER, "g0", 1), encode(TokenBatch("w0", (lost,)))
    )


@pytest.mark.parametrize("loss", [LossyStore.lose_last_chunk, LossyStore.lose_all])
async def test_what_the_store_loses_is_written_again(text: ChatText, loss: Any) -> None:
    """Its gateway has it until the end: who asks for the answer afterwards gets all of it."""
    mesh = LossyMesh(reply=list(range(10, 18)))
    app = keeping_app(mesh, text)
    body = CHAT | {"max_tokens": 8, "return_token_ids": True, "ignore_eos": True}
    mesh.hang_at = 3
    client = Client(app, "POST", CHATS, body, KEY)
    await mesh.hung.get()
    await mesh.saver.save_all()
    loss(mesh.store)
    mesh.go.set()
    answer = await client.answer()
    await until(lambda: bool(mesh.store._kept) and mesh.store.kept.ending is not None)
    again = Client(app, "POST", CHATS, body, KEY)
    assert await again.answer() == answer
    assert again.headers["idempotent-replayed"] == "true"
    state = await Client(app, "GET", f"/v1/requests/{answer['id']}").answer()
    assert state["response"]["usage"] == answer["usage"]
    assert len(mesh.specs) == 1


async def test_a_stream_goes_on_elsewhere_after_its_store_was_emptied(text: ChatText, model_dir: Path) -> None:
    """From the tokens that its gateway wrote again, with the attempt after its last."""
    async with two_gateways(text, model_dir) as (mesh, first, second):
        whole = content(await Client(first, "POST", CHATS, BODY).events())
        assert isinstance(mesh.store, LossyStore)
        mesh.store.lose_all()
        client = Client(first, "POST", CHATS, BODY)
        events = [await client.event() for _ in range(10)]
        request_id = str(events[0].data and events[0].data["id"])
        await lose_attempt(mesh, request_id)
        events += [await client.event() for _ in range(10)]
        await mesh.generations[0].saver.save_all()
        mesh.store.lose_all()
        await mesh.generations[0].saver.save_all()
        assert mesh.store.kept.attempts[request_id].epoch == 2
        rest = await Client(second, "POST", CHATS, BODY, {"Last-Event-ID": events[-1].id}).events()
        assert content([*events, *rest])[:2] == whole[:2]
        assert mesh.worker.epochs[request_id] == [1, 2, 3]
        await client.leave()


async def test_a_stream_goes_on_though_its_store_forgot_who_took_it(text: ChatText, model_dir: Path) -> None:
    """A primary that dies with its last writes names the former gateway, which may be dead: the stream is the later one's."""
    async with two_gateways(text, model_dir) as (mesh, first, second):
        whole = content(await Client(first, "POST", CHATS, BODY).events())
        client = Client(first, "POST", CHATS, BODY)
        events = [await client.event() for _ in range(10)]
        await mesh.generations[0].saver.save_all()
        assert isinstance(mesh.store, LossyStore)
        request_id = str(events[0].data and events[0].data["id"])
        former = mesh.store._kept[request_id].owner
        other = Client(second, "POST", CHATS, BODY, {"Last-Event-ID": events[-1].id})
        rest = [await other.event() for _ in range(5)]
        mesh.store._kept[request_id] = replace(mesh.store._kept[request_id], owner=former)
        await mesh.generations[1].saver.save_all()
        rest += await other.events()
        assert content([*events, *rest])[:2] == whole[:2]
        await mesh.generations[0].saver.save_all()
        errors = [event.data.get("error") for event in await client.events() if event.data]
        assert [error["code"] for error in errors if error] == ["resumed_elsewhere"]


async def test_a_gateway_that_leaves_hands_on_deadline_and_attempt(text: ChatText, model_dir: Path) -> None:
    """Though it has deleted the record of its last attempt."""
    async with two_gateways(text, model_dir) as (mesh, first, second):
        client = Client(first, "POST", CHATS, BODY, {"X-Request-Timeout": "60"})
        events = [await client.event() for _ in range(5)]
        request_id = str(events[0].data and events[0].data["id"])
        await lose_attempt(mesh, request_id)
        events += [await client.event() for _ in range(5)]
        record = await mesh.store.get_record(request_id)
        assert record is not None
        deadline_unix_s = record.deadline_unix_s
        assert deadline_unix_s is not None
        mesh.generations[0].is_leaving = True
        client.task.cancel()
        await asyncio.gather(client.task, return_exceptions=True)
        await mesh.generations[0].saver.save_all()
        other = Client(second, "POST", CHATS, BODY, {"Last-Event-ID": events[-1].id})
        await other.event()
        record = await mesh.store.get_record(request_id)
        assert record is not None
        assert (record.epoch, record.deadline_unix_s) == (3, deadline_unix_s)
        await other.leave()


async def test_a_gateway_that_leaves_saves_what_it_hands_on(text: ChatText) -> None:
    """All tokens that it has generated: another gateway computes none of them again."""
    mesh = LossyMesh(reply=list(range(10, 18)), hang_at=5)
    client = Client(keeping_app(mesh, text), "POST", CHATS, BODY)
    events = [await client.event() for _ in range(6)]
    mesh.is_leaving = True
    client.task.cancel()
    await asyncio.gather(client.task, return_exceptions=True)
    other = KeepingMesh(reply=list(range(10, 18)), store=mesh.store)
    await until(lambda: sum(map(Counter.total, mesh.store._counts.values())) == 5)
    assert mesh.store.kept.ending is None
    again = Client(keeping_app(other, text, "g1"), "POST", CHATS, BODY, {"Last-Event-ID": events[-1].id})
    assert content([*events, *await again.events()])[1] == ["[DONE]"]
    assert other.spec.earlier is not None
    assert other.spec.earlier.token_ids == (10, 11, 12, 13, 14)


async def test_two_gateways_that_get_one_key_at_once_keep_its_deadline(text: ChatText, model_dir: Path) -> None:
    """The one that has it in the end may have taken it before a record was written."""
    async with two_gateways(text, model_dir) as (mesh, first, second):
        headers = KEY | {"X-Request-Timeout": "60"}
        clients = [Client(app, "POST", CHATS, BODY, headers) for app in (first, second)]
        await until(lambda: bool(mesh.worker.drawn))
        (request_id,) = mesh.worker.drawn
        record = await mesh.store.get_record(request_id)
        assert record is not None
        assert record.deadline_unix_s is not None
        assert 50 < record.deadline_unix_s - time.time() < 70
        for client in clients:
            await client.leave()


@pytest.mark.parametrize("position", ["1-0_1-0", "1-0"])
async def test_a_resumption_that_is_refused_takes_nothing(text: ChatText, model_dir: Path, position: str) -> None:
    """The stream goes on where it is, with its client."""
    async with two_gateways(text, model_dir) as (mesh, first, second):
        client = Client(first, "POST", CHATS, BODY)
        events = [await client.event() for _ in range(10)]
        request_id = str(events[0].data and events[0].data["id"])
        body = BODY if "_" in position else BODY | {"seed": 10}
        refused = Client(second, "POST", CHATS, body, {"Last-Event-ID": f"{request_id}.{position}"})
        assert "error" in await refused.answer()
        await mesh.generations[0].saver.save_all()
        assert content(await client.events())[1] == ["[DONE]"]


async def test_a_request_is_cancelled_at_its_former_owner(text: ChatText, model_dir: Path) -> None:
    """Which does not know yet that it has lost it."""
    async with two_gateways(text, model_dir) as (mesh, first, second):
        client = Client(first, "POST", CHATS, BODY, KEY)
        request_id = str(((await client.event()).data or {})["id"])
        await client.leave()
        other = Client(second, "POST", CHATS, BODY, KEY)
        await other.event()
        deleted = await Client(first, "DELETE", f"/v1/requests/{request_id}").answer()
        assert deleted["state"] == "cancelled"
        await until(lambda: not mesh.worker.running)
        await mesh.generations[1].saver.save_all()
        await other.events()


async def test_the_last_tokens_keep_the_digest_of_their_weights() -> None:
    """Also where the request has ended here before they are saved."""
    store, digests = LossyStore(), {"r": "sha-A"}
    saver = TokenSaver(store, digests.get, lambda _: None)
    saver.watch("r", "g/1")
    chunks: list[bytes] = []

    async def save(tokens: Any) -> Any:
        chunks.extend(each.chunk for each in tokens if each.chunk)
        return [each.first + each.count for each in tokens]

    store.save_tokens = save  # type: ignore[method-assign]
    saver.add("r", (TokenDelta(1, 0, 7),))
    await saver.save("r")
    digests.clear()
    saver.add("r", (TokenDelta(1, 1, 8),))
    await saver.save("r")
    (earlier,) = read_chunks(chunks, 1)
    assert (len(earlier.deltas), earlier.model_digest) == (2, "sha-A")
