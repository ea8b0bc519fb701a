"""A planner on a bench: the test is its workers, its watcher and its store."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.messages import mesh as m
from spotwise.core.planner import commands as c
from spotwise.core.planner.plan import Plan
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.role import PlannerRole
from tests.unit.core.builders import worker_member

#: Of a worker's notice, and what is kept free before its end.
NOTICE_S, MARGIN_S = 20.0, 1.0


def sequence(choice_id: str = "r", tokens: int = 100, remaining: int = 100_000, **fields: str) -> m.SurveyedSequence:
    """A sequence whose answer is too long for any notice, unless told otherwise."""
    return m.SurveyedSequence(choice_id, 1, tokens, max(tokens, 50), remaining, **fields)


def notice(
    worker_id: str, deadline_s: float, kind: m.InterruptionKind = m.InterruptionKind.NOTICE
) -> m.InterruptionReported:
    """A watcher's report."""
    at_s = None if kind is m.InterruptionKind.WITHDRAWN else deadline_s
    return m.InterruptionReported("watcher", f"drain-{worker_id}", kind, (worker_id,), at_s)


class PlannerBench:
    """A role with a term and a clock; workers `a` (which leaves), `b` and `c`, with blocks for everything.

    Attributes:
        sent: all that it sent, with the times.
        held: what the surveyed workers hold.
        devices: reports of the devices that answer surveys.
        answers, drains, reshapes: to operators, of workers that retire, and what was logged of re-shapes.
    """

    def __init__(self, policy: PlannerPolicy | None = None, *, term: int | None = 5, plan: Plan | None = None) -> None:
        self.now = 1000.0
        self.role = PlannerRole("planner", policy or PlannerPolicy())
        self.workers = {each: worker_member(each, blocks=100_000) for each in ("a", "b", "c")}
        self.sent: list[tuple[float, m.Send]] = []
        self.changes: list[c.ReportChange] = []
        self.plans: list[Plan] = []
        self.held: dict[str, list[m.SurveyedSequence]] = {}
        self.devices: dict[str, m.DeviceSurveyed] = {}
        self.answers: list[c.AnswerReshape] = []
        self.drains: list[tuple[float, m.Drain]] = []
        self.reshapes: list[c.ReportReshape] = []
        self.stores = True
        self.store_answers = True
        self.term = term
        for member in self.workers.values():
            self.feed(member)
        if term is not None:
            self.feed(c.TermHeld(term, 1e12, plan))

    def feed(self, event: c.PlannerEvent) -> None:
        """Let an event happen, answer surveys, and store plans."""
        for command in self.role.handle(event, self.now):
            match command:
                case m.Send(worker_id, m.SurveyWorker(_, number)):
                    surveyed = m.WorkerSurveyed(worker_id, number, 0.02, tuple(self.held.get(worker_id, ())))
                    if worker_id in self.held:
                        self.feed(surveyed)
                case m.Send(device_id, m.SurveyDevice(_, number)):
                    if device_id in self.devices:
                        self.feed(replace(self.devices[device_id], number=number))
                case m.Send():
                    self.sent.append((self.now, command))
                case c.StorePlan(plan):
                    self.plans.append(plan)
                    if self.store_answers:
                        self.feed(c.PlanStored(plan.version, self.stores))
                case c.ReportChange():
                    self.changes.append(command)
                case c.AnswerReshape():
                    self.answers.append(command)
                case c.PublishDrain(drain):
                    self.drains.append((self.now, drain))
                case c.ReportReshape():
                    self.reshapes.append(command)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a tick ten times a second, and heartbeats of all workers."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            for member in list(self.workers.values()):
                self.feed(member)
            self.feed(m.Tick())

    def drain(self, worker_id: str = "a", notice_s: float = NOTICE_S) -> float:
        """Let a worker drain, as its heartbeats show; return its deadline."""
        deadline_s = self.now + notice_s
        draining = replace(self.workers[worker_id], state=m.MemberState.DRAINING, leaves_at_s=deadline_s)
        self.workers[worker_id] = draining
        self.feed(draining)
        return deadline_s

    def orders(self, kind: type) -> list[tuple[float, m.Send]]:
        """The orders of a kind, with the times."""
        return [(at_s, send) for at_s, send in self.sent if isinstance(send.message, kind)]

    @property
    def moves(self) -> list[tuple[float, str, str]]:
        """Moves that were ordered: when, of which request, to which worker."""
        return [
            (at_s, send.message.choice_id, send.message.target_id)
            for at_s, send in self.orders(m.MoveRequest)
            if isinstance(send.message, m.MoveRequest)
        ]

    @property
    def given_back(self) -> list[tuple[float, str, str]]:
        """Requests that were given back: when, which, why."""
        return [
            (at_s, send.message.choice_id, send.message.reason)
            for at_s, send in self.orders(m.GiveBackRequest)
            if isinstance(send.message, m.GiveBackRequest)
        ]

    def ended(
        self, choice_id: str, target_id: str, outcome: m.MoveOutcome, worker_id: str = "a", pause_s: float = 0.0
    ) -> None:
        """A move ended."""
        self.feed(m.MoveEnded(choice_id, 1, worker_id, target_id, outcome, "", 100, 0.01, pause_s))
