"""The migration planner: moves the requests of workers that leave, or run out of KV blocks, and changes which groups serve.

Law: only the planner with the lease acts (`TermHeld`), and on no plan that is not in the store. Its orders carry its term.
A worker leaves where a watcher reports its notice, or its own heartbeats show a deadline: each of the two is enough.
Changes of the fleet come one after another (`FleetChanges`); each lasts until the workers that leave hold nothing or are gone.
All else is learned from surveys and heartbeats: a planner that takes over continues where the last one ended.
Without a planner, workers drain by themselves.
Source: SpotServe, sections 3.1 and 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.types import FleetType
from spotwise.core.membership.membership import MemberJoined, Membership, MembershipEvent
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberKind, MemberState
from spotwise.core.migration.fleet import events as f
from spotwise.core.planner import commands as c
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.fleet_planning import FleetPlanning
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.targets import Targets
from spotwise.core.planner.tenure import Tenure, name_of


class PlannerRole:
    """The planner's state machine: `handle(event, now) -> commands`."""

    def __init__(
        self,
        planner_id: str,
        policy: PlannerPolicy | None = None,
        fleet_types: Sequence[FleetType] = (),
        fleet_policy: FleetPolicy | None = None,
    ) -> None:
        self.planner_id = planner_id
        self.policy = policy = policy or PlannerPolicy()
        self._membership = Membership(policy.member_timeout_s)
        self._targets = Targets(policy)
        self._cost = ChangeCost(policy.move_latency_s, policy.kv_token_s)
        self._watch = DeviceWatch(self._membership)
        self._fleet = FleetPlanning(planner_id, fleet_types, fleet_policy or FleetPolicy(), self._watch, self._cost)
        self._deadlines: dict[str, float] = {}  # of workers under notice, by name
        self._by_devices: tuple[m.Member, ...] = ()  # workers of which a device has to leave
        self._tenure: Tenure | None = None
        self._term_ends_s = 0.0
        self._commands: list[c.PlannerCommand] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            m.Member: self._heartbeat,
            m.InterruptionReported: self._interruption,
            m.LoadReported: self._fleet.loaded,
            m.FleetReported: self._fleet.reported,
            m.WorkerSurveyed: self._surveyed,
            m.DeviceSurveyed: self._device_surveyed,
            m.GroupFormed: self._group_formed,
            m.MoveEnded: self._move_ended,
            m.Tick: self._tick,
            c.TermHeld: self._term_held,
            c.TermLost: self._term_lost,
            c.PlanStored: self._plan_stored,
            c.ReshapeRequested: self._reshape_requested,
            c.FleetAsked: self._fleet_asked,
        }

    @property
    def term(self) -> int | None:
        """The term that it holds; `None` where it stands by."""
        return None if self._tenure is None else self._tenure.term

    @property
    def leaving(self) -> frozenset[str]:
        """The workers under notice."""
        return frozenset(name.rpartition("/")[0] for name in self._deadlines)

    @property
    def leaving_devices(self) -> frozenset[str]:
        """The devices that are present and under notice."""
        return frozenset(self._watch.leaving())

    def handle(self, event: c.PlannerEvent, now: float) -> list[c.PlannerCommand]:
        """Handle one event at Unix time `now` (seconds); return the commands that follow, in order."""
        self._commands = []
        self._handlers[type(event)](event, now)
        if self._tenure is not None and now < self._term_ends_s and not isinstance(event, m.Member):
            self._follow_devices(self._tenure.reshaping.leaving_workers(), now)
            self._commands += self._tenure.drive(now)
        return self._commands

    def _heartbeat(self, member: m.Member, now: float) -> None:
        for change in self._membership.observe(member, now):
            self._member_changed(change, now)
        if self._membership.get(member.id) is not member:
            return
        self._watch.reported(member)
        if member.pool is None:
            return
        self._targets.reported(member, now)
        if member.leaves_at_s is not None:
            self._noticed(member, member.leaves_at_s, now)
        if self._tenure is not None and name_of(member) not in self._deadlines:
            self._tenure.relief.reported(member, now)

    def _interruption(self, report: m.InterruptionReported, now: float) -> None:
        for worker_id in report.worker_ids:
            member = self._membership.get(worker_id)
            if member is None:
                continue  # the watcher repeats itself
            is_device = member.kind is MemberKind.DEVICE
            if report.kind is m.InterruptionKind.NOTICE and report.deadline_s is not None:
                if is_device:
                    self._watch.noticed(member, report.deadline_s)
                else:
                    self._noticed(member, report.deadline_s, now)
            elif report.kind is m.InterruptionKind.WITHDRAWN:
                if is_device:
                    self._watch.withdrawn(member)
                else:
                    self._withdrawn(member, now)

    def _follow_devices(self, deadlines: Mapping[str, float], now: float) -> None:
        """Let the workers leave of which a device does, and those stay of which none does any more."""
        leaving = tuple(each for each in self._membership.workers() if each.id in deadlines)
        for worker in leaving:
            self._noticed(worker, deadlines[worker.id], now)
        for worker in self._by_devices:
            known = self._membership.get(worker.id)
            if worker.id not in deadlines and known is not None and known.incarnation == worker.incarnation:
                self._withdrawn(known, now)
        self._by_devices = leaving

    def _noticed(self, member: m.Member, deadline_s: float, now: float) -> None:
        """Note the earliest deadline of a worker: it keeps to that itself."""
        name = name_of(member)
        known_s = self._deadlines.get(name)
        if known_s is not None and known_s <= deadline_s:
            return
        self._deadlines[name] = deadline_s
        if self._tenure is not None:
            self._tenure.relief.forget(member.id)
            self._tenure.feed(f.InstanceNoticed(name, deadline_s), now)

    def _withdrawn(self, member: m.Member, now: float) -> None:
        """Forget a notice, unless its worker drains: then it leaves all the same."""
        name = name_of(member)
        if member.state is MemberState.DRAINING or self._deadlines.pop(name, None) is None:
            return
        if self._tenure is not None:
            self._tenure.withdrawn(name, now)

    def _member_changed(self, change: MembershipEvent, now: float) -> None:
        if isinstance(change, MemberJoined):
            self._targets.joined(change.member)
            if self._tenure is not None and change.member.pool is not None:
                self._tenure.feed(f.InstanceReturned(name_of(change.member)), now)
            return
        name = name_of(change.member)
        self._watch.worker_lost(change.member, has_left=change.drained)
        self._targets.lost(change.member)
        self._deadlines.pop(name, None)
        if self._tenure is not None and change.member.pool is not None:
            self._tenure.relief.forget(change.member.id)
            self._tenure.feed(f.InstanceLost(name), now)

    def _surveyed(self, report: m.WorkerSurveyed, now: float) -> None:
        if self._tenure is not None:
            self._tenure.surveyed(report, now)

    def _group_formed(self, report: m.GroupFormed, now: float) -> None:
        if self._tenure is not None:
            self._tenure.reshaping.formed(report)

    def _fleet_asked(self, event: c.FleetAsked, now: float) -> None:
        if self._tenure is not None and now < self._term_ends_s:
            view = self._fleet.view(self._tenure.reshaping.serving, now)
            self._commands.append(c.AnswerFleet(event.number, view))

    def _device_surveyed(self, report: m.DeviceSurveyed, now: float) -> None:
        self._fleet.surveyed(report)
        if self._tenure is not None:
            self._tenure.reshaping.surveyed(report)

    def _reshape_requested(self, event: c.ReshapeRequested, now: float) -> None:
        if not self.policy.moves:
            refused = m.ReshapeReply(False, "moves are switched off (SPOTWISE_MOVES); a re-shape needs them")
            self._commands.append(c.AnswerReshape(event.number, refused))
        elif self._tenure is not None and now < self._term_ends_s:
            self._tenure.reshaping.requested(event)

    def _move_ended(self, report: m.MoveEnded, now: float) -> None:
        requests = 1 if self._tenure is None else self._tenure.requests_that_move
        self._cost.learn(report, self._size_of(report.worker_id), self._size_of(report.target_id), requests)
        if self._tenure is not None:
            self._tenure.move_ended(report, now)

    def _tick(self, event: m.Tick, now: float) -> None:
        self._membership.was_away(event.away_s)
        for change in self._membership.expire(now):
            self._member_changed(change, now)

    def _term_held(self, event: c.TermHeld, now: float) -> None:
        self._term_ends_s = event.until_s
        if not self.policy.moves or self.term == event.term:
            return
        self._end_tenure()
        self._tenure = Tenure(
            self.planner_id,
            event.term,
            self.policy,
            self._membership,
            self._watch,
            self._targets,
            self._cost,
            event.plan,
            self._fleet,
            now,
        )
        for member in self._membership.workers():
            deadline_s = self._deadlines.get(name_of(member))
            if deadline_s is None:
                self._tenure.relief.reported(member, now)
            else:
                self._tenure.feed(f.InstanceNoticed(name_of(member), deadline_s), now)

    def _term_lost(self, event: c.TermLost, now: float) -> None:
        self._end_tenure()

    def _end_tenure(self) -> None:
        if self._tenure is not None:
            self._commands += self._tenure.reshaping.term_ended()
            self._tenure = None

    def _plan_stored(self, event: c.PlanStored, now: float) -> None:
        if self._tenure is not None:
            self._tenure.stored(event, now)

    def _size_of(self, worker_id: str) -> int | None:
        """Return the number of processes of a worker that is there."""
        member = self._membership.get(worker_id)
        if member is None:
            return None
        return 1 if member.place is None else member.place.stages * member.place.shards
