"""Changes which groups of devices serve: forms new groups beside the old ones, retires those, and stores the deployment.

Law: an ordered configuration becomes a deployment, which is in the store before any order of it is sent (`deployment_orders`).
New groups are led until all of them serve; only then old groups drain. A re-shape whose groups are not whole in time, or that
is interrupted before, is abandoned: its new groups retire, and the old groups are the deployment again.
All else follows from the deployment and the members, so that a successor continues where a planner ended.
A group that an operator or a cloud lets drain is dropped from the deployment (`drained_groups`), unless one of its devices has
to leave: then it is formed again where there are devices (`replacement.py`).

Source: reparallelization, SpotServe, section 3.2; new groups beside the old ones are ours (ADR 31).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState
from spotwise.core.migration.fleet.changes import FleetChanges
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner import commands as c
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.deployment_orders import ABSENT_S, DeploymentOrders, serves, without_drained
from spotwise.core.planner.deployments import abandoned, adopted, begun
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.group_choice import GroupChoice
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.replacement import Replacement, Replacing, described
from spotwise.core.planner.reshape_requests import ReshapeRequests


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
        self._policy = policy
        self._membership = membership
        self._changes = changes
        self._began_s = now
        self._cost = cost
        self._watch = watch
        numbers = partial(next, itertools.count(1))
        self._requests = ReshapeRequests(planner_id, membership, watch, cost, numbers, policy.crossing)
        self._replacement = Replacement(planner_id, policy, membership, watch, cost, numbers)
        self._orders = DeploymentOrders(planner_id, term, policy, membership, watch, self._replacement)
        self._before: PlannedDeployment | None = None  # of an order that is not stored yet
        self._commands: list[c.PlannerCommand] = []

    @property
    def retiring(self) -> frozenset[str]:
        """The workers that are to hand over what they have."""
        return frozenset() if self.deployment is None else self.deployment.leaving_ids

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
        return self.deployment is not None and self.deployment.is_forming

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
            self._orders.note_absent(deployment, now)
            if deployment.is_forming:
                deployment = self._formed(deployment, now)
            if deployment.stage is ReshapeStage.MOVING and self._is_over(deployment, now):
                deployment = self._change_stage(replace(deployment, stage=ReshapeStage.DONE, ended_s=now), now)
            self.deployment = without_drained(deployment, self._membership, self._watch, now)
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
        self._orders.restart()
        self._report(deployment, now - deployment.began_s)
        return deployment

    def _report(self, deployment: PlannedDeployment, seconds: float) -> None:
        self._commands.append(
            c.ReportReshape(deployment.change, deployment.config, deployment.stage, seconds, deployment.reason)
        )

    def _is_over(self, deployment: PlannedDeployment, now: float) -> bool:
        """A planner that has just begun may not have heard of all workers."""
        gone = all(self._membership.get(group.worker_id) is None for group in deployment.retiring)
        return gone and now - self._began_s >= ABSENT_S

    def _serves(self, group: m.DeviceGroup) -> bool:
        return serves(group, self._membership)

    def orders(self, stored: PlannedDeployment | None, now: float) -> list[c.PlannerCommand]:
        """Return the orders that are due, where the store has the deployment that they follow from."""
        deployment = self.deployment
        if deployment is None or not deployment.orders_the_same(stored):
            return []
        self._requests.stored()
        self._commands += self._requests.commands() + self._orders.due(deployment, now)
        commands, self._commands = self._commands, []
        return commands

    def leaving_workers(self) -> dict[str, float]:
        """The Unix time by which each worker leaves of whose devices one does."""
        deployment = self.deployment
        groups = self._watch.sighted() if deployment is None else (*deployment.groups, *deployment.retiring)
        return {each.worker_id: known for each in groups if (known := self._watch.first_deadline_s(each)) is not None}
