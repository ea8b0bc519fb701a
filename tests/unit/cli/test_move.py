"""Where a request's choices run, as its ledger tells."""

from __future__ import annotations

import asyncio
import functools

import pytest

from spotwise.cli.move import choices_to_move, move_choices, order_moves, running_choices
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.core.messages.worker import MoveEnded, MoveOutcome, MoveRequest
from spotwise.mesh.ports.ports import BusMessage
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore


def entry(stage: str, member: str = "gateway-0", choice: str = "r", epoch: int = 1, **facts: str) -> LedgerEntry:
    return LedgerEntry(choice, epoch, stage, member, 1000.0, tuple(facts.items()))


ASSIGNED = entry("assigned", "scheduler-0", prompt_worker="prompt-0", token_worker="token-0")


AGAIN = entry("assigned", "scheduler-0", epoch=2, prompt_worker="prompt-0", token_worker="token-1")
OTHER = entry("assigned", "scheduler-0", "r#1", prompt_worker="prompt-0", token_worker="token-1")
MOVED = [entry("kv_received", "token-0"), entry("moved", "token-0"), entry("kv_received", "token-1")]


@pytest.mark.parametrize(
    ("later", "running"),
    [
        ([], {"r": (1, "token-0")}),
        (MOVED, {"r": (1, "token-1")}),
        ([entry("completed")], {}),
        ([entry("attempt_lost")], {}),
        ([entry("attempt_lost"), AGAIN], {"r": (2, "token-1")}),
        ([OTHER], {"r": (1, "token-0"), "r#1": (1, "token-1")}),
    ],
    ids=["in place", "moved", "ended", "lost", "assigned again", "two choices"],
)
def test_a_choice_runs_where_it_was_assigned_or_its_kv_arrived_last(
    later: list[LedgerEntry], running: dict[str, tuple[int, str]]
) -> None:
    assert running_choices([ASSIGNED, *later]) == running


def test_a_request_that_has_just_begun_is_found_once_its_ledger_is_written() -> None:
    """Members write ledgers once a heartbeat, after the request's first tokens."""

    async def found() -> dict[str, tuple[int, str]]:
        store = MemoryStore()
        search = asyncio.create_task(choices_to_move(store, "r"))
        await asyncio.sleep(0.1)
        await store.append_ledger(ASSIGNED)
        return await search

    assert asyncio.run(found()) == {"r": (1, "token-0")}


def test_a_request_that_has_ended_is_not_waited_for() -> None:
    async def found() -> dict[str, tuple[int, str]]:
        store = MemoryStore()
        await store.append_ledger(ASSIGNED, entry("completed"))
        return await asyncio.wait_for(choices_to_move(store, "r"), timeout=0.5)

    assert asyncio.run(found()) == {}


def test_answers_to_another_command_are_not_its_own() -> None:
    """Two machines' commands, of which each has the pid of the other, get the answers of both."""

    async def moved() -> list[MoveEnded]:
        broker = MemoryBroker()
        bus, worker = MemoryBus(broker), MemoryBus(broker)

        async def move(raw: BusMessage) -> None:
            order = decode(raw.payload)
            assert isinstance(order, MoveRequest)
            for choice_id in ("another's", order.choice_id):
                ended = MoveEnded(choice_id, order.epoch, "token-0", order.target_id, MoveOutcome.MOVED)
                await worker.publish(subjects.inbox_from(MeshRole.WORKER, order.sender_id), encode(ended))

        await worker.subscribe(subjects.inbox_from(MeshRole.OPERATOR, "token-0"), move)
        try:
            return await order_moves(bus, {"r": (1, "token-0"), "r#1": (1, "token-0")}, "token-1")
        finally:
            await bus.close()
            await worker.close()

    assert [each.choice_id for each in asyncio.run(moved())] == ["r", "r#1"]


def test_a_choice_that_moved_meanwhile_is_asked_of_its_new_worker() -> None:
    """The ledger tells of a move once a heartbeat; what it still shows at the old worker is refused there."""

    async def moved() -> list[MoveEnded]:
        store, broker = MemoryStore(), MemoryBroker()
        bus, workers = MemoryBus(broker), MemoryBus(broker)
        await store.append_ledger(ASSIGNED)

        async def move(raw: BusMessage, worker_id: str) -> None:
            order = decode(raw.payload)
            assert isinstance(order, MoveRequest)
            outcome = MoveOutcome.MOVED if worker_id == "token-1" else MoveOutcome.REFUSED
            ended = MoveEnded(order.choice_id, order.epoch, worker_id, order.target_id, outcome)
            await workers.publish(subjects.inbox_from(MeshRole.WORKER, order.sender_id), encode(ended))

        for each in ("token-0", "token-1"):
            await workers.subscribe(
                subjects.inbox_from(MeshRole.OPERATOR, each), functools.partial(move, worker_id=each)
            )
        order = asyncio.create_task(move_choices(store, bus, "r", {"r": (1, "token-0")}, "token-2"))
        await asyncio.sleep(0.1)
        await store.append_ledger(*MOVED)
        try:
            return await order
        finally:
            await bus.close()
            await workers.close()

    assert [(each.worker_id, each.outcome) for each in asyncio.run(moved())] == [("token-1", MoveOutcome.MOVED)]
