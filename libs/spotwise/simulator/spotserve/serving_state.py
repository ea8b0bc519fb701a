"""The deployed configuration's positions, and the cost of a reconfiguration (SpotServe, sections 4.2, 4.3; maps and plans of
`core.migration`): devices are matched with new positions, KV moves first, pipelines serve as their stages arrive. A
preempted instance loses unsent data, and devices waiting for it lose their position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spotwise.core.migration.deployment import Deployment, Device, DeviceMap, Instance, RunningRequest
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.mapping.parts import PartKind
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.plan import MigrationPlan, PlanPolicy, paper_migration_s
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.simulator.spotserve.pipelines import ServingPipeline
from spotwise.simulator.spotserve.spot_world import SpotWorld
from spotwise.simulator.spotserve.systems import SpotSurroundings

#: Tolerance in seconds for ends, since floats are not exact.
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned reconfiguration.

    Attributes:
        staying: instances that it may use.
        begins_s: when pipelines stop.
        migration_s: predicted T_mig.
        deadline_s: deadline of the first preemption; `None` without a notice.
        runs_on: pipelines expected not to stop.
        is_formed: new pipelines have their weights by `begins_s`.
    """

    config: ParallelConfig
    staying: tuple[str, ...]
    begins_s: float
    migration_s: float
    deadline_s: float | None
    runs_on: tuple[int, ...]
    is_formed: bool = False


def links_of(surroundings: SpotSurroundings) -> Links:
    """Return the links as planning sees them."""
    return Links(
        within_bytes_per_s=surroundings.local_bytes_per_s,
        between_bytes_per_s=surroundings.network_bytes_per_s,
        storage_bytes_per_s=surroundings.storage_bytes_per_s,
        groups_s=surroundings.switch_s,
    )


class ServingState:
    """Positions, and planned changes of them.

    Attributes:
        config: deployed; `None` before the first.
        positions: position of each device, with the data present or in transfer.
        deadlines_s: when each pipeline loses its first device, where it does.
    """

    def __init__(self, world: SpotWorld) -> None:
        self.config: ParallelConfig | None = None
        self.positions: dict[Device, Position] = {}
        self.deadlines_s: dict[int, float] = {}
        self._world = world
        self._run, self._system = world.run_, world.run_.system
        self._links = links_of(world.run_.surroundings)

    @property
    def is_whole(self) -> bool:
        """Whether every position has its device."""
        return self.config is not None and len(self.positions) == self.config.devices

    def is_on(self, staying: Sequence[str]) -> bool:
        """Whether only these instances have a position."""
        return all(device.instance in staying for device in self.positions)

    def take(self, config: ParallelConfig, positions: dict[Device, Position]) -> None:
        """Set the deployed configuration and positions."""
        self.config, self.positions = config, positions
        self.note_deadlines()

    def start(self, config: ParallelConfig, staying: tuple[str, ...]) -> None:
        """Start with the weights in place."""
        self.take(config, dict(Deployment.in_order(config, self._instances(staying)).positions))

    def lose(self, instance: str) -> list[int]:
        """Remove the positions of a preempted instance; return their pipelines."""
        return self.forget([device for device in self.positions if device.instance == instance])

    def forget(self, devices: Sequence[Device]) -> list[int]:
        """Remove the positions of some devices; return their pipelines."""
        lost = {self.positions.pop(device).pipeline for device in devices if device in self.positions}
        self.note_deadlines()
        return sorted(lost)

    def note_deadlines(self) -> None:
        """Update when each pipeline loses its first device."""
        self.deadlines_s.clear()
        machines = self._world.fleet.machines
        for device, position in self.positions.items():
            deadline_s = machines[device.instance].deadline_s if device.instance in machines else None
            if deadline_s is not None:
                earlier_s = self.deadlines_s.get(position.pipeline, deadline_s)
                self.deadlines_s[position.pipeline] = min(earlier_s, deadline_s)

    def deadline_s(self, staying: Sequence[str]) -> float | None:
        """Return the first preemption time of an instance with a position that does not stay; `None` without one."""
        machines = self._world.fleet.machines
        going = [device.instance for device in self.positions if device.instance not in staying]
        deadlines = [machines[instance].deadline_s for instance in going if instance in machines]
        return min((deadline_s for deadline_s in deadlines if deadline_s is not None), default=None)

    def preview(self, config: ParallelConfig, staying: tuple[str, ...], deadline_s: float | None) -> Planned:
        """Preview a reconfiguration; with a deadline, for the largest possible batches."""
        now = self._world.now
        device_map = self._map(config, self._before(config, staying, self._running()))
        runs_on = tuple(sorted(device_map.running_on.values()))
        if self._system.forms_ahead:
            whole = self._plan(device_map)
            formed_s, moves_s = self._ready_s(staying) + whole.done_s, self._moved(whole).done_s
            if deadline_s is None or formed_s + moves_s <= deadline_s:
                return Planned(config, staying, formed_s, moves_s, deadline_s, runs_on, is_formed=True)
        stopping = [pipeline for pipeline in self._world.dispatcher.pipelines if pipeline.number not in runs_on]
        migration_s = 0.0
        if not self.is_whole or not self._system.recovers:
            begins_s = now  # waiting gains nothing, or KV does not move
        elif deadline_s is not None:
            migration_s = max(self._migration_s(config, staying, running) for running in self._most(stopping))
            begins_s = max(now, deadline_s - migration_s)
        else:
            begins_s = max((self._boundary_s(pipeline) for pipeline in stopping), default=now)
        return Planned(config, staying, begins_s, migration_s, deadline_s, runs_on)

    def plan(self, planned: Planned) -> tuple[DeviceMap, MigrationPlan]:
        """Return the device map and the migration plan of a reconfiguration that begins now."""
        device_map = self._map(planned.config, self._before(planned.config, planned.staying, self._running()))
        plan = self._plan(device_map)
        return device_map, self._moved(plan) if planned.is_formed else plan

    def _ready_s(self, staying: Sequence[str]) -> float:
        machines = self._world.fleet.machines
        return max([self._world.now, *(machines[each].ready_s for each in staying)])

    def _moved(self, plan: MigrationPlan) -> MigrationPlan:
        """Return what is left of a plan once its new pipelines have their weights: the moves of requests."""
        moves = tuple(each for each in plan.transfers if each.part.kind is PartKind.KV)
        done_s = plan.kv_done_s + self._run.surroundings.move_s if moves else 0.0
        return replace(
            plan,
            transfers=moves,
            stage_start_s=dict.fromkeys(plan.stage_start_s, 0.0),
            pause_s=dict.fromkeys(plan.pause_s, done_s),
            done_s=done_s,
        )

    def _running(self) -> dict[int, tuple[RunningRequest, ...]]:
        if not self._system.recovers:
            return {}
        return {pipeline.number: pipeline.snapshot(self._world.now) for pipeline in self._world.dispatcher.pipelines}

    def _boundary_s(self, pipeline: ServingPipeline) -> float:
        """Return when a pipeline stops for an instance that is up: after the fewest steps, at its iteration's end."""
        now = self._world.now
        if not pipeline.batch or pipeline.serves_from_s > now:
            return now
        return now + (max(now, pipeline.boundary_s(now)) - now)

    def _migration_s(
        self, config: ParallelConfig, staying: tuple[str, ...], running: dict[int, tuple[RunningRequest, ...]]
    ) -> float:
        plan = self._plan(self._map(config, self._before(config, staying, running)))
        return max(plan.done_s, paper_migration_s(plan))

    def _most(self, stopping: Sequence[ServingPipeline]) -> list[dict[int, tuple[RunningRequest, ...]]]:
        """Return the batches with the longest migration: all full; or only those full that lose a device, beside idle
        pipelines."""
        found = [self._running() | self._largest(stopping)]
        dying = [pipeline for pipeline in stopping if pipeline.number in self.deadlines_s]
        if len(dying) < len(self._world.dispatcher.pipelines):
            found.append(self._largest(dying))
        return found

    def _largest(self, stopping: Sequence[ServingPipeline]) -> dict[int, tuple[RunningRequest, ...]]:
        arrivals = self._run.arrivals
        tokens = arrivals.input_tokens + arrivals.output_tokens
        found = {}
        for pipeline in stopping:
            free_slots = pipeline.config.max_batch - len(pipeline.batch)
            requests = [RunningRequest(str(job.number), tokens, job.decoded) for job in pipeline.batch]
            requests += [RunningRequest(f"{pipeline.number}+{place}", tokens) for place in range(free_slots)]
            found[pipeline.number] = tuple(requests)
        return found

    def _instances(self, staying: Sequence[str]) -> tuple[Instance, ...]:
        """Return staying instances (those ready soon included) and instances that can still send, without notices not covered:
        such an instance stays until the next reconfiguration."""
        devices, machines = self._run.model.devices, self._world.fleet.machines.values()
        return tuple(
            Instance(machine.id, devices, None if machine.id in staying else machine.deadline_s)
            for machine in machines
            if machine.id in staying or (machine.ready and machine.deadline_s is not None)
        )

    def _before(
        self, config: ParallelConfig, staying: tuple[str, ...], running: dict[int, tuple[RunningRequest, ...]]
    ) -> Deployment:
        return Deployment(self.config or config, self._instances(staying), self.positions, running)

    def _map(self, config: ParallelConfig, before: Deployment) -> DeviceMap:
        return map_devices(before, config, self._run.model.shape) if self._system.matches else _in_order(before, config)

    def _plan(self, device_map: DeviceMap) -> MigrationPlan:
        progressive = self._system.progressive
        surroundings, times = self._run.surroundings, self._world.dispatcher.times
        config = device_map.config
        stage_s = times.prompt_s(config, 1, times.input_tokens) / config.pipeline if progressive else 0.0
        policy = PlanPolicy(
            progressive=progressive,
            buffer_bytes=surroundings.buffer_bytes if progressive else None,
            stage_s=stage_s,
            shares_reads=False,  # as a mesh's devices, each reads what no other has
        )
        return plan_migration(device_map, self._run.model.shape, self._links, policy, self._world.now)


def lacking(plan: MigrationPlan, since_s: float, instance: str) -> list[Device]:
    """Return the devices that miss data if an instance is preempted so many seconds after a plan began: what it had not sent,
    relayed data included."""
    unsent: dict[tuple[int, object, Device], None] = {}
    found: dict[Device, None] = {}
    for each in sorted(plan.transfers, key=lambda each: each.start_s):
        if each.source is None or each.end_s <= since_s + _ROUNDING_S:
            continue
        relayed = each.is_relayed and (each.step, each.part, each.source) in unsent
        if each.source.instance == instance or relayed:
            unsent[each.step, each.part, each.target] = None
            found[each.target] = None
    return list(found)


def _in_order(before: Deployment, config: ParallelConfig) -> DeviceMap:
    """Return the unmatched map: positions in order of instances, batches at their numbers."""
    after = Deployment.in_order(config, before.instances)
    running: dict[int, tuple[RunningRequest, ...]] = {}
    waiting: list[RunningRequest] = []
    for number, requests in before.running.items():
        fits = config.max_batch if number < config.pipelines else 0
        running[number] = requests[:fits]
        waiting += requests[fits:]
    return DeviceMap(
        before=before,
        config=config,
        positions=after.positions,
        running={k: v for k, v in running.items() if v},
        waiting=tuple(waiting),
        kept_weight_bytes=0,
        kept_kv_bytes=0,
        running_on={},
    )
