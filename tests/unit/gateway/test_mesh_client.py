"""A gateway below its API: what the mesh hears of a request, a store or a scheduler that is away, and clients that leave."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.commands import Deliver
from spotwise.core.messages.fleet import LoadReported
from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool
from spotwise.core.messages.mesh import (
    CloseRequest,
    RejectCode,
    RequestAccepted,
    RequestAssigned,
    RequestRejected,
    SubmitRequest,
    TokenBatch,
    TokenDelta,
)
from spotwise.core.requests.prefixes import prefix_spans
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import FinishReason, StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.generation import SequenceSpec, TextEndedError
from spotwise.gateway.mesh.attempt_orders import AttemptOrders
from spotwise.gateway.mesh.client import MeshGeneration, without_addresses
from spotwise.gateway.resume.store_turns import MOST_AT_ONCE
from spotwise.http.errors import GenerationError
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.core.builders import worker_member
from tests.unit.gateway.fake_mesh import MODEL
from tests.unit.gateway.gateways import accepted, mesh_client

SPEC = SequenceSpec((1, 2, 3), SamplingParams(), StopCriteria(8))


async def take(generation: MeshGeneration, choice_id: str = "r", spec: SequenceSpec = SPEC) -> None:
    """Let a sequence be generated to its end."""
    async with asyncio.timeout(30):
        async for _ in generation.generate(choice_id, spec):
            pass


async def failure(generation: MeshGeneration, spec: SequenceSpec = SPEC) -> GenerationError:
    with pytest.raises(GenerationError) as raised:
        await take(generation, spec=spec)
    return raised.value


async def leave(*clients: asyncio.Task[None]) -> None:
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


@asynccontextmanager
async def without_scheduler(
    store: MemoryStore, model_dir: Path, store_timeout_s: float = 0.2
) -> AsyncIterator[MeshGeneration]:
    times = {"store_timeout_s": store_timeout_s, "submit_timeout_s": 0.2}
    async with mesh_client(model_dir, MemoryBroker(), store, **times) as generation:
        yield generation


async def answer_each(generation: MeshGeneration, answer: Any) -> list[SubmitRequest]:
    """Answer each submission by a message; return those that come."""
    heard: list[SubmitRequest] = []

    async def reply(message: BusMessage) -> None:
        order = decode(message.payload)
        if isinstance(order, SubmitRequest):
            heard.append(order)
            assert message.respond is not None
            await message.respond(encode(answer))

    await generation._host.bus.subscribe(subjects.REQUESTS, reply)
    return heard


class StoppedStore(MemoryStore):
    """A store whose process is stopped: it accepts a record and does not answer."""

    async def put_record(self, record: RequestRecord) -> None:
        await asyncio.Event().wait()


class UnreachableStore(MemoryStore):
    """A store that is gone."""

    async def put_record(self, record: RequestRecord) -> None:
        raise MeshError("Redis: Error 111 connecting to 10.0.0.7:6379. Connection refused.")


async def test_a_deadline_ends_the_wait_for_the_store(model_dir: Path) -> None:
    """It comes before the store's own time is over; 504, and no scheduler learns of the request."""
    spec = replace(SPEC, deadline_unix_s=time.time() + 0.05)
    async with without_scheduler(StoppedStore(), model_dir, store_timeout_s=60.0) as generation:
        error = await failure(generation, spec)
    assert (error.status, error.code) == (504, RejectCode.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("store", [StoppedStore(), UnreachableStore()], ids=["stopped", "unreachable"])
async def test_a_store_that_is_away_has_its_own_code(store: MemoryStore, model_dir: Path) -> None:
    """503 with a time to come back, after `store_timeout_s` at most; the log keeps what went wrong where."""
    with structlog.testing.capture_logs() as logs:
        async with without_scheduler(store, model_dir) as generation:
            error = await failure(generation)
    assert (error.status, error.code, error.retry_after_s) == (503, g.FAIL_STORE, 1.0)
    assert "request store" in error.message
    assert without_addresses(error.message) == error.message
    (line,) = [line for line in logs if line["event"] == "submit_failed"]
    assert line["choice_id"] == "r"
    assert "10.0.0.7:6379" in line["reason"] or isinstance(store, StoppedStore)


async def test_a_scheduler_that_is_away_has_its_own(model_dir: Path) -> None:
    """An absent scheduler has an error code of its own, and the message has no subject."""
    async with without_scheduler(MemoryStore(), model_dir) as generation:
        error = await failure(generation)
    assert (error.status, error.code) == (503, g.FAIL_NO_SCHEDULER)
    assert "spotwise." not in error.message


async def test_a_reply_that_is_no_verdict_is_none(model_dir: Path) -> None:
    """A reply to a submission says that it is taken or rejected; another member's heartbeat is not heard like that."""
    forged = Member(
        "scheduler-1", MemberKind.CLUSTER_SCHEDULER, 2**40, MemberState.READY, "a-host", 1, "a-host:1", term=2**40
    )
    async with without_scheduler(MemoryStore(), model_dir) as generation:
        await answer_each(generation, forged)
        error = await failure(generation)
        assert (error.status, error.code) == (503, g.FAIL_NO_SCHEDULER)
        assert generation._role.membership.all(MemberKind.CLUSTER_SCHEDULER) == []


async def test_an_address_in_an_error_never_reaches_the_client(model_dir: Path) -> None:
    """A scheduler's or a worker's reason, too; the log has it whole."""
    reason = "token-0 at 10.0.0.7:4000 is full"
    with structlog.testing.capture_logs() as logs:
        async with without_scheduler(MemoryStore(), model_dir) as generation:
            await answer_each(generation, RequestRejected("r", 1, RejectCode.MESH_FULL, reason, 1.0))
            error = await failure(generation)
    assert (error.status, error.message) == (429, "token-0 at … is full")
    assert [line["reason"] for line in logs if line["event"] == "request_failed"] == [reason]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no NATS server answers at nats://user:word@broker:4222 within 5 s", "no NATS server answers at … within 5 s"),
        ("the KV hand-off failed: 10.1.2.3:41234 refused", "the KV hand-off failed: … refused"),
        ("cannot reach token-0.mesh.svc:50051, timed out", "cannot reach …, timed out"),
        ("connect to [fe80::1]:8000 or ::1 failed", "connect to … or … failed"),
        ("redis at 127.0.0.1 is away", "redis at … is away"),
        ("File /srv/spotwise/libs/engine.py is odd", "File … is odd"),
        ("a KV cache of 5,824 tokens, 3/4 used, at 17 s: full", "a KV cache of 5,824 tokens, 3/4 used, at 17 s: full"),
        ("token_worker token-0 silent for 2 s", "token_worker token-0 silent for 2 s"),
    ],
)
def test_addresses_are_left_out(message: str, shown: str) -> None:
    """URLs, hosts with ports, IP addresses and paths; numbers and names of members stay."""
    assert without_addresses(message) == shown


class SlowStore(MemoryStore):
    """Writes when it may; deletes at once, as another connection of a server that was stopped would."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()
        self.writing = 0

    async def put_record(self, record: RequestRecord) -> None:
        self.writing += 1
        await self.may_write.wait()
        await super().put_record(record)
        self.writing -= 1


async def test_a_client_that_leaves_before_the_record_is_written_is_never_submitted(model_dir: Path) -> None:
    """The record that was written after all is deleted, and a scheduler receives neither request."""
    store = SlowStore()
    async with accepted(model_dir, MemoryBroker(), store) as (generation, orders):
        client = asyncio.create_task(take(generation, "r"))
        await until(lambda: store.writing)
        await leave(client)
        await asyncio.sleep(0.05)  # time for a deletion that does not wait for the write
        store.may_write.set()
        await until(lambda: not store.writing)
        await asyncio.sleep(0.05)
        assert await store.get_record("r") is None
        assert orders == []


async def test_a_client_that_leaves_later_is_closed_after_the_submission(model_dir: Path) -> None:
    """The close follows the submission on the same subject, and the record is deleted."""
    store = MemoryStore()
    async with accepted(model_dir, MemoryBroker(), store) as (generation, orders):
        client = asyncio.create_task(take(generation, "r"))
        await until(lambda: orders)
        assert await store.get_record("r") is not None
        await leave(client)
        await until(lambda: len(orders) == 2)
        assert [type(order) for order in orders] == [SubmitRequest, CloseRequest]
        await asyncio.sleep(0.05)
        assert await store.get_record("r") is None


async def test_clients_that_leave_while_the_store_does_nothing_cost_nothing_more(model_dir: Path) -> None:
    """Beyond the writes that were under way: no task waits for a store that may be away for long."""
    store = SlowStore()
    async with accepted(model_dir, MemoryBroker(), store) as (generation, orders):
        clients = [asyncio.create_task(take(generation, f"r{number}")) for number in range(10 * MOST_AT_ONCE)]
        await until(lambda: store.writing == MOST_AT_ONCE)
        await leave(*clients)
        await asyncio.sleep(0.05)
        named = Counter(task.get_name() for task in asyncio.all_tasks())
        assert (named["submit"], named["delete_record"]) == (MOST_AT_ONCE, MOST_AT_ONCE)
        store.may_write.set()
        await until(lambda: not {"submit", "delete_record"} & {task.get_name() for task in asyncio.all_tasks()})
        assert [await store.get_record(f"r{number}") for number in range(MOST_AT_ONCE)] == [None] * MOST_AT_ONCE
        assert orders == []


async def test_scheduler_and_workers_learn_of_tenant_and_priority(model_dir: Path) -> None:
    """The scheduler the priority, by which requests wait; workers both, from the record, which is written before."""
    store = MemoryStore()
    spec = replace(SPEC, prompt_token_ids=tuple(range(64)), priority=-4, tenant="acme", prefix_salt="salt")
    async with accepted(model_dir, MemoryBroker(), store) as (generation, orders):
        client = asyncio.create_task(take(generation, spec=spec))
        await until(lambda: orders)
        record = await store.get_record("r")
        await leave(client)
    order = orders[0]
    assert isinstance(order, SubmitRequest) and order.priority == -4
    assert record is not None and (record.priority, record.tenant, record.prefix_salt) == (-4, "acme", "salt")
    assert order.prefix_spans == prefix_spans(MODEL, range(64), "salt") != prefix_spans(MODEL, range(64))


@asynccontextmanager
async def reporting(model_dir: Path) -> AsyncIterator[tuple[MeshGeneration, list[LoadReported]]]:
    """A gateway whose requests get two tokens each, and what a planner hears of them, the first report included."""
    bus, reports = MemoryBus(broker := MemoryBroker()), list[LoadReported]()

    async def answer(message: BusMessage) -> None:
        order = decode(message.payload)
        if not isinstance(order, SubmitRequest):
            return
        assert message.respond is not None
        await message.respond(encode(RequestAccepted(order.choice_id, order.epoch)))
        assigned = RequestAssigned(order.choice_id, order.epoch, "p", "t")
        await bus.publish(subjects.inbox_from(MeshRole.SCHEDULER, "gateway-0", 1), encode(assigned))
        attempt_id, end = order.stream.attempt_id, FinishReason.LENGTH if order.max_new_tokens == 2 else None
        deltas = TokenDelta(attempt_id, 0, 5), TokenDelta(attempt_id, 1, 6, end)
        await bus.publish(subjects.inbox_from(MeshRole.WORKER, "gateway-0", 1), encode(TokenBatch("t", deltas)))

    async def heard(message: BusMessage) -> None:
        report = decode(message.payload)
        assert isinstance(report, LoadReported)
        reports.append(report)

    await bus.subscribe(subjects.REQUESTS, answer)
    await bus.subscribe(subjects.LOAD, heard)
    async with mesh_client(model_dir, broker, MemoryStore()) as generation:
        await until(lambda: reports)
        yield generation, reports


async def test_a_planner_hears_of_each_request(model_dir: Path) -> None:
    """The first report comes at once, the next has the arrival in Unix time, and the tokens."""
    async with reporting(model_dir) as (generation, reports):
        before_s = generation._host.clock.now()
        async with (
            aclosing(generation.generate("r", replace(SPEC, stop=StopCriteria(2)))) as items,
            asyncio.timeout(30),
        ):
            tokens = [token async for item in items for token in item.tokens]
        assert len(tokens) == 2
        await until(lambda: len(reports) > 1)
        after_s = generation._host.clock.now()
    first, second = reports
    assert first == LoadReported("gateway-0", 1, 1)
    (arrived_s,) = second.arrivals_s
    assert before_s <= arrived_s <= after_s
    assert second == LoadReported("gateway-0", 1, 2, (arrived_s,), 3, 1, 2)


async def test_a_text_that_a_stop_string_ends_has_finished(model_dir: Path) -> None:
    """With its tokens; the request of a client that leaves has come, but not finished."""
    async with reporting(model_dir) as (generation, reports):
        for choice_id, is_text_ended in (("ended", True), ("left", False)):
            async with aclosing(generation.generate(choice_id, SPEC)) as items, asyncio.timeout(30):
                async for item in items:
                    if item.tokens:
                        break
                if is_text_ended:
                    with suppress(TextEndedError):
                        await items.athrow(TextEndedError())
        await until(lambda: sum(report.prompt_tokens for report in reports) == 6)
    assert [sum(len(report.arrivals_s) for report in reports), sum(report.finished for report in reports)] == [2, 1]
    assert sum(report.output_tokens for report in reports) == 2


RECEIVED_S, FIRST_TOKEN_S, WAITED_S = 100.0, 101.0, 0.25


@pytest.mark.parametrize(
    ("assigned_s", "prefill_s"),
    [
        (100.25, 0.5),
        (None, 0.75),  # the token came before the assignment
        (100.999, 0.75),  # no time would be left for the prefill
    ],
)
def test_a_prefill_takes_time_also_where_the_assignment_is_late(assigned_s: float | None, prefill_s: float) -> None:
    client: Any = MeshGeneration.__new__(MeshGeneration)
    client._host = SimpleNamespace(clock=SimpleNamespace(now=lambda: FIRST_TOKEN_S))
    client._streams = {"r": SimpleNamespace(attempts=1, assigned_s=assigned_s, received_s=RECEIVED_S)}
    first = Deliver("r", (TokenDelta(1, 0, 7, queue_s=WAITED_S),), None)
    assert cast(MeshGeneration, client)._prefill_s(first) == pytest.approx(prefill_s)


#: A prompt of 3 tokens, and no bound but the model's context.
OPEN = replace(SPEC, stop=StopCriteria(8189), unbounded=True)


@pytest.mark.parametrize(
    ("most_kv_tokens", "committed", "unbounded", "max_new_tokens"),
    [
        (1600, 0, True, 1597),
        (160, 5, True, 157),
        (1600, 5, True, 1597),
        (1 << 20, 5, True, 8189),
        (0, 0, True, 8189),  # before any worker: the scheduler knows better
        (16, 13, True, 8189),  # a prompt that no worker holds now, and a client's bound, are left to the scheduler
        (160, 5, False, 8189),
    ],
)
def test_an_attempt_without_a_bound_may_fill_the_largest_worker(
    most_kv_tokens: int, committed: int, unbounded: bool, max_new_tokens: int
) -> None:
    """As far as there is one now: the next attempt may have more or less."""
    orders: Any = AttemptOrders.__new__(AttemptOrders)
    orders._most_kv_tokens = lambda numerics_class: most_kv_tokens if numerics_class == "b" else 0
    command = g.SubmitAttempt("r", 1, 1, (50,) * committed, numerics_classes=("a", "b"))
    stop = cast(AttemptOrders, orders)._stop(replace(OPEN, unbounded=unbounded), command)
    assert stop == replace(OPEN.stop, max_new_tokens=max_new_tokens)


async def test_the_next_attempt_has_what_is_there_then(model_dir: Path) -> None:
    """1,600 tokens of cache at first, then 160, since a worker that drains takes none: five are committed, and the rest may
    follow.
    """
    large, small = worker_member("w", Pool.MIXED, blocks=100), worker_member("w2", Pool.MIXED, blocks=10)
    bus, store = MemoryBus(broker := MemoryBroker()), MemoryStore()

    async def heard(*workers: Member) -> None:
        for worker in workers:
            await bus.publish(subjects.heartbeat(worker.kind, worker.id), encode(worker))
        await asyncio.sleep(0.02)

    async with accepted(model_dir, broker, store) as (generation, orders):
        await heard(large, small)
        client = asyncio.create_task(take(generation, spec=OPEN))
        await until(lambda: orders)
        first = orders[0]
        assert isinstance(first, SubmitRequest)
        assert (first.prompt_tokens, first.max_new_tokens, first.open_bound) == (3, 1597, True)
        await heard(replace(large, state=MemberState.DRAINING))
        attempt = first.stream.attempt_id
        deltas = tuple(TokenDelta(attempt, index, 50) for index in range(5))
        lost = TokenDelta(attempt, 5, None, FinishReason.ERROR, "the worker is gone", retryable=True)
        for sender, message in (
            (MeshRole.SCHEDULER, RequestAssigned("r", first.epoch, "w", "w")),
            (MeshRole.WORKER, TokenBatch("w", (*deltas, lost))),
        ):
            await bus.publish(subjects.inbox_from(sender, "gateway-0", 1), encode(message))
        await until(lambda: len(orders) > 1)
        second, record = orders[1], await store.get_record("r")
        assert isinstance(second, SubmitRequest) and record is not None
        assert (second.prompt_tokens, second.max_new_tokens) == (8, 152)
        assert record.stop.max_new_tokens == 5 + 152
        await leave(client)
