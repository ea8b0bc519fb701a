"""A scheduler on a bench: workers that answer when the test lets them."""

from __future__ import annotations

from typing import TypeVar

from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvTarget
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerCommand, SchedulerEvent, SchedulerLimits, SchedulerRole
from tests.unit.core.builders import only, worker_member

T = TypeVar("T")

PROMPT = worker_member("p", m.Pool.PROMPT)
TOKEN = worker_member("t")


def submission(
    choice_id: str = "r", epoch: int = 1, *, prompt: int = 30, new: int = 10, gateway: str = "g", priority: int = 0
) -> m.SubmitRequest:
    """A request; with the defaults its 40 tokens fill 3 blocks of 16."""
    return m.SubmitRequest(choice_id, epoch, m.StreamRef(gateway, 100 + epoch, 1), prompt, new, priority=priority)


def reserved(choice_id: str = "r", epoch: int = 1, worker_id: str = "t", *, number: int = 1) -> m.KvReserved:
    """The grant of the order of that number; the scheduler's orders are numbered from 1."""
    return m.KvReserved(choice_id, epoch, number, KvTarget(worker_id, 1, f"{worker_id}:2", (0, 1, 2)))


def accepted(choice_id: str = "r", epoch: int = 1, worker_id: str = "t", *, number: int = 1) -> m.PrefillAccepted:
    """The same of an order for both phases."""
    return m.PrefillAccepted(choice_id, epoch, number, worker_id)


def refused(choice_id: str = "r", epoch: int = 1, worker_id: str = "t", *, number: int = 1) -> m.KvRefused:
    return m.KvRefused(choice_id, epoch, number, worker_id, "no room")


class SchedulerBench:
    """A role and a clock; without a `policy` the pools' rules decide alone, whatever a placement delays."""

    def __init__(
        self, *workers: m.Member, limits: SchedulerLimits | None = None, policy: PoolPolicy | None = None
    ) -> None:
        self.now = 1000.0
        self.role = SchedulerRole("s", limits, policy=policy or PoolPolicy(break_even=False))
        for worker in workers or (PROMPT, TOKEN):
            self.role.handle(worker, self.now)

    def feed(self, event: SchedulerEvent, after_s: float = 0.0) -> list[SchedulerCommand]:
        """Let time pass, then the event happen."""
        self.now += after_s
        return self.role.handle(event, self.now)

    def placements(self, event: SchedulerEvent, after_s: float = 0.0) -> list[tuple[str, str]]:
        """Feed an event; return the (request, worker) of each placement."""
        return placements(self.feed(event, after_s))

    def assign(self, choice_id: str = "r", epoch: int = 1, worker_id: str = "t") -> list[SchedulerCommand]:
        """Submit, and let the chosen worker accept."""
        commands = self.feed(submission(choice_id, epoch))
        for order in only(commands, m.ReserveKv):
            return self.feed(reserved(choice_id, epoch, worker_id, number=order.assignment))
        (start,) = only(commands, m.StartPrefill)
        return self.feed(accepted(choice_id, epoch, worker_id, number=start.assignment))

    def rejection(self, event: SchedulerEvent, after_s: float = 0.0) -> m.RequestRejected:
        """Feed what leads to exactly one rejection."""
        (rejected,) = only(self.feed(event, after_s), m.RequestRejected)
        return rejected


def placements(commands: list[SchedulerCommand]) -> list[tuple[str, str]]:
    """Return the (request, worker) of each order that places a request."""
    found = []
    for command in commands:
        match command:
            case m.Send(worker_id, m.ReserveKv(choice_id)):
                found.append((choice_id, worker_id))
            case m.Send(worker_id, m.StartPrefill(choice_id, target=target)) if target.worker_id == worker_id:
                found.append((choice_id, worker_id))
    return found


def cancels(commands: list[SchedulerCommand]) -> list[tuple[str, str, int]]:
    """(worker, request, epoch) of each cancellation."""
    found = []
    for command in commands:
        if isinstance(command, m.Send) and isinstance(command.message, m.CancelRequest):
            found.append((command.recipient_id, command.message.choice_id, command.message.epoch))
    return found
