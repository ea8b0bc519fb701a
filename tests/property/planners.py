"""The migration planners of a whole mesh in one process: real roles, a store that leases the term, and watchers that repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages import mesh as m
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner import commands as c
from spotwise.core.planner.plan import Plan, PlannedDeployment
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.role import PlannerRole
from spotwise.wire.roles import MeshRole
from tests.property.mesh_world import MeshWorld

LEASE_S = 1.5
RENEW_S = 0.5
REPORT_EVERY_S = 2.0


class Planners:
    """Some planners, of which the one with the lease acts.

    Attributes:
        roles: the planners that run.
        orders: moves and requests given back that they ordered.
        answers: to orders of re-shapes.
        reshapes: what they logged of re-shapes.
        store_away_until_s: until then the store answers no planner.
    """

    def __init__(
        self,
        world: MeshWorld,
        count: int = 2,
        policy: PlannerPolicy | None = None,
        fleet_types: Sequence[FleetType] = (),
        fleet_policy: FleetPolicy | None = None,
    ) -> None:
        self.world = world
        self.policy = policy or PlannerPolicy(survey_s=0.2, margin_s=0.3, move_latency_s=0.01, kv_token_s=1e-5)
        self.roles: dict[str, PlannerRole] = {}
        self.view: m.FleetView | None = None
        self._fleet = fleet_types, fleet_policy
        self._paused: dict[str, list[Callable[[], None]]] = {}
        self.orders: list[m.Send] = []
        self.changes: list[c.ReportChange] = []
        self.answers: list[c.AnswerReshape] = []
        self.reshapes: list[c.ReportReshape] = []
        self.store_away_until_s = 0.0
        self._holder: PlannerRole | None = None
        self._lease_ends_s = 0.0
        self._term = 0
        self._held: dict[str, int] = {}
        self._plan: Plan | None = None
        world.planners = self
        for number in range(count):
            self.start(f"planner-{number}")

    def start(self, planner_id: str) -> None:
        """Run a planner, after an earlier one of this id if there was any."""
        if planner_id not in self.roles:
            self.roles[planner_id] = role = PlannerRole(planner_id, self.policy, *self._fleet)
            self._held.pop(planner_id, None)
            self._hold(planner_id, role)

    def kill(self, planner_id: str) -> None:
        """End a planner; its lease runs out."""
        self.roles.pop(planner_id, None)
        self._paused.pop(planner_id, None)

    def pause(self, planner_id: str, seconds: float) -> None:
        """Let a planner stand still, as after SIGSTOP; what comes waits, and its lease is not renewed."""
        if planner_id in self.roles and planner_id not in self._paused:
            waiting = self._paused[planner_id] = list[Callable[[], None]]()
            self.world.at(seconds, partial(self._resume, planner_id, seconds, waiting))

    def _resume(self, planner_id: str, seconds: float, waiting: list[Callable[[], None]]) -> None:
        if self._paused.get(planner_id) is waiting:
            del self._paused[planner_id]
            self.feed(planner_id, m.Tick(away_s=seconds))
            for action in waiting:
                action()

    def look(self) -> m.FleetView | None:
        """Return the view of the planner that acts."""
        self.view = None
        for planner_id in list(self.roles):
            self.feed(planner_id, c.FleetAsked(1))
        return self.view

    def receive_all(self, sender: str, message: Any) -> None:
        for planner_id in list(self.roles):
            if not self.world.loses(message):
                self.world.transmit(sender, planner_id, partial(self.feed, planner_id, message))

    def tick(self, tick: m.Tick) -> None:
        for planner_id in list(self.roles):
            if planner_id not in self._paused:
                self.feed(planner_id, tick)

    def feed(self, planner_id: str, event: Any) -> None:
        role = self.roles.get(planner_id)
        if role is None:
            return
        if (waiting := self._paused.get(planner_id)) is not None:
            waiting.append(partial(self.feed, planner_id, event))
            return
        leaving = role.leaving
        for command in role.handle(event, self.world.now):
            match command:
                case m.Send(_, message):
                    if isinstance(message, m.MoveRequest | m.GiveBackRequest):
                        self.orders.append(command)
                        self._assert_planned(leaving, command)
                    if isinstance(message, m.LeadGroup):
                        self._assert_to_be(role, message)
                    self.world.send(MeshRole.PLANNER, planner_id, command)
                case c.PublishDrain(drain):
                    assert self.deployment is not None
                    assert drain.worker_id in {*self.deployment.retiring_ids, *role.leaving}
                    self._publish(drain)
                case c.AnswerReshape():
                    self.answers.append(command)
                case c.ReportReshape():
                    self.reshapes.append(command)
                case c.StorePlan(plan):
                    self.world.at(self.world.delay(0.2), partial(self._store, planner_id, role, plan))
                case c.ReportChange():
                    self.changes.append(command)
                case c.PublishFleetOrder(order):
                    assert self.world.market is not None
                    self.world.market.ordered(planner_id, order)
                case c.AnswerFleet(_, view):
                    self.view = view

    def _assert_planned(self, leaving: frozenset[str], order: m.Send) -> None:
        """What a worker is ordered that was known to leave is in the store before; a notice of a device may be found in the
        same moment as an order that relieves its worker.
        """
        if order.recipient_id in leaving:
            assert self._plan is not None
            assert order.recipient_id in [leave.worker_id for leave in self._plan.leaves], "not planned"

    def _assert_to_be(self, role: PlannerRole, order: m.LeadGroup) -> None:
        """A group that a device is told to lead is in the store before, and has no device that has to leave."""
        assert not role.leaving_devices & set(order.device_ids)
        assert self.deployment is not None
        assert order.worker_id in [group.worker_id for group in self.deployment.groups], "not planned"

    @property
    def deployment(self) -> PlannedDeployment | None:
        """As the store has it."""
        return None if self._plan is None else self._plan.deployment

    def reshape(self, number: int, config: ParallelConfig) -> None:
        """An operator orders a configuration; all planners receive that."""
        for planner_id in list(self.roles):
            self.feed(planner_id, c.ReshapeRequested(number, m.ReshapeMesh(config)))

    def _publish(self, drain: m.Drain) -> None:
        if self.world.rng.random() >= self.world.loss:
            self.world.transmit("planner", drain.worker_id, partial(self._drain, drain.worker_id, drain))

    def _is_away(self) -> bool:
        return self.world.now < self.store_away_until_s

    def _hold(self, planner_id: str, role: PlannerRole) -> None:
        if self.roles.get(planner_id) is not role:
            return
        now = self.world.now
        if planner_id in self._paused:
            self.world.at(RENEW_S, partial(self._hold, planner_id, role))
            return
        if self._is_away():
            self.feed(planner_id, c.TermLost())
            self._held.pop(planner_id, None)
        elif self._holder in (None, role) or self._lease_ends_s <= now:
            if self._holder is not role or self._lease_ends_s <= now:
                self._term += 1
            self._holder, self._lease_ends_s = role, now + LEASE_S
            plan = None if self._held.get(planner_id) == self._term else self._plan
            self._held[planner_id] = self._term
            answer = c.TermHeld(self._term, now + LEASE_S, plan)
            self.world.at(self.world.delay(0.05), partial(self._answer, planner_id, role, answer))
        elif self._held.pop(planner_id, None) is not None:
            self.feed(planner_id, c.TermLost())
        self.world.at(RENEW_S, partial(self._hold, planner_id, role))

    def _store(self, planner_id: str, role: PlannerRole, plan: Plan) -> None:
        stored = not self._is_away() and self._holder is role and self.world.now < self._lease_ends_s
        if stored:
            assert self._plan is None or (plan.term, plan.change) >= (self._plan.term, self._plan.change)
            self._plan = plan
        self._answer(planner_id, role, c.PlanStored(plan.version, stored))

    def _answer(self, planner_id: str, role: PlannerRole, answer: Any) -> None:
        if self.roles.get(planner_id) is role:
            self.feed(planner_id, answer)

    # --- notices --------------------------------------------------------------------------------------------------------

    def notice(self, worker_id: str, seconds: float) -> None:
        """A worker gets a notice, as its watcher gives it: to the worker, and to planners again and again."""
        worker = self.world.workers.get(worker_id)
        if worker is None:
            return
        deadline_s = self.world.now + seconds
        drain = m.Drain(worker_id, deadline_s)
        self.world.transmit("watcher", worker_id, partial(self._drain, worker_id, drain))
        kind = m.InterruptionKind.NOTICE
        report = m.InterruptionReported("watcher", f"drain-{worker_id}-{deadline_s}", kind, (worker_id,), deadline_s)
        self._report(report, worker.member.incarnation)

    def report_devices(self, report: m.InterruptionReported, again: int) -> None:
        """A watcher reports a notice of devices, or that it is withdrawn, and repeats that some times."""
        self.receive_all("watcher", report)
        if again:
            self.world.at(REPORT_EVERY_S, partial(self.report_devices, report, again - 1))

    def _drain(self, worker_id: str, drain: m.Drain) -> None:
        worker = self.world.workers.get(worker_id)
        if worker is not None and worker.stalled:
            worker.inbox.append(partial(self.world.feed_worker, worker, drain))
        elif worker is not None:
            self.world.feed_worker(worker, drain)

    def _report(self, report: m.InterruptionReported, incarnation: int) -> None:
        worker = self.world.workers.get(report.worker_ids[0])
        if worker is not None and worker.member.incarnation == incarnation:
            self.receive_all("watcher", report)
            self.world.at(REPORT_EVERY_S, partial(self._report, report, incarnation))
