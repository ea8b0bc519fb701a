"""The planner's service over the in-memory mesh: who holds the term, and what a journal of it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from spotwise.core.messages.members import MemberKind, MemberState
from spotwise.core.messages.worker import (
    GiveBackRequest,
    MoveEnded,
    MoveOutcome,
    MoveRequest,
    SurveyedSequence,
    SurveyWorker,
    WorkerSurveyed,
)
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.mesh.replay.journal_replay import find_journals, replay
from spotwise.mesh.service.host import ServiceHost
from spotwise.migration_planner.metrics import PlannerMetrics
from spotwise.migration_planner.planner import Planner
from spotwise.migration_planner.settings import PlannerSettings
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.core.builders import plain_member, worker_member


class FailingStore(MemoryStore):
    """A store that may stop answering."""

    fails = False

    async def hold_term(self, service: str, holder: str, at_least: int, lease_s: float) -> int | None:
        if self.fails:
            raise MeshError("the store is away")
        return await super().hold_term(service, holder, at_least, lease_s)


class OnePlanner:
    def __init__(self, planner: Planner, host: ServiceHost, metrics: PlannerMetrics) -> None:
        self.planner = planner
        self.host = host
        self._metrics = metrics

    def counted(self, name: str, **labels: str) -> float:
        return self._metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def term(self) -> float:
        return self.counted("spotwise_planner_term")


@asynccontextmanager
async def planning(
    broker: MemoryBroker, store: MemoryStore, service_id: str = "planner-0", **given: Any
) -> AsyncIterator[OnePlanner]:
    """A planner at work, whose term is short."""
    settings = PlannerSettings(**{"service_id": service_id, "planner_lease_s": 0.3, **given})
    member = plain_member(service_id, MemberKind.MIGRATION_PLANNER, state=MemberState.STARTING)
    metrics = PlannerMetrics()
    host = ServiceHost(settings, MemoryBus(broker), store, ControlServer(LOOPBACK, 0), member)
    async with host.joined():
        planner = Planner(host, settings, metrics)
        await planner.start()
        try:
            yield OnePlanner(planner, host, metrics)
        finally:
            await planner.close()


async def test_of_two_planners_one_acts_and_the_other_takes_over() -> None:
    """At once where the first one ends in order; with a higher term."""
    broker, store = MemoryBroker(), MemoryStore()
    async with planning(broker, store, "planner-1") as second:
        await until(lambda: second.term > 0)
        await second.planner.close()
        async with planning(broker, store) as first:
            await until(lambda: first.term > 0)
            assert first.term > second.term
            async with planning(broker, store, "planner-2") as third:
                await asyncio.sleep(0.5)  # longer than a lease
                assert (first.term > 0, third.term) == (True, 0)
                await first.planner.close()
                await until(lambda: third.term > first.term)


async def test_a_store_that_does_not_answer_ends_the_term() -> None:
    """It begins again, with a higher number, when the store is back and the lease has run out."""
    store = FailingStore()
    with capture_logs() as logs:
        async with planning(MemoryBroker(), store) as planner:
            await until(lambda: planner.term > 0)
            term = planner.term
            store.fails = True
            await until(lambda: planner.term == 0)
            store.fails = False
            await until(lambda: planner.term >= term)
    assert {"term_began", "store_unavailable", "term_lost"} <= {line["event"] for line in logs}


async def test_a_drain_is_planned_ordered_counted_and_decided_again_from_the_journal(tmp_path: Path) -> None:
    broker, store = MemoryBroker(), MemoryStore()
    bus = MemoryBus(broker)
    orders: list[MoveRequest | GiveBackRequest] = []
    async with planning(broker, store, journal=tmp_path) as planner:
        deadline_s = planner.host.clock.now() + 2.0

        async def answer(raw: BusMessage) -> None:
            message = decode(raw.payload)
            reply: WorkerSurveyed | MoveEnded
            if isinstance(message, SurveyWorker):
                held = {order.choice_id for order in orders}
                sequences = [
                    SurveyedSequence("small", 1, 100, 101, 10**5),
                    SurveyedSequence("vast", 1, 10**6, 10**6, 10**6),
                ]
                left = tuple(each for each in sequences if each.choice_id not in held)
                reply = WorkerSurveyed("a", message.number, 0.02, left)
            else:
                assert isinstance(message, MoveRequest | GiveBackRequest)
                orders.append(message)
                if isinstance(message, GiveBackRequest):
                    return
                reply = MoveEnded("small", 1, "a", "b", MoveOutcome.MOVED, "", 100, 0.01)
            await bus.publish(subjects.inbox_from(MeshRole.WORKER, "planner-0"), encode(reply))

        await bus.subscribe(subjects.inbox("a"), answer)
        await until(lambda: planner.term > 0)
        draining = replace(worker_member("a", state=MemberState.DRAINING), leaves_at_s=deadline_s)

        async def beat() -> None:
            for member in (worker_member("b", blocks=10**5), draining):
                await bus.publish(subjects.heartbeat(member.kind, member.id), encode(member))

        planner.host.every(0.2, beat, "beat")
        await until(lambda: len(orders) == 2)
        await until(lambda: planner.counted("spotwise_planner_moves_total", outcome="moved") == 1)
    assert [(type(order), order.choice_id) for order in orders] == [(MoveRequest, "small"), (GiveBackRequest, "vast")]
    assert planner.counted("spotwise_planner_given_back_total") == 1
    assert planner.counted("spotwise_planner_moved_tokens_total") == 100
    plan = await store.get_plan()
    assert plan is not None and [leave.worker_id for leave in plan.leaves] == ["a"]
    (journal,) = find_journals(tmp_path)
    done = replay(journal)
    assert journal.role == "PlannerRole"
    assert done.difference is None
    assert {"Member", "TermHeld", "PlanStored", "WorkerSurveyed", "MoveEnded"} <= set(done.decision_s)
