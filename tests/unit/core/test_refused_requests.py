"""What a refused request costs the mesh: its rejection, and no message to any worker, however many there are."""

from __future__ import annotations

import pytest

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.role import GatewayRole
from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.role import SchedulerLimits, SchedulerRole
from tests.unit.core.builders import plain_member, worker_member

NOW = 1000.0
WORKERS, SEQUENCES = 100, 256


class Pair:
    """A gateway and a scheduler with many workers; what the gateway says reaches the scheduler, and the other way round."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.now = NOW
        self.scheduler = SchedulerRole("s", limits)
        self.gateway = GatewayRole("g")
        self.gateway.handle(plain_member("s", m.MemberKind.CLUSTER_SCHEDULER), self.now)
        self.beat()
        self.sent: list[m.Message] = []
        self.failed: list[g.Fail] = []
        self.records: set[str] = set()

    def beat(self) -> None:
        for number in range(WORKERS):
            self.scheduler.handle(worker_member(f"w{number}", blocks=2, free=0), self.now)

    def to_gateway(self, event: g.GatewayEvent) -> None:
        for command in self.gateway.handle(event, self.now):
            match command:
                case g.SubmitAttempt(choice_id, epoch, attempt_id):
                    self.records.add(choice_id)
                    order = m.SubmitRequest(choice_id, epoch, m.StreamRef("g", attempt_id, 1), 10, 10)
                    self.to_scheduler(order)
                case g.CloseAttempts(order):
                    self.records.discard(order.choice_id)
                    self.to_scheduler(order)
                case g.DeleteRecord(choice_id):
                    self.records.discard(choice_id)
                case g.Fail():
                    self.failed.append(command)

    def to_scheduler(self, event: m.SubmitRequest | m.CloseRequest | m.Tick) -> None:
        for command in self.scheduler.handle(event, self.now):
            if isinstance(command, m.Send):
                self.sent.append(command.message)
                if isinstance(command.message, m.RequestRejected | m.RequestAccepted):
                    self.to_gateway(command.message)

    def submit(self) -> None:
        for number in range(SEQUENCES):
            self.to_gateway(g.RequestReceived(f"r{number}", 10, 10))


def test_a_full_mesh_sends_one_message_for_each_refused_sequence() -> None:
    """As many as one HTTP request may have, on a hundred workers: an overload does not feed itself."""
    pair = Pair(SchedulerLimits(max_queued=0))
    pair.submit()
    assert [type(message) for message in pair.sent] == [m.RequestRejected] * SEQUENCES
    assert len(pair.failed) == SEQUENCES
    assert pair.records == set()


def test_so_it_is_where_they_have_waited_in_vain() -> None:
    pair = Pair(SchedulerLimits(max_queue_s=5.0))
    pair.submit()
    pair.sent.clear()
    pair.now += 5.1
    pair.beat()
    pair.to_scheduler(m.Tick())
    assert [type(message) for message in pair.sent] == [m.RequestRejected] * SEQUENCES
    assert pair.records == set()


@pytest.mark.parametrize("deadline_s", [1.0, 5.0])
def test_so_it_is_at_a_deadline(deadline_s: float) -> None:
    pair = Pair(SchedulerLimits())
    for number in range(SEQUENCES):
        pair.to_gateway(g.RequestReceived(f"r{number}", 10, 10, pair.now + deadline_s))
    pair.sent.clear()
    pair.now += deadline_s
    pair.to_gateway(m.Tick())
    pair.to_scheduler(m.Tick())
    assert pair.sent == []
    assert pair.records == set()


def test_a_closing_that_the_scheduler_does_not_understand_reaches_the_workers_that_have_it() -> None:
    """It has just started; its gateway has the workers of the assignment, and names no others."""
    pair = Pair(SchedulerLimits())
    pair.gateway.handle(g.RequestReceived("r", 10, 10), pair.now)
    pair.gateway.handle(m.RequestAccepted("r", 1), pair.now)
    pair.gateway.handle(m.RequestAssigned("r", 1, "w3", "w7"), pair.now)
    pair.to_gateway(g.RequestClosed("r"))
    assert pair.sent == [m.CancelRequest("r", 1), m.CancelRequest("r", 1)]
