"""Plans the migration of a change of groups (`plan_migration`), from the groups before to those after.

Law: a device has what its position before needs, and gets what its new one needs besides: from the devices that the plan names,
in the plan's order (`PlannedWeights`, which the orders to lead carry). Groups of unequal shapes are no `ParallelConfig`: for
those there is no plan, and each device finds out by itself who has what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.migration.deployment import Deployment, Device, DeviceMap, Instance
from spotwise.core.migration.mapping.parts import Part, PartKind
from spotwise.core.migration.planning.plan import MigrationPlan, PlanPolicy
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.shares import Share
from spotwise.core.planner.change_cost import ChangeCost


@dataclass(frozen=True, slots=True)
class GroupMigration:
    """Bytes of weights that stay on their device, that devices get, of them those from storage; seconds; and who gives what."""

    kept_bytes: int
    moved_bytes: int
    storage_bytes: int
    seconds: float
    weights: tuple[m.PlannedWeights, ...] = ()


def migration_of(device_map: DeviceMap, model: ModelShape, cost: ChangeCost, now: float) -> GroupMigration:
    """Return what a change of groups that begins at Unix time `now` moves of a model's weights."""
    before = replace(device_map.before, running={})  # requests are moved one by one, as the evacuation arranges
    policy = PlanPolicy(shares_reads=False)  # each device reads what no other has and waits for no relay
    plan = plan_migration(replace(device_map, before=before, running={}), model, cost.links, policy, now_s=now)
    origins = _origins(plan)
    return GroupMigration(
        plan.kept_bytes,
        plan.moved_bytes + plan.storage_bytes,
        sum(each.byte_count for each, origin in zip(plan.transfers, origins, strict=True) if origin is None),
        plan.done_s,
        planned_weights(plan, model.layers),
    )


def _origins(plan: MigrationPlan) -> list[Device | None]:
    """Return the device that has what each transfer brings from the start; `None` of what comes from storage."""
    found: list[Device | None] = []
    came: dict[tuple[int, Part, int, Share, Device], Device | None] = {}
    for each in plan.transfers:
        origin = each.source
        if each.is_relayed and each.source is not None:
            origin = came[each.step, each.part, each.layers, each.share, each.source]
        came[each.step, each.part, each.layers, each.share, each.target] = origin
        found.append(origin)
    return found


def planned_weights(plan: MigrationPlan, layers: int) -> tuple[m.PlannedWeights, ...]:
    """Return the source of each device's weights, in the plan's order; consecutive layers of one source together. The source
    of relayed weights is the device that has them from the start, so that no device waits for a relay. Weights from storage,
    relayed or not, have no source here.
    """
    by_device: dict[str, list[m.PlannedWeights]] = {}
    for each, origin in zip(plan.transfers, _origins(plan), strict=True):
        if origin is None or each.part.kind is PartKind.KV:
            continue
        number, runs = _number(each.part, layers), by_device.setdefault(each.target.instance, [])
        last = runs[-1] if runs else None
        if last is None or last.source_id != origin.instance or number != last.first_layer + last.layers:
            runs.append(m.PlannedWeights(each.target.instance, origin.instance, number, 1))
        else:
            runs[-1] = m.PlannedWeights(last.device_id, last.source_id, last.first_layer, last.layers + 1)
    return tuple(run for device_id in sorted(by_device) for run in by_device[device_id])


def _number(part: Part, layers: int) -> int:
    if part.kind is PartKind.LAYER:
        assert part.layer is not None
        return part.layer
    return -1 if part.kind is PartKind.EMBEDDING else layers


def prompts_first(groups: Iterable[m.DeviceGroup]) -> list[m.DeviceGroup]:
    """Return groups in the order in which pipelines are numbered."""
    return sorted(groups, key=lambda group: group.pool is not Pool.PROMPT)


def same_shape_map(
    before: Sequence[m.DeviceGroup],
    after: Sequence[m.DeviceGroup],
    device_ids: Iterable[str],
    leaving: Mapping[str, float],
) -> DeviceMap | None:
    """Return the map from groups to others of the same shape, where all have one.

    Args:
        before: groups that may have lost devices.
        after: whole groups; those of `before` go on.
        device_ids: the devices that answer.
        leaving: those under notice, each with its deadline.
    """
    known, old, new = set(device_ids), prompts_first(before), prompts_first(after)
    shapes = {(group.stages, group.shards) for group in (*old, *new)}
    if len(shapes) != 1:
        return None
    ((stages, shards),) = shapes
    config, next_config = _config(old, stages, shards), _config(new, stages, shards)
    if config is None or next_config is None:
        return None
    placed = _positions(new)
    # Also such as are silent for a moment.
    staying = {device_id for group in new if group in old for device_id in group.device_ids}
    held = {device: place for device, place in _positions(old).items() if device.instance in known | staying}
    instances = tuple(
        Instance(each, 1, leaving.get(each)) for each in sorted(known | {device.instance for device in placed})
    )
    running_on = {number: old.index(group) for number, group in enumerate(new) if group in old}
    return DeviceMap(
        before=Deployment(config, instances, held),
        config=next_config,
        positions=placed,
        running={},
        waiting=(),
        kept_weight_bytes=0,
        kept_kv_bytes=0,
        running_on=running_on,
    )


def _config(groups: Sequence[m.DeviceGroup], stages: int, shards: int) -> ParallelConfig | None:
    """Return the configuration that groups of one shape are; `None`: without one that decodes they are none."""
    prompts = sum(group.pool is Pool.PROMPT for group in groups)
    if prompts == len(groups):
        return None
    return ParallelConfig(len(groups) - prompts, stages, shards, prompt_data=prompts)


def _positions(groups: Sequence[m.DeviceGroup]) -> dict[Device, Position]:
    """Return the position of each device; of one that is in two groups the first."""
    found: dict[Device, Position] = {}
    for number, group in enumerate(groups):
        for place, device_id in enumerate(group.device_ids):
            found.setdefault(Device(device_id, 0), Position(number, *divmod(place, group.shards)))
    return found
