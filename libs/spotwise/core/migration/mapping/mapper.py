"""Maps devices to the positions of a new configuration (SpotServe, section 4.2).

Law: devices are matched with positions so that the bytes of weights and KV that stay on their device are most (maximum-weight
bipartite matching, Kuhn-Munkres), on two levels (`matching.py`): instances with position groups, then devices with positions.
Which pipeline continues which requests is decided before (`inheritance.py`); a pipeline that runs on keeps its devices.
Of several groupings (`position_groups.py`) the one that keeps most bytes is taken; of equals the first.
Instances under notice get no position; of spare instances those with least to reuse stay idle, of equals the later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from spotwise.core.migration.deployment import Deployment, Device, DeviceMap
from spotwise.core.migration.mapping.inheritance import Inheritance, inherit
from spotwise.core.migration.mapping.matching import Gains, bundle, match_groups, most_gained
from spotwise.core.migration.mapping.parts import Reusable
from spotwise.core.migration.mapping.position_groups import (
    UNPLACED,
    Groups,
    InstanceSlots,
    groupings,
    tensor_groups_of,
    with_fewest_cuts,
)
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape


def map_devices(before: Deployment, config: ParallelConfig, model: ModelShape) -> DeviceMap:
    """Return the device of each position and the pipeline of each request; with too few staying devices raise `ValueError`."""
    staying = [instance for instance in before.instances if not instance.is_leaving]
    devices = sum(instance.devices for instance in staying)
    if devices < config.devices:
        raise ValueError(
            f"{config} needs {config.devices} devices, and {devices} stay (instances under notice do not count); "
            "choose a smaller configuration or wait for more instances"
        )
    inheritance = inherit(before, config, model)
    reusable = Reusable.between(before.config, config, model, inheritance.tokens)
    taken = _running_on(before, inheritance)
    left = [position for position in config.positions() if position.pipeline not in inheritance.running_on]
    if left:
        instances = [[device for device in instance.all_devices() if device not in taken] for instance in staying]
        taken |= _matched(before, left, [devices for devices in instances if devices], inheritance, reusable)
    positions = dict(sorted(taken.items(), key=lambda entry: entry[1]))
    kept = [reusable.pair_bytes(before.positions.get(device), position) for device, position in positions.items()]
    return DeviceMap(
        before=before,
        config=config,
        positions=positions,
        running=inheritance.running,
        waiting=inheritance.waiting,
        kept_weight_bytes=sum(weight_bytes for weight_bytes, _ in kept),
        kept_kv_bytes=sum(kv_bytes for _, kv_bytes in kept),
        running_on=inheritance.running_on,
    )


def _running_on(before: Deployment, inheritance: Inheritance) -> dict[Device, Position]:
    numbers = {old: new for new, old in inheritance.running_on.items()}
    return {
        device: position._replace(pipeline=numbers[position.pipeline])
        for device, position in before.positions.items()
        if position.pipeline in numbers
    }


def _matched(
    before: Deployment,
    left: Sequence[Position],
    instances: Sequence[Sequence[Device]],
    inheritance: Inheritance,
    reusable: Reusable,
) -> dict[Device, Position]:
    devices = [device for instance in instances for device in instance]
    old_positions = [before.positions.get(device) for device in devices]
    gains = reusable.gains(old_positions, left)
    rows: list[range] = []
    for instance in instances:
        start = rows[-1].stop if rows else 0
        rows.append(range(start, start + len(instance)))
    successors = {old: new for new, old in sorted(inheritance.predecessors.items(), reverse=True)}
    by_position = {position: index for index, position in enumerate(left)}
    slots = [_slots(before, reusable.config, instance, successors, by_position) for instance in instances]
    flat = most_gained(gains)  # no grouping exceeds it, so the first that reaches it is the answer
    best: tuple[int, dict[int, int]] = (-1, {})
    for groups in chain(with_fewest_cuts(groupings(left, slots), left), _bundled(gains, rows, old_positions, left)):
        best = max(best, match_groups(gains, rows, groups), key=lambda matched: matched[0])  # the first of equals
        if best[0] == flat:
            break
    return {devices[row]: left[column] for column, row in best[1].items()}


def _bundled(
    gains: Gains, rows: Sequence[Sequence[int]], old_positions: Sequence[Position | None], left: Sequence[Position]
) -> Iterator[Groups]:
    """Yield the grouping of whole tensor groups that are best together on an instance, where all can be whole."""
    neighbours = [sorted(of_one, key=lambda row: (old_positions[row] or UNPLACED, row)) for of_one in rows]
    groups = bundle(gains, neighbours, tensor_groups_of(left))
    if groups is not None:
        yield groups


def _slots(
    before: Deployment,
    config: ParallelConfig,
    devices: Sequence[Device],
    successors: Mapping[int, int],
    left: Mapping[Position, int],
) -> InstanceSlots:
    held = sorted(before.positions[device] for device in devices if device in before.positions)
    stay: list[int] = []
    if (before.config.pipeline, before.config.tensor) == (config.pipeline, config.tensor):
        there = [
            position._replace(pipeline=successors[position.pipeline])
            for position in held
            if position.pipeline in successors
        ]
        stay = [left[position] for position in there if position in left]
    return InstanceSlots(len(devices), held[0] if held else None, tuple(stay))
