"""The paper's baselines on a fleet change (SpotServe, section 6.1, and its artifact). Reparallelization restarts all engines:
weights load from storage and all requests are recomputed. Rerouting keeps P and M: a pipeline fails with its instance, and
idle instances form a new one. Neither starts a batch that would miss its deadline."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.migration.deployment import Deployment, Device, Instance
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.planning.plan import PlanPolicy
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.spotserve.batches import ArtifactPipeline
from spotwise.simulator.spotserve.choices import Choices
from spotwise.simulator.spotserve.fleet import InstanceEvent, Stage
from spotwise.simulator.spotserve.pipelines import Job
from spotwise.simulator.spotserve.run import ConfigChange
from spotwise.simulator.spotserve.serving_state import links_of
from spotwise.simulator.spotserve.spot_world import SpotWorld


class _Reloading:
    def __init__(self, world: SpotWorld) -> None:
        self._world, self._run = world, world.run_
        self._devices: dict[int, tuple[Device, ...]] = {}
        self._load_s: dict[tuple[ParallelConfig, int], tuple[float, int]] = {}

    def accepts(self, pipeline: ArtifactPipeline, batch: list[Job]) -> bool:
        deadline_s = self._deadline_s([pipeline.number])
        fixed_s, step_s, steps = pipeline.planned(batch, len(batch))
        return deadline_s is None or self._world.now + fixed_s + steps * step_s <= deadline_s

    def uses(self, instance: str) -> bool:
        """Return whether a pipeline has devices of an instance."""
        return any(device.instance == instance for devices in self._devices.values() for device in devices)

    @property
    def is_changing(self) -> bool:
        """Never: a restarted pipeline is there at once, and serves once it has its weights."""
        return False

    def _deadline_s(self, numbers: list[int]) -> float | None:
        machines = self._world.fleet.machines
        instances = [device.instance for number in numbers for device in self._devices.get(number, ())]
        deadlines = [machines[instance].deadline_s for instance in instances if instance in machines]
        return min((deadline_s for deadline_s in deadlines if deadline_s is not None), default=None)

    def _lose(self, number: int) -> None:
        self._devices.pop(number, None)
        dispatcher = self._world.dispatcher
        if dispatcher.pipeline(number) is not None:
            dispatcher.recompute(dispatcher.stop(number), keep_answer=False)

    def _hit(self, event: InstanceEvent) -> list[int]:
        if event.stage is not Stage.GONE:
            return []
        gone = {machine.id for machine in event.machines}
        return [number for number, devices in self._devices.items() if any(each.instance in gone for each in devices)]

    def _loading(self, config: ParallelConfig, instances: int) -> tuple[float, int]:
        """Return seconds and bytes of loading all weights from storage into restarted engines."""
        key = (config, instances)
        if key not in self._load_s:
            empty = Deployment(config, tuple(Instance(f"{n:06}", self._run.model.devices) for n in range(instances)))
            device_map = map_devices(empty, config, self._run.model.shape)
            plan = plan_migration(
                device_map, self._run.model.shape, links_of(self._run.surroundings), PlanPolicy(False, restart=True)
            )
            self._load_s[key] = (self._run.surroundings.restart_s + plan.done_s, plan.storage_bytes)
        return self._load_s[key]


class Restarting(_Reloading):
    """Reparallelization (baseline)."""

    def __init__(self, world: SpotWorld) -> None:
        super().__init__(world)
        self._config: ParallelConfig | None = None

    def fleet_changed(self, event: InstanceEvent) -> None:
        """Stop the pipelines that lost devices."""
        for number in self._hit(event):
            self._lose(number)

    def decide(self) -> None:
        """Restart now, at the next deadline, or not at all."""
        now, fleet = self._world.now, self._world.fleet
        deadline_s = self._deadline_s(list(self._devices))
        config = self._world.config_on(len(fleet.here()))
        is_whole = self._config is not None and len(self._devices) == self._config.pipelines
        if deadline_s is not None and is_whole:
            return  # they serve until then; the next decision follows their preemption
        if config is not None and not (is_whole and config == self._config):
            self._restart(config, now)

    def _restart(self, config: ParallelConfig, now: float) -> None:
        world = self._world
        first = now <= 0.0
        for pipeline in world.dispatcher.pipelines:
            self._lose(pipeline.number)
        instances = tuple(instance for instance in world.fleet.instances() if not instance.is_leaving)
        positions = Deployment.in_order(config, instances).positions
        load_s, loaded_bytes = (0.0, 0) if first else self._loading(config, len(instances))
        self._config = config
        self._devices = {
            number: tuple(device for device, place in positions.items() if place.pipeline == number)
            for number in range(config.pipelines)
        }
        for number in range(config.pipelines):
            world.dispatcher.start(number, config, now + load_s, [])
        world.changes.append(
            ConfigChange(now, config, len(instances), load_s, storage_bytes=loaded_bytes, migration_s=load_s)
        )


class Rerouting(_Reloading):
    """Rerouting (baseline)."""

    def __init__(self, world: SpotWorld) -> None:
        super().__init__(world)
        self._shape = Choices(world.run_).shape
        self._next_number = 0

    def fleet_changed(self, event: InstanceEvent) -> None:
        """Stop the pipelines that lost devices."""
        hit = self._hit(event)
        for number in hit:
            self._lose(number)
        if hit:
            self._note(0.0, 0)

    def decide(self) -> None:
        """Form pipelines of idle instances."""
        world, shape = self._world, self._shape
        if shape is None:
            return
        taken = {device for devices in self._devices.values() for device in devices}
        staying = [instance for instance in world.fleet.instances() if not instance.is_leaving]
        idle = [device for instance in staying for device in instance.all_devices() if device not in taken]
        first = world.now <= 0.0
        instances = -(-shape.pipeline_devices // self._run.model.devices)
        load_s, loaded_bytes = (0.0, 0) if first else self._loading(shape, instances)
        made = 0
        while len(idle) >= shape.pipeline_devices:
            devices, idle = tuple(idle[: shape.pipeline_devices]), idle[shape.pipeline_devices :]
            number, self._next_number = self._next_number, self._next_number + 1
            self._devices[number] = devices
            world.dispatcher.start(number, shape, world.now + load_s, [])
            made += 1
        if made:
            self._note(load_s, made * loaded_bytes)

    def _note(self, pause_s: float, loaded_bytes: int) -> None:
        world, shape = self._world, self._shape
        config = replace(shape, data=len(self._devices)) if shape and self._devices else None
        world.changes.append(
            ConfigChange(world.now, config, len(world.fleet.here()), pause_s, storage_bytes=loaded_bytes)
        )
