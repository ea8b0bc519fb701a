"""Pure transitions of the planned deployment: adopt, begin, abandon, complete; and its orders.

Law: a group that a re-shape leaves out retires, also one whose worker is missing, which may come back. An abandoned re-shape
leaves the groups of before it, but for those that an earlier one had drained. What an abandoned one began retires in the next
one too: a leader may have got its order, and join late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from spotwise.core.messages import mesh as m
from spotwise.core.planner.group_choice import GroupChoice
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from spotwise.core.planner.replacement import Replacing, described


def adopted(groups: tuple[m.DeviceGroup, ...], change: int, now: float) -> PlannedDeployment:
    """Return the groups that there are as a deployment: what is short of devices must be known when machines come."""
    cause = "devices have to leave"
    return PlannedDeployment(
        change, described(groups), ReshapeStage.DONE, groups, (), (), now, now, ended_s=now, cause=cause
    )


def begun(
    before: PlannedDeployment | None,
    config: str,
    choice: GroupChoice,
    replacing: Replacing | None,
    seen: Iterable[m.DeviceGroup],
    change: int,
    now: float,
    form_until_s: float,
) -> PlannedDeployment:
    """Return the deployment with which a re-shape begins.

    Args:
        before: the last one.
        config: configuration of the new one, for people.
        choice: its groups.
        replacing: the planner's reason to begin it; `None`: an operator's order.
        seen: groups as their devices reported them, also those that were silent when the choice was made.
        change: its number.
        now: Unix time.
        form_until_s: Unix time at which new groups that do not serve yet abandon it.
    """
    known = [group.worker_id for group in (*choice.go_on, *choice.retiring)]
    earlier = () if before is None else before.groups
    whole = {group.worker_id: group for group in (*seen, *earlier)}
    left: tuple[m.DeviceGroup, ...] = ()
    if before is not None and before.stage in (ReshapeStage.MOVING, ReshapeStage.ABANDONED):
        left = tuple(group for group in before.retiring if group.worker_id not in known)
    retiring = (
        *(_whole(group, whole) for group in choice.retiring),
        *left,
        *(group for group in earlier if group.worker_id not in known),
    )
    deployment = PlannedDeployment(
        change,
        config,
        ReshapeStage.FORMING,
        (*choice.go_on, *choice.new),
        tuple(group.worker_id for group in choice.new),
        retiring,
        now,
        form_until_s,
        migration_s=choice.migration.seconds,
        missed_ids=() if before is None else before.missed_ids,
        left_ids=tuple(group.worker_id for group in left),
        weights=choice.migration.weights,
    )
    if replacing is None:
        return deployment
    present = {group.worker_id for group in (*deployment.groups, *retiring)}
    earlier_ids = () if before is None else before.stopgap_ids
    stopgap_ids = (*(each for each in earlier_ids if each in present), *replacing.stopgap_ids)
    return replace(deployment, cause=replacing.cause, stopgap_ids=stopgap_ids)


def abandoned(deployment: PlannedDeployment, reason: str, now: float) -> PlannedDeployment:
    """Return what is to be where a re-shape that has moved nothing yet is abandoned."""
    go_on = (group for group in deployment.groups if group.worker_id not in deployment.new_ids)
    left = [group for group in deployment.retiring if group.worker_id in deployment.left_ids]
    # One without a device at each position could not be formed again.
    as_before = (group for group in deployment.retiring if group.is_whole and group not in left)
    return replace(
        deployment,
        stage=ReshapeStage.ABANDONED,
        groups=(*go_on, *as_before),
        retiring=(*deployment.new, *left),
        ended_s=now,
        reason=reason,
        weights=(),
    )


def led(
    group: m.DeviceGroup, deployment: PlannedDeployment, planner_id: str, term: int, *, serves_early: bool
) -> m.LeadGroup:
    """Return the order to lead a group of a deployment; a new one gets its weights as the plan says."""
    is_new = group.worker_id in deployment.new_ids
    return m.LeadGroup(
        group.worker_id,
        group.pool,
        group.stages,
        group.shards,
        group.device_ids,
        term,
        deployment.change,
        planner_id,
        tuple(each for each in deployment.weights if is_new and each.device_id in group.device_ids),
        serves_early,
    )


def _whole(group: m.DeviceGroup, whole: Mapping[str, m.DeviceGroup]) -> m.DeviceGroup:
    return group if group.is_whole else whole.get(group.worker_id, group)
