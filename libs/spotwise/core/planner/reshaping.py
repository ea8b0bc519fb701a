"""Changes which groups of devices serve: forms new groups beside the old ones, lets those retire, and keeps what is to be.

Law: an ordered configuration becomes a deployment, which is in the store before any order of it is sent (`orders`).
New groups are led again every `ORDER_EVERY_S` until all of them serve; only then old groups drain. A re-shape whose groups are
not whole in time, or that is interrupted before, is abandoned: what was to be new retires, and the old groups are to be again.
All else follows from the deployment and the members: a group that is to be and is missing is led again, and a worker that
retires is drained whenever it is there. So a successor continues where a planner ended, and a lost order costs a second.
A group that an operator or a cloud lets drain is dropped from the deployment, unless one of its devices has to leave: then it
is formed anew where there are devices (`replacement.py`).
Source: reparallelization, SpotServe, section 3.2; new groups beside the old ones are ours (ADR 31).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

from spotwise.core import messages as m
from spotwise.core.members import MemberState
from spotwise.core.membership import Membership
from spotwise.core.migration.fleet.changes import FleetChanges
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner import commands as c
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.deployments import abandoned, adopted, begun, led
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.group_choice import GroupChoice
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.replacement import Replacement, Replacing, described
from spotwise.core.planner.reshape_requests import ReshapeRequests

#: An order is repeated after so long, until its effect shows.
ORDER_EVERY_S = 1.0
#: A worker of which a device leaves drains so much before the margin of its deadline, though new groups are not whole yet.
LAST_CALL_S = 1.0
#: A group without a worker is missing after so long, also for a planner that has just begun to listen.
ABSENT_S = 1.5


class Reshaping:
    """The re-shapes of one planner's term; `deployment` is an earlier term's."""

    def __init__(
        self,
        planner_id: str,
        term: int,
        policy: PlannerPolicy,
        membership: Membership,
        watch: DeviceWatch,
        cost: ChangeCost,
        changes: FleetChanges,
        deployment: PlannedDeployment | None,
        now: float,
    ) -> None:
        self.deployment = deployment
        self._planner_id = planner_id
        self._term = term
        self._policy = policy
        self._membership = membership
        self._changes = changes
        self._began_s = now
        self._cost = cost
        self._watch = watch
        numbers = partial(next, itertools.count(1))
        self._requests = ReshapeRequests(planner_id, membership, watch, cost, numbers)
        self._replacement = Replacement(planner_id, policy, membership, watch, cost, numbers)
        self._before: PlannedDeployment | None = None  # of an order that is not stored yet
        self._absent_since_s: dict[str, float] = {}
        self._ordered_s: dict[str, float] = {}
        self._commands: list[c.PlannerCommand] = []

    @property
    def retiring(self) -> frozenset[str]:
        """The workers that are to hand over what they have."""
        deployment = self.deployment
        if deployment is None:
            return frozenset()
        return frozenset(deployment.left_ids) if self._is_forming else deployment.retiring_ids

    @property
    def groups(self) -> tuple[m.DeviceGroup, ...]:
        """The groups that are to serve."""
        return self._replacement.groups_of(self.deployment)

    @property
    def serving(self) -> tuple[m.DeviceGroup, ...]:
        """Those of them that serve."""
        return tuple(filter(self._serves, self.groups))

    def prefer(self, wanted: ParallelConfig | None) -> None:
        """Let stopgaps have the shape that the market wants."""
        self._replacement.wanted = wanted

    @property
    def takes_orders(self) -> bool:
        """Whether a re-shape can be ordered now."""
        return self._why_not_now() is None

    @property
    def _is_forming(self) -> bool:
        return self.deployment is not None and self.deployment.stage is ReshapeStage.FORMING

    def requested(self, event: c.ReshapeRequested) -> None:
        """Plan what an operator orders, or refuse it."""
        reason = self._why_not_now()
        if reason is None:
            self._requests.take(event)
        else:
            self._requests.refuse(event.number, reason)

    def _why_not_now(self) -> str | None:
        if self._requests.is_busy:
            return "another re-shape is being planned; order this one again in a few seconds"
        if self._replacement.is_due:
            return "devices have to leave, are gone, or have joined; order it again when the planner has answered that"
        deployment = self.deployment
        if deployment is not None and not deployment.stage.is_over:
            return f"the re-shape to {deployment.config} is under way (change {deployment.change}); wait for its end"
        leaving = [
            worker.id
            for worker in self._membership.workers()
            if worker.state is MemberState.DRAINING or worker.id in self.retiring
        ]
        if leaving:
            leaves = "leaves" if len(leaving) == 1 else "leave"
            return f"{', '.join(leaving)} {leaves}; order the re-shape again when that has ended"
        if not self._changes.is_settled:
            return "another change of the fleet is under way; order the re-shape again when that has ended"
        return None

    def surveyed(self, report: m.DeviceSurveyed) -> None:
        """Take a device's answer."""
        self._requests.surveyed(report)
        self._replacement.surveyed(report)

    def interrupted(self, worker_id: str, reason: str, now: float, *, is_lost: bool) -> None:
        """Abandon an operator's re-shape that has moved nothing yet; a new group that was lost is only formed again."""
        deployment = self.deployment
        if deployment is None or not self._is_forming:
            self._requests.refuse_pending(f"{worker_id} {reason}; order the re-shape again when that has ended")
        elif deployment.cause or worker_id in deployment.left_ids or (is_lost and worker_id in deployment.new_ids):
            return
        elif worker_id in [group.worker_id for group in (*deployment.groups, *deployment.retiring)]:
            self._abandon(deployment, f"{worker_id} {reason}", now)

    def moved(self, report: m.MoveEnded) -> None:
        """Count a request that has moved."""
        if self._is_moving_from(report.worker_id) and report.outcome is m.MoveOutcome.MOVED:
            assert self.deployment is not None
            self.deployment = self.deployment.with_move(report.pause_s)

    def formed(self, report: m.GroupFormed) -> None:
        """Count the weights that a new group's devices got."""
        if self.deployment is not None:
            self.deployment = self.deployment.with_weights(report)

    def sent(self, orders: list[m.Send]) -> None:
        """Count requests that are given back."""
        count = sum(
            isinstance(each.message, m.GiveBackRequest) for each in orders if self._is_moving_from(each.recipient_id)
        )
        if count and self.deployment is not None:
            self.deployment = replace(self.deployment, given_back=self.deployment.given_back + count)

    def _is_moving_from(self, worker_id: str) -> bool:
        deployment = self.deployment
        return (
            deployment is not None and deployment.stage is ReshapeStage.MOVING and worker_id in deployment.retiring_ids
        )

    def not_stored(self) -> None:
        """Forget an order whose plan the store has refused."""
        if self._requests.awaits_store and self.deployment is not None:
            reason = "the plan could not be stored; order the re-shape again when Redis answers"
            self._requests.refuse_pending(reason)
            self._report(replace(self.deployment, stage=ReshapeStage.ABANDONED, reason=reason), 0.0)
            self.deployment = self._before

    def term_ended(self) -> list[c.PlannerCommand]:
        """Return the answer to an order that the next term knows nothing of."""
        ended = "the planner's lease ended while it planned"
        if self._requests.awaits_store:
            self._requests.refuse_pending(
                f"{ended}; the plan may have been stored, and is carried out then: `spotwise status` shows the groups"
            )
        else:
            self._requests.refuse_pending(f"{ended}; order this re-shape again")
        return self._requests.commands()

    def advance(self, now: float) -> list[c.PlannerCommand]:
        """Follow what operators order and members show; return surveys, answers and reports."""
        if (planned := self._requests.planned(self.groups, self._changes.next_change, now)) is not None:
            self._begin(*planned, now)
        self._replace(now)
        deployment = self.deployment
        if deployment is not None:
            self._note_absent(deployment, now)
            if deployment.stage is ReshapeStage.FORMING:
                deployment = self._formed(deployment, now)
            if deployment.stage is ReshapeStage.MOVING and self._is_over(deployment, now):
                self._change_stage(replace(deployment, stage=ReshapeStage.DONE, ended_s=now), now)
            self._drop_drained(now)
        commands, self._commands = self._requests.commands() + self._commands, []
        return commands

    def _replace(self, now: float) -> None:
        """Begin the change that devices make necessary, where one can be."""
        deployment = self.deployment
        self._replacement.look(deployment, self._changes.next_change, now)
        if deployment is not None and self._is_forming:
            lost = [group.worker_id for group in deployment.new if self._replacement.is_short(group, deployment.groups)]
            if lost:
                self._abandon(deployment, f"devices of {', '.join(lost)} have to leave, or are gone", now)
            return
        groups = self._replacement.groups_of(deployment)
        is_noticed = any(self._watch.first_deadline_s(group) is not None for group in groups)
        if deployment is None and (is_noticed or self._replacement.is_due):
            self.deployment = adopted(groups, self._changes.number_change(), now)
        if not self._replacement.is_due or self._requests.awaits_store:
            return
        self._requests.refuse_pending("devices have to leave, are gone, or have joined; order the re-shape again")
        self._commands += self._replacement.surveys(now)
        planned = self._replacement.planned(self.deployment, self._changes.next_change, now)
        if planned is not None:
            self._begin(described(planned.choice.prediction.groups), planned.choice, now, planned)

    def _begin(self, config: str, choice: GroupChoice, now: float, replacing: Replacing | None = None) -> None:
        self._before = self.deployment
        change, form_until_s = self._changes.number_change(), now + self._policy.form_s
        seen = self._watch.sighted()
        self._change_stage(begun(self._before, config, choice, replacing, seen, change, now, form_until_s), now)

    def _formed(self, deployment: PlannedDeployment, now: float) -> PlannedDeployment:
        """Let requests move once all new groups serve; abandon the re-shape where they do not in time."""
        late = [group.worker_id for group in deployment.new if not self._serves(group)]
        if not late:
            if deployment.new_ids:
                self._cost.learn_forming(now - deployment.began_s, deployment.new, deployment.migration_s)
            return self._change_stage(replace(deployment, stage=ReshapeStage.MOVING, served_s=now), now)
        if now >= deployment.form_until_s:
            seconds = deployment.form_until_s - deployment.began_s
            self._replacement.rest(now)
            return self._abandon(deployment, f"{', '.join(late)} did not serve within {seconds:g} s", now)
        return deployment

    def _abandon(self, deployment: PlannedDeployment, reason: str, now: float) -> PlannedDeployment:
        self._requests.refuse_pending(reason)
        return self._change_stage(abandoned(deployment, reason, now), now)

    def _change_stage(self, deployment: PlannedDeployment, now: float) -> PlannedDeployment:
        self.deployment = deployment
        self._ordered_s.clear()
        self._report(deployment, now - deployment.began_s)
        return deployment

    def _report(self, deployment: PlannedDeployment, seconds: float) -> None:
        self._commands.append(
            c.ReportReshape(deployment.change, deployment.config, deployment.stage, seconds, deployment.reason)
        )

    def _note_absent(self, deployment: PlannedDeployment, now: float) -> None:
        absent = [group.worker_id for group in deployment.groups if self._membership.get(group.worker_id) is None]
        self._absent_since_s = {worker_id: self._absent_since_s.get(worker_id, now) for worker_id in absent}

    def _is_over(self, deployment: PlannedDeployment, now: float) -> bool:
        """A planner that has just begun may not have heard of all workers."""
        gone = all(self._membership.get(group.worker_id) is None for group in deployment.retiring)
        return gone and now - self._began_s >= ABSENT_S

    def _drop_drained(self, now: float) -> None:
        deployment = self.deployment
        if deployment is None:
            return
        groups = (*deployment.groups, *deployment.retiring)
        missed = tuple(group.worker_id for group in groups if self._is_missed(group, deployment))
        staying = tuple(
            group
            for group in deployment.groups
            if self._is_forming or group.worker_id in missed or not self._drains(group, now)
        )
        if (staying, missed) != (deployment.groups, deployment.missed_ids):
            self.deployment = replace(deployment, groups=staying, missed_ids=missed)

    def _is_missed(self, group: m.DeviceGroup, deployment: PlannedDeployment) -> bool:
        """One whose device has to leave is formed anew as soon as there are devices for it."""
        has_to_leave = self._watch.first_deadline_s(group) is not None
        return has_to_leave or (group.worker_id in deployment.missed_ids and not self._serves(group))

    def _serves(self, group: m.DeviceGroup) -> bool:
        member = self._membership.get(group.worker_id)
        return member is not None and member.state is MemberState.READY

    def _drains(self, group: m.DeviceGroup, now: float) -> bool:
        """A worker whose engine failed drains as well, until now: that one is led again."""
        member = self._membership.get(group.worker_id)
        return (
            member is not None
            and member.state is MemberState.DRAINING
            and member.leaves_at_s is not None
            and member.leaves_at_s > now
        )

    def orders(self, stored: PlannedDeployment | None, now: float) -> list[c.PlannerCommand]:
        """Return the orders that are due, where the store has the deployment that they follow from."""
        deployment = self.deployment
        if deployment is None or not deployment.orders_the_same(stored):
            return []
        self._requests.stored()
        self._commands += self._requests.commands()
        for group in deployment.groups:
            if self._is_to_be_led(group, deployment, now) and self._is_due(group.worker_id, now):
                self._commands.append(m.Send(group.device_ids[0], self._lead(group, deployment)))
        for group in (*deployment.groups, *deployment.retiring):
            member = self._membership.get(group.worker_id)
            if member is None or member.state is MemberState.DRAINING:
                continue
            drain = self._drain(member, group, now)
            if drain is not None and self._is_due(group.worker_id, now):
                self._commands.append(c.PublishDrain(drain))
        commands, self._commands = self._commands, []
        return commands

    def _is_to_be_led(self, group: m.DeviceGroup, deployment: PlannedDeployment, now: float) -> bool:
        if self._replacement.is_short(group, deployment.groups):
            return False
        if self._is_forming and group.worker_id in deployment.new_ids:
            return not self._serves(group)
        absent_since_s = self._absent_since_s.get(group.worker_id)
        return absent_since_s is not None and now - absent_since_s >= ABSENT_S

    def _is_due(self, worker_id: str, now: float) -> bool:
        ordered_s = self._ordered_s.get(worker_id)
        if ordered_s is not None and now - ordered_s < ORDER_EVERY_S:
            return False
        self._ordered_s[worker_id] = now
        return True

    def _lead(self, group: m.DeviceGroup, deployment: PlannedDeployment) -> m.LeadGroup:
        others_serve = any(map(self._serves, (*deployment.groups, *deployment.retiring)))
        return led(group, deployment, self._planner_id, self._term, serves_early=not others_serve)

    def _drain(self, member: m.Member, group: m.DeviceGroup, now: float) -> m.Drain | None:
        """Return the drain of a worker that is to leave now, with the deadline of the first of its devices that leaves."""
        deadline_s = self._watch.first_deadline_s(group)
        if group.worker_id in self.retiring:
            # One that does not serve holds nothing, and leaves at once.
            until_s = now + self._policy.reshape_drain_s * (member.state is MemberState.READY)
            until_s = until_s if deadline_s is None else min(until_s, deadline_s)
            return m.Drain(member.id, until_s, "re-shape", devices_stay=True)
        if deadline_s is None:
            return None
        waits = self._replacement.is_due or self._is_forming
        if waits and now < deadline_s - self._policy.margin_s - LAST_CALL_S:
            return None
        return m.Drain(member.id, deadline_s, "a device has to leave", devices_stay=True)

    def leaving_workers(self) -> dict[str, float]:
        """The Unix time by which each worker leaves of whose devices one does."""
        deployment = self.deployment
        groups = self._watch.sighted() if deployment is None else (*deployment.groups, *deployment.retiring)
        return {each.worker_id: known for each in groups if (known := self._watch.first_deadline_s(each)) is not None}
