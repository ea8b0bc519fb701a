"""One gateway goes on with another's streams: the gateways' own code, and what a store or a client may lose without harm."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.gateway.kept_request import KeptState
from spotwise.core.messages.mesh import LedgerEntry, TokenDelta
from spotwise.gateway.resume.kept_forms import read_chunks
from spotwise.gateway.resume.token_saver import TokenSaver
from spotwise.text.chat_text import ChatText
from spotwise.wire import subjects
from tests.contracts.waiting import until, until_none
from tests.fakes.memory import MemoryStore
from tests.unit.gateway.fake_mesh import CHAT, CHATS
from tests.unit.gateway.gateways import Gateways, gateways_in_memory
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, content, keeping_app, request_id_of

SCORED = CHAT | {
    "stream": True,
    "max_tokens": 40,
    "n": 2,
    "logprobs": True,
    "return_token_ids": True,
    "ignore_eos": True,
}


@pytest.mark.parametrize("saves", [False, True])
async def test_another_gateway_takes_a_stream_over(
    saves: bool, text: ChatText, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the tokens that were saved, which are not computed again; the former gateway's client is told, and its attempt ends.
    All is as in one stream with the same seed: text, tokens, scores.
    """
    monkeypatch.setattr("spotwise.gateway.mesh.client.SAVE_EVERY_S", 3600.0)  # only the test says when
    async with gateways_in_memory(text, model_dir) as (mesh, first, second):
        whole = content(await Client(first, "POST", CHATS, SCORED | {"seed": 5}).events())
        client = Client(first, "POST", CHATS, SCORED | {"seed": 5})
        events = [await client.event() for _ in range(30)]
        if saves:
            await mesh.generations[0].saver.save_all()
        rest = await Client(second, "POST", CHATS, SCORED | {"seed": 5}, {"Last-Event-ID": events[-1].id}).events()
        assert content([*events, *rest])[:2] == whole[:2]
        await mesh.generations[0].saver.save_all()
        told = content(await client.events())[1]
        assert told[0]["code"] == "resumed_elsewhere"
        request_id = request_id_of(events)
        for choice_id in (f"{request_id}#0", f"{request_id}#1"):
            assert mesh.worker.epochs[choice_id] == [1, 2]
            assert (mesh.worker.drawn[choice_id].count(0) == 1) is saves
            await until_none(partial(mesh.store.get_record, choice_id))
        await until(lambda: not mesh.worker.running)


async def test_a_taken_request_stays_taken(text: ChatText, model_dir: Path) -> None:
    """The former gateway's attempt is lost, and its next one is refused by the store: it computes nothing, and says so."""
    async with gateways_in_memory(text, model_dir) as (mesh, first, second):
        client = Client(first, "POST", CHATS, SCORED)
        events = [await client.event() for _ in range(20)]
        other = Client(second, "POST", CHATS, SCORED, {"Last-Event-ID": events[-1].id})
        await other.event()
        request_id = request_id_of(events)
        await mesh.lose(f"{request_id}#0", f"{request_id}#1")
        assert content(await client.events())[1][0]["code"] == "resumed_elsewhere"
        assert content(await other.events())[1] == ["[DONE]"]
        assert mesh.worker.epochs[f"{request_id}#0"] == [1, 2]


async def test_an_answer_with_a_key_is_taken_over_whole(text: ChatText, model_dir: Path) -> None:
    """Without a stream: another gateway goes on from what was saved, without a word of the first one."""
    body = CHAT | {"max_tokens": 40, "seed": 3, "ignore_eos": True, "return_token_ids": True}
    async with gateways_in_memory(text, model_dir) as (mesh, first, second):
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
    async with gateways_in_memory(text, model_dir) as (_, first, second):
        whole = content(await Client(first, "POST", CHATS, SCORED | {"seed": 7}).events())
        client = Client(first, "POST", CHATS, SCORED | {"seed": 7})
        events = [await client.event() for _ in range(20)]
        rivals = [
            Client(second, "POST", CHATS, SCORED | {"seed": 7}, {"Last-Event-ID": events[-1].id}) for _ in range(2)
        ]
        rests = [await rival.events() for rival in rivals]
        told = [rest for rest in rests if content(rest)[1][0] != "[DONE]"]
        won = [rest for rest in rests if content(rest)[1] == ["[DONE]"]]
        assert [content(rest)[1][0]["code"] for rest in told] == ["resumed_elsewhere"]
        assert [content([*events, *rest])[:2] for rest in won] == [whole[:2]]
        await client.leave()


async def test_a_clients_own_id_reaches_no_others_ledger(text: ChatText, model_dir: Path) -> None:
    """A client that names its request after another's leaves that one's ledger alone; its own id leads to its request."""
    async with gateways_in_memory(text, model_dir) as (mesh, app, _):
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
    async with gateways_in_memory(text, model_dir, LossyStore()) as (mesh, first, second):
        whole = content(await Client(first, "POST", CHATS, BODY).events())
        assert isinstance(mesh.store, LossyStore)
        mesh.store.lose_all()
        client = Client(first, "POST", CHATS, BODY)
        events = [await client.event() for _ in range(10)]
        request_id = request_id_of(events)
        await mesh.lose(request_id)
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
    async with gateways_in_memory(text, model_dir, LossyStore()) as (mesh, first, second):
        whole = content(await Client(first, "POST", CHATS, BODY).events())
        client = Client(first, "POST", CHATS, BODY)
        events = [await client.event() for _ in range(10)]
        await mesh.generations[0].saver.save_all()
        assert isinstance(mesh.store, LossyStore)
        request_id = request_id_of(events)
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
    """Though it has deleted the record of its last attempt; the stream goes on with what was saved at the end."""
    async with gateways_in_memory(text, model_dir, LossyStore()) as (mesh, first, second):
        whole = content(await Client(first, "POST", CHATS, BODY).events())
        client = Client(first, "POST", CHATS, BODY, {"X-Request-Timeout": "60"})
        events = [await client.event() for _ in range(5)]
        request_id = request_id_of(events)
        await mesh.lose(request_id)
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
        events.append(await other.event())
        record = await mesh.store.get_record(request_id)
        assert record is not None
        assert (record.epoch, record.deadline_unix_s) == (3, deadline_unix_s)
        assert content([*events, *await other.events()])[:2] == whole[:2]


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
    async with gateways_in_memory(text, model_dir, LossyStore()) as (mesh, first, second):
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
    async with gateways_in_memory(text, model_dir, LossyStore()) as (mesh, first, second):
        client = Client(first, "POST", CHATS, BODY)
        events = [await client.event() for _ in range(10)]
        request_id = request_id_of(events)
        body = BODY if "_" in position else BODY | {"seed": 10}
        refused = Client(second, "POST", CHATS, body, {"Last-Event-ID": f"{request_id}.{position}"})
        assert "error" in await refused.answer()
        await mesh.generations[0].saver.save_all()
        assert content(await client.events())[1] == ["[DONE]"]


async def test_a_request_is_cancelled_at_its_former_owner(text: ChatText, model_dir: Path) -> None:
    """Which does not know yet that it has lost it."""
    async with gateways_in_memory(text, model_dir, LossyStore()) as (mesh, first, second):
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
    store, origins = LossyStore(), {"r": ("sha-A", ("float32/fma/1",))}
    saver = TokenSaver(store, lambda choice_id: origins.get(choice_id, (None, ())), lambda _: None)
    saver.watch("r", "g/1")
    chunks: list[bytes] = []

    async def save(tokens: Any) -> Any:
        chunks.extend(each.chunk for each in tokens if each.chunk)
        return [each.first + each.count for each in tokens]

    store.save_tokens = save  # type: ignore[method-assign]
    saver.add("r", (TokenDelta(1, 0, 7),))
    await saver.save("r")
    origins.clear()
    saver.add("r", (TokenDelta(1, 1, 8),))
    await saver.save("r")
    (earlier,) = read_chunks(chunks, 1)
    assert (len(earlier.deltas), earlier.model_digest) == (2, "sha-A")
    assert earlier.numerics_classes == ("float32/fma/1",)
