"""The orders by which members become what a deployment says, and the groups that it still has once workers drain.

Law: a group that is to be and is missing is led again every `ORDER_EVERY_S`, and a worker that retires is drained whenever it
is there: a lost order costs a second, and a successor needs no more than the deployment.
A group that is short of devices is not led. A worker of which a device leaves drains once new groups have taken its place, and
shortly before the margin of its deadline in any case.

Law: a group whose worker drains, by an operator's order or a cloud's, is not to be any more, unless a re-shape forms groups, or
one of its devices has to leave: then it is missed, and is to be again as soon as there are devices for it, until it serves.
"""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState
from spotwise.core.planner import commands as c
from spotwise.core.planner.deployments import led
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.plan import PlannedDeployment
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.replacement import Replacement

#: An order is repeated after so long, until its effect shows.
ORDER_EVERY_S = 1.0
#: A worker of which a device leaves drains so much before the margin of its deadline, though new groups are not whole yet.
LAST_CALL_S = 1.0
#: A group without a worker is missing after so long, also for a planner that has just begun to listen.
ABSENT_S = 1.5


class DeploymentOrders:
    """The orders of one planner's term."""

    def __init__(
        self,
        planner_id: str,
        term: int,
        policy: PlannerPolicy,
        membership: Membership,
        watch: DeviceWatch,
        replacement: Replacement,
    ) -> None:
        self._planner_id = planner_id
        self._term = term
        self._policy = policy
        self._membership = membership
        self._watch = watch
        self._replacement = replacement
        self._absent_since_s: dict[str, float] = {}
        self._ordered_s: dict[str, float] = {}

    def restart(self) -> None:
        """Order at once what is due next: another stage has begun."""
        self._ordered_s.clear()

    def note_absent(self, deployment: PlannedDeployment, now: float) -> None:
        """Note since when groups that are to be have no worker."""
        absent = [group.worker_id for group in deployment.groups if self._membership.get(group.worker_id) is None]
        self._absent_since_s = {worker_id: self._absent_since_s.get(worker_id, now) for worker_id in absent}

    def due(self, deployment: PlannedDeployment, now: float) -> list[c.PlannerCommand]:
        """Return the orders that are due."""
        commands: list[c.PlannerCommand] = []
        for group in deployment.groups:
            if self._is_to_be_led(group, deployment, now) and self._is_due(group.worker_id, now):
                commands.append(m.Send(group.device_ids[0], self._lead(group, deployment)))
        for group in (*deployment.groups, *deployment.retiring):
            member = self._membership.get(group.worker_id)
            if member is None or member.state is MemberState.DRAINING:
                continue
            drain = self._drain(member, group, deployment, now)
            if drain is not None and self._is_due(group.worker_id, now):
                commands.append(c.PublishDrain(replace(drain, term=self._term)))
        return commands

    def _is_to_be_led(self, group: m.DeviceGroup, deployment: PlannedDeployment, now: float) -> bool:
        if self._replacement.is_short(group, deployment.groups):
            return False
        if deployment.is_forming and group.worker_id in deployment.new_ids:
            return not serves(group, self._membership)
        absent_since_s = self._absent_since_s.get(group.worker_id)
        return absent_since_s is not None and now - absent_since_s >= ABSENT_S

    def _is_due(self, worker_id: str, now: float) -> bool:
        ordered_s = self._ordered_s.get(worker_id)
        if ordered_s is not None and now - ordered_s < ORDER_EVERY_S:
            return False
        self._ordered_s[worker_id] = now
        return True

    def _lead(self, group: m.DeviceGroup, deployment: PlannedDeployment) -> m.LeadGroup:
        others_serve = any(serves(each, self._membership) for each in (*deployment.groups, *deployment.retiring))
        return led(group, deployment, self._planner_id, self._term, serves_early=not others_serve)

    def _drain(
        self, member: m.Member, group: m.DeviceGroup, deployment: PlannedDeployment, now: float
    ) -> m.Drain | None:
        """Return the drain of a worker that is to leave now, with the deadline of the first of its devices that leaves."""
        deadline_s = self._watch.first_deadline_s(group)
        if group.worker_id in deployment.leaving_ids:
            # One that does not serve holds nothing, and leaves at once.
            until_s = now + self._policy.reshape_drain_s * (member.state is MemberState.READY)
            until_s = until_s if deadline_s is None else min(until_s, deadline_s)
            return m.Drain(member.id, until_s, "re-shape", devices_stay=True)
        if deadline_s is None:
            return None
        waits = self._replacement.is_due or deployment.is_forming
        if waits and now < deadline_s - self._policy.margin_s - LAST_CALL_S:
            return None
        return m.Drain(member.id, deadline_s, "a device has to leave", devices_stay=True)


def serves(group: m.DeviceGroup, membership: Membership) -> bool:
    """Return whether the worker of a group takes requests."""
    member = membership.get(group.worker_id)
    return member is not None and member.state is MemberState.READY


def without_drained(
    deployment: PlannedDeployment, membership: Membership, watch: DeviceWatch, now: float
) -> PlannedDeployment:
    """Return a deployment without the groups that are not to be any more, and with those that are missed."""
    groups = (*deployment.groups, *deployment.retiring)
    missed = tuple(each.worker_id for each in groups if _is_missed(each, deployment, membership, watch))
    staying = tuple(
        each
        for each in deployment.groups
        if deployment.is_forming or each.worker_id in missed or not _drains(each, membership, now)
    )
    if (staying, missed) == (deployment.groups, deployment.missed_ids):
        return deployment
    return replace(deployment, groups=staying, missed_ids=missed)


def _is_missed(group: m.DeviceGroup, deployment: PlannedDeployment, membership: Membership, watch: DeviceWatch) -> bool:
    has_to_leave = watch.first_deadline_s(group) is not None
    return has_to_leave or (group.worker_id in deployment.missed_ids and not serves(group, membership))


def _drains(group: m.DeviceGroup, membership: Membership, now: float) -> bool:
    """A worker whose engine failed drains as well, until now: that one is led again."""
    member = membership.get(group.worker_id)
    return (
        member is not None
        and member.state is MemberState.DRAINING
        and member.leaves_at_s is not None
        and member.leaves_at_s > now
    )
