"""SpotServe when its fleet changes: another configuration, stopped for just in time, with what is on the devices.

Law: when an instance gets its notice, the configuration for those that stay is chosen at once. Pipelines decode on
until what must move can just still move before the deadline, and begin no batch that would not pay (SpotServe, section
4.1). When an instance is there, pipelines end their iteration and it takes part. Devices are matched with positions, KV
moves first, and a pipeline serves again as its stages come (sections 4.2, 4.3). Only one change is on its way at a
time: what happens meanwhile is looked at when it is over, so an acquisition waits for an interruption to be settled. An
instance that goes before its data has gone costs the KV of its pipelines, never a request: these are computed again
from their committed tokens.

All decisions come from core: `parallel.optimizer`, `migration.mapper`, `migration.migration_plan`,
`migration.just_in_time`.

Invariants: an instance under notice has no position of a new configuration; pipelines that run on are not stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotwise.core.migration.deployment import Deployment, Device, RunningRequest
from spotwise.core.migration.device_map import DeviceMap
from spotwise.core.migration.just_in_time import LinearExecution, Stop, before_acquisition, before_preemption
from spotwise.core.migration.link_times import Links
from spotwise.core.migration.mapper import map_devices
from spotwise.core.migration.migration_plan import MigrationPlan, PlanPolicy, paper_migration_s, plan_migration
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.simulator.spot_batches import Job, Pipeline
from spotwise.simulator.spot_choices import Choices
from spotwise.simulator.spot_fleet import FleetEvent, Stage
from spotwise.simulator.spot_runs import ConfigChange
from spotwise.simulator.spot_systems import SpotSurroundings

if TYPE_CHECKING:
    from spotwise.simulator.spot_world import SpotWorld


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that is to come.

    Attributes:
        config: what shall stand.
        begins_s: when pipelines stop.
        migration_s: T_mig, as reckoned with.
        deadline_s: of the instance that goes first; `None` where none has to.
        runs_on: pipelines that do not stop, as far as is known.
    """

    config: ParallelConfig
    begins_s: float
    migration_s: float
    deadline_s: float | None
    runs_on: tuple[int, ...]


def links_of(surroundings: SpotSurroundings) -> Links:
    """Return the links as planning sees them."""
    return Links(
        within_bytes_per_s=surroundings.local_bytes_per_s,
        between_bytes_per_s=surroundings.network_bytes_per_s,
        storage_bytes_per_s=surroundings.storage_bytes_per_s,
        groups_s=surroundings.switch_s,
    )


class Migrating:
    """SpotServe, whole or with parts taken away."""

    def __init__(self, world: SpotWorld) -> None:
        self._world = world
        run = world.run_
        self._run, self._system = run, run.system
        self._choices = Choices(run)
        self._links = links_of(run.surroundings)
        self._config: ParallelConfig | None = None
        self._positions: dict[Device, Position] = {}
        self._deadlines_s: dict[int, float] = {}
        self._planned: Planned | None = None
        self._moving = False

    # -- what the world asks

    def fleet_changed(self, event: FleetEvent) -> None:
        """Take pipelines down whose devices are gone."""
        if event.stage is Stage.NOTICED:
            self._note_deadlines()
        if event.stage is not Stage.GONE:
            return
        gone = {machine.id for machine in event.machines}
        hit = sorted({position.pipeline for device, position in self._positions.items() if device.instance in gone})
        self._positions = {device: place for device, place in self._positions.items() if device.instance not in gone}
        for number in hit:
            if pipeline := self._world.floor.pipelines.get(number):
                self._world.floor.lose(self._world.floor.halt(pipeline), keep_answer=self._system.recovers)
        self._note_deadlines()

    def accepts(self, pipeline: Pipeline, batch: list[Job]) -> bool:
        """Return whether a batch pays before its pipeline has to stop."""
        planned, deadline_s = self._planned, self._deadlines_s.get(pipeline.number)
        stops = planned is not None and pipeline.number not in planned.runs_on
        if not stops and deadline_s is None:
            return True
        if planned is not None and planned.deadline_s is None:
            return False  # the iterations that are awaited end soon
        now = self._world.now
        fixed_s, step_s, steps = pipeline.planned(batch, len(batch))
        if planned is None or planned.deadline_s is None or not stops:
            return deadline_s is None or now + fixed_s + steps * step_s <= deadline_s
        left_s = max(0.0, planned.deadline_s - now)
        stop = before_preemption(LinearExecution(fixed_s, step_s), steps, left_s, planned.migration_s)
        return stop.stop is not Stop.REROUTE

    def decide(self) -> None:
        """Plan a change, plan it anew, or let things be."""
        if self._moving:
            return
        self._planned = None
        deadline_s = min(self._deadlines_s.values(), default=None)
        config = self._choices.config(len(self._world.fleet.here()), self._world.rate())
        if config is None or (deadline_s is None and config == self._config and self._is_whole()):
            return
        if self._config is None and self._world.now <= 0.0:
            self._start(config)
            return
        planned = self._preview(config, deadline_s)
        self._planned = planned
        self._world.events.at(planned.begins_s, self._begin, planned)

    def _is_whole(self) -> bool:
        return self._config is not None and len(self._positions) == self._config.devices

    def _note_deadlines(self) -> None:
        """Note when each pipeline loses its first device."""
        self._deadlines_s.clear()
        machines = self._world.fleet.machines
        for device, position in self._positions.items():
            deadline_s = machines[device.instance].deadline_s
            if deadline_s is not None:
                earlier_s = self._deadlines_s.get(position.pipeline, deadline_s)
                self._deadlines_s[position.pipeline] = min(earlier_s, deadline_s)

    # -- a change

    def _start(self, config: ParallelConfig) -> None:
        """Stand from the beginning, with the weights where they belong."""
        world = self._world
        self._config = config
        self._positions = dict(Deployment.in_order(config, world.fleet.instances()).positions)
        for number in range(config.pipelines):
            world.floor.stand(number, config, world.now, [])
        world.changes.append(ConfigChange(world.now, config, len(world.fleet.here())))

    def _preview(self, config: ParallelConfig, deadline_s: float | None) -> Planned:
        """Reckon with a change; where time presses, as if every batch were as large as it may become."""
        now = self._world.now
        running = {pipeline.number: pipeline.snapshot(now) for pipeline in self._world.floor.standing()}
        device_map = self._map(config, self._before(config, running if self._system.recovers else {}))
        runs_on = tuple(sorted(device_map.running_on.values()))
        stopping = [pipeline for pipeline in self._world.floor.standing() if pipeline.number not in runs_on]
        migration_s = 0.0
        if not self._is_whole() or not self._system.recovers:
            begins_s = now  # nothing is gained by waiting, or nobody knows how
        elif deadline_s is not None:
            plan = self._plan(self._map(config, self._before(config, running | self._largest(stopping))))
            migration_s = max(plan.done_s, paper_migration_s(plan))
            begins_s = max(now, deadline_s - migration_s)
        else:
            begins_s = max((self._boundary_s(pipeline) for pipeline in stopping), default=now)
        return Planned(config, begins_s, migration_s, deadline_s, runs_on)

    def _boundary_s(self, pipeline: Pipeline) -> float:
        """Return when a pipeline stops for an instance that is there: after the fewest steps, which is its iteration's end."""
        now = self._world.now
        if not pipeline.is_busy or pipeline.serves_from_s > now:
            return now
        boundary_s = max(now, pipeline.boundary_s(now))
        left = max(0, round((pipeline.ends_s - boundary_s) / pipeline.step_s))
        stop = before_acquisition(LinearExecution(boundary_s - now, pipeline.step_s), left, 0.0, 0.0)
        return now + stop.execution_s

    def _largest(self, stopping: list[Pipeline]) -> dict[int, tuple[RunningRequest, ...]]:
        """Return batches as they may be when these pipelines stop: as wide and as long as can be."""
        arrivals = self._run.arrivals
        tokens = arrivals.input_tokens + arrivals.output_tokens
        found = {}
        for pipeline in stopping:
            jobs = pipeline.jobs + pipeline.held
            room = pipeline.config.max_batch * (1 if pipeline.decodes else 2) - len(jobs)
            requests = [RunningRequest(str(job.number), tokens, job.decoded) for job in jobs]
            requests += [RunningRequest(f"{pipeline.number}+{place}", tokens) for place in range(room)]
            found[pipeline.number] = tuple(requests)
        return found

    def _before(self, config: ParallelConfig, running: dict[int, tuple[RunningRequest, ...]]) -> Deployment:
        instances = self._world.fleet.instances()
        return Deployment(self._config or config, instances, self._positions, running)

    def _map(self, config: ParallelConfig, before: Deployment) -> DeviceMap:
        return map_devices(before, config, self._run.model.shape) if self._system.matches else _in_order(before, config)

    def _plan(self, device_map: DeviceMap) -> MigrationPlan:
        progressive = self._system.progressive
        surroundings, pace = self._run.surroundings, self._world.floor.pace
        config = device_map.config
        stage_s = pace.prompt_s(config, 1, pace.input_tokens) / config.pipeline if progressive else 0.0
        policy = PlanPolicy(
            progressive=progressive,
            buffer_bytes=surroundings.buffer_bytes if progressive else None,
            stage_s=stage_s,
        )
        return plan_migration(device_map, self._run.model.shape, self._links, policy, self._world.now)

    def _begin(self, planned: Planned) -> None:
        """Stop what does not run on, and put up what shall stand."""
        if planned is not self._planned:
            return
        world, now = self._world, self._world.now
        self._planned = None
        running = {number: pipeline.snapshot(now) for number, pipeline in world.floor.pipelines.items()}
        device_map = self._map(planned.config, self._before(planned.config, running if self._system.recovers else {}))
        plan = self._plan(device_map)
        stays = {old: new for new, old in device_map.running_on.items()}
        standing = [pipeline for pipeline in world.floor.standing() if pipeline.number in stays]
        jobs: dict[str, Job] = {}
        for pipeline in [pipeline for pipeline in world.floor.standing() if pipeline.number not in stays]:
            jobs |= {str(job.number): job for job in world.floor.halt(pipeline)}
        world.floor.pipelines.clear()
        self._config, self._positions = planned.config, dict(device_map.positions)
        self._note_deadlines()
        for pipeline in standing:
            pipeline.number, pipeline.config = stays[pipeline.number], planned.config
            world.floor.pipelines[pipeline.number] = pipeline
        recomputed = {request.id for request in plan.recomputed}
        for number in range(planned.config.pipelines):
            if number in device_map.running_on:
                continue
            goes_on = [jobs.pop(request.id) for request in device_map.running.get(number, ()) if request.id in jobs]
            lost = [job for job in goes_on if str(job.number) in recomputed]
            world.floor.lose(lost, keep_answer=True)
            kept = [job for job in goes_on if str(job.number) not in recomputed]
            world.floor.stand(number, planned.config, now + plan.pause_s[number], kept)
        world.floor.lose(list(jobs.values()), keep_answer=self._system.recovers)
        stopped = [
            plan.pause_s[number] for number in range(planned.config.pipelines) if number not in device_map.running_on
        ]
        instances = len(world.fleet.here())
        world.changes.append(
            ConfigChange(
                now,
                planned.config,
                instances,
                max(stopped, default=0.0),
                plan.moved_bytes,
                plan.storage_bytes,
                paper_migration_s(plan),
            )
        )
        self._moving = True
        world.events.at(now + plan.done_s, self._moved)

    def _moved(self, _: object) -> None:
        self._moving = False
        self._world.decide_soon()


def _in_order(before: Deployment, config: ParallelConfig) -> DeviceMap:
    """Return the map of who does not match: positions in the order of instances, batches where their numbers are."""
    after = Deployment.in_order(config, before.instances)
    running: dict[int, tuple[RunningRequest, ...]] = {}
    waiting: list[RunningRequest] = []
    for number, requests in before.running.items():
        fits = config.max_batch if number < config.pipelines else 0
        running[number] = requests[:fits]
        waiting += requests[fits:]
    return DeviceMap(before, config, after.positions, {k: v for k, v in running.items() if v}, tuple(waiting), 0, 0, {})
