"""Which groups a deployment still has once some of their workers drain.

Law: a group whose worker drains, by an operator's order or a cloud's, is not to be any more, unless a re-shape forms groups, or
one of its devices has to leave: then it is missed, and is to be again as soon as there are devices for it, until it serves.
"""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState
from spotwise.core.planner.deployment_orders import serves
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.plan import PlannedDeployment


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
