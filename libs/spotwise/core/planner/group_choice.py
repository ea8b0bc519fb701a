"""Chooses the groups of another configuration: their devices, the groups that stay, and the groups that they replace.

Law: devices keep as many bytes of weights as they can (`map_devices`, SpotServe, section 4.2). A group whose devices, positions
and pool stay keeps its worker; every other one is new, and has an id that no worker had before.
Pipelines are numbered by workers: the prompt pool first, then the others, by id. Groups of unequal shapes are no
`ParallelConfig`: from those nothing is known to be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import DevicePlace, Pool
from spotwise.core.migration.deployment import Deployment, Device, DeviceMap, Instance, RunningRequest
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.group_migration import GroupMigration, migration_of


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """The groups of a re-shape: those that `go_on`, `new` ones, and those that retire; what that costs, and what it moves."""

    go_on: tuple[m.DeviceGroup, ...]
    new: tuple[m.DeviceGroup, ...]
    retiring: tuple[m.DeviceGroup, ...]
    prediction: m.PredictedReshape
    migration: GroupMigration


def written(config: ParallelConfig) -> str:
    """Return a configuration as an operator writes it, without the batch size."""
    return str(config).rpartition(",")[0]


def choose_groups(
    config: ParallelConfig,
    reports: Sequence[m.DeviceSurveyed],
    workers: Sequence[m.Member],
    change: int,
    cost: ChangeCost,
    now: float,
    leaving: Mapping[str, float] = MappingProxyType({}),
    to_be: Iterable[m.DeviceGroup] = (),
) -> GroupChoice | str:
    """Return the groups of a configuration, or why it cannot be.

    Args:
        reports: reports of all devices, in order of id.
        workers: workers of the mesh.
        change: number of the re-shape.
        cost: cost of changes so far.
        now: Unix time.
        leaving: devices that get no position, each with the Unix time by which it leaves.
        to_be: the groups that are to serve now: a choice without one of them is another configuration.
    """
    old = [_group_of(worker, reports) for worker in sorted(workers, key=_in_order)]
    config = replace(config, max_batch=max(1, len(old)))  # of each old group, all requests count as one
    if (reason := _why_not(config, reports, old, leaving)) is not None:
        return reason
    model = reports[0].model
    before = _deployment(old, reports, config, leaving)
    device_map = map_devices(before, config, model)
    groups = _groups(device_map, old, change)
    go_on = tuple(group for group in groups if group in [each.group for each in old])
    new = tuple(group for group in groups if group not in go_on)
    retiring = tuple(each.group for each in old if each.group not in go_on)
    dropped = {group.worker_id for group in to_be} - {group.worker_id for group in go_on}
    if not new and not retiring and not dropped:
        return f"the mesh has the configuration {written(config)} already"
    migration = migration_of(device_map, model, cost, now)
    leaving_workers = workers_of(retiring, workers)
    prediction = m.PredictedReshape(
        (*go_on, *new),
        tuple(group.worker_id for group in new),
        tuple(group.worker_id for group in retiring),
        migration.kept_bytes,
        migration.moved_bytes,
        cost.forming_s(new, migration.seconds),
        cost.pause_s(retiring, (*go_on, *new), sum(map(running_requests, leaving_workers))),
        migration.storage_bytes,
        sum(map(kv_tokens, leaving_workers)) * model.kv_token_bytes,
    )
    return GroupChoice(go_on, new, retiring, prediction, migration)


def kv_tokens(worker: m.Member) -> int:
    """Return the tokens for which a worker has taken KV blocks, by its last heartbeat."""
    return 0 if worker.load is None else worker.load.kv_blocks_used * worker.load.kv_block_size


def workers_of(groups: Iterable[m.DeviceGroup], workers: Iterable[m.Member]) -> list[m.Member]:
    """Return those workers that some groups serve as."""
    ids = {group.worker_id for group in groups}
    return [worker for worker in workers if worker.id in ids]


def running_requests(worker: m.Member) -> int:
    """Return the requests that a worker computes, by its last heartbeat."""
    return 0 if worker.load is None else worker.load.running


@dataclass(frozen=True, slots=True)
class _OldGroup:
    """A worker's group, whether it `serves`, and the position of each device that reports one in it, in order of positions;
    `kv_tokens`: of its requests.
    """

    group: m.DeviceGroup
    kv_tokens: int
    serves: bool
    places: Mapping[str, DevicePlace]


def _in_order(worker: m.Member) -> tuple[bool, str]:
    """The prompt pool's workers come first."""
    return worker.pool is not Pool.PROMPT, worker.id


def _group_of(worker: m.Member, reports: Sequence[m.DeviceSurveyed]) -> _OldGroup:
    held = [(each.device_id, group.place) for each in reports for group in each.groups if group.worker_id == worker.id]
    latest = max((place.epoch for _, place in held), default=0)
    by_position = {(place.stage, place.shard): (id_, place) for id_, place in held if place.epoch == latest}
    places = dict(by_position[position] for position in sorted(by_position))
    stages, shards = next(((place.stages, place.shards) for place in places.values()), (0, 0))
    assert worker.pool is not None
    group = m.DeviceGroup(worker.id, worker.pool, stages, shards, tuple(places))
    return _OldGroup(group, kv_tokens(worker), worker.state is m.MemberState.READY, places)


def _why_not(
    config: ParallelConfig,
    reports: Sequence[m.DeviceSurveyed],
    old: Sequence[_OldGroup],
    leaving: Mapping[str, float],
) -> str | None:
    if not reports:
        return "no device answers; start the mesh with --parallel D,P,M"
    strangers = [each.group.worker_id for each in old if each.serves and not each.places]
    if strangers:
        return (
            f"no device reports a position in {', '.join(strangers)}: only groups of devices can be re-shaped; "
            "start the mesh with --parallel D,P,M, or drain workers that were started otherwise"
        )
    model = reports[0].model
    others = [each.device_id for each in reports if each.model != model]
    if others:
        return (
            f"{', '.join(others)} and {reports[0].device_id} have different models; end the devices with the wrong one"
        )
    if (reason := model.why_not(config.pipeline, config.tensor)) is not None:
        return f"{model.name} cannot be cut into {config.pipeline} stages of {config.tensor} shards: {reason}"
    leave = [each.device_id for each in reports if each.device_id in leaving]
    if len(reports) - len(leave) < config.devices:
        stay = f", and {', '.join(leave)} {'has' if len(leave) == 1 else 'have'} to leave" if leave else ""
        return (
            f"{written(config)} needs {config.devices} devices, and {len(reports) - len(leave)} answer{stay}; "
            "choose a smaller configuration, or start more devices"
        )
    return None


def _deployment(
    old: Sequence[_OldGroup],
    reports: Sequence[m.DeviceSurveyed],
    config: ParallelConfig,
    leaving: Mapping[str, float],
) -> Deployment:
    """Return the deployment before; without positions where its groups are not all of one shape."""
    instances = tuple(Instance(each.device_id, 1, leaving.get(each.device_id)) for each in reports)
    prompts = sum(each.group.pool is Pool.PROMPT for each in old)
    shapes = {(each.group.stages, each.group.shards) for each in old if each.places}
    if len(shapes) != 1 or prompts == len(old):
        return Deployment(config, instances)
    ((stages, shards),) = shapes
    positions: dict[Device, Position] = {}
    for number, each in enumerate(old):
        for device_id, place in each.places.items():
            positions.setdefault(Device(device_id, 0), Position(number, place.stage, place.shard))
    before = ParallelConfig(len(old) - prompts, stages, shards, config.max_batch, prompts)
    running = {
        number: (RunningRequest(each.group.worker_id, each.kv_tokens, each.kv_tokens),)  # all of its requests as one
        for number, each in enumerate(old)
        if each.kv_tokens and each.group.pool is not Pool.PROMPT
    }
    return Deployment(before, instances, positions, running)


def _groups(device_map: DeviceMap, old: Sequence[_OldGroup], change: int) -> list[m.DeviceGroup]:
    """Return the group of each pipeline: the old one that it is, or a new one."""
    config = device_map.config
    by_pipeline: dict[int, list[str]] = {number: [] for number in range(config.pipelines)}
    for device, position in sorted(device_map.positions.items(), key=lambda entry: entry[1]):
        by_pipeline[position.pipeline].append(device.instance)
    groups = []
    for number, device_ids in by_pipeline.items():
        pool = Pool.PROMPT if number < config.prompt_data else Pool.TOKEN if config.is_split else Pool.MIXED
        kept = device_map.running_on.get(number)
        if kept is not None and old[kept].group.pool is pool:
            groups.append(old[kept].group)
        else:
            worker_id = f"{pool.value}-c{change}-{number}"
            groups.append(m.DeviceGroup(worker_id, pool, config.pipeline, config.tensor, tuple(device_ids)))
    return groups
