"""SpotServe's reconfigurations: core's orders carried out on pipelines. `FleetChanges` decides which notices, losses and joins
one reconfiguration covers; pipelines decode until the last moment that lets the migration finish, or until joining instances
are ready (SpotServe, section 4.1). An early preemption costs KV, never a request: it resumes from committed tokens."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.fleet.kept_choice import ChangeSeconds
from spotwise.core.migration.deployment import DeviceMap
from spotwise.core.migration.fleet import events as e
from spotwise.core.migration.fleet.changes import FleetChanges, FleetLimits
from spotwise.core.migration.interruption.just_in_time import LinearExecution, Stop, before_preemption
from spotwise.core.migration.planning.plan import MigrationPlan, paper_migration_s
from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.spotserve.batches import ArtifactPipeline
from spotwise.simulator.spotserve.fleet import InstanceEvent, Stage
from spotwise.simulator.spotserve.pipelines import Job
from spotwise.simulator.spotserve.role_dispatch import RoleDispatcher
from spotwise.simulator.spotserve.run import ConfigChange
from spotwise.simulator.spotserve.serving_state import Planned, ServingState, lacking
from spotwise.simulator.spotserve.spot_world import SpotWorld


class Migrating:
    """SpotServe, whole or with parts removed (ablation)."""

    def __init__(self, world: SpotWorld) -> None:
        self._world = world
        self._recovers, self._keeps = world.run_.system.recovers, world.run_.system.keeps
        self._serving_state = ServingState(world)
        surroundings = world.run_.surroundings
        # Pipelines decode while a reconfiguration waits, so it also covers a notice that comes before they stop. It fails only
        # after the loss of an instance, so waiting gains nothing.
        limits = FleetLimits(surroundings.gather_s, reserve_s=surroundings.grace_s, retry_s=0.0)
        self._changes = FleetChanges(limits)
        self._members: dict[str, None] = {}  # instances of a change, or there before the first
        self._change: e.BeginChange | None = None
        self._planned: Planned | None = None  # until it begins
        self._plan: MigrationPlan | None = None  # while it moves
        self._stopped_s = 0.0
        self._planned_s = 0.0
        self._change_seconds = ChangeSeconds(pause_s=surroundings.switch_s)  # the last one's, until there is one

    def fleet_changed(self, event: InstanceEvent) -> None:
        """Report to core, and stop pipelines that lost devices."""
        self._serving_state.note_deadlines()
        for machine in event.machines:
            if event.stage is Stage.ANNOUNCED and machine.ready_s > 0.0:
                self._report(e.InstanceAcquired(machine.id, machine.ready_s))
            elif event.stage is Stage.NOTICED and machine.deadline_s is not None:
                self._move_away(machine.id)
                self._report(e.InstanceNoticed(machine.id, machine.deadline_s))
            elif event.stage is Stage.GONE:
                self._members.pop(machine.id, None)
                self._report(e.InstanceLost(machine.id))
                self._lose(machine.id)  # pipelines remain where no configuration fits without it

    def accepts(self, pipeline: ArtifactPipeline, batch: list[Job]) -> bool:
        """Return whether a batch can end before its pipeline has to stop."""
        planned, deadline_s = self._planned, self._serving_state.deadlines_s.get(pipeline.number)
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
        """Start, plan the reconfiguration that core has begun, or report that another configuration is needed."""
        if self._serving_state.config is None and self._world.now <= 0.0:
            self._start()
        elif self._change is None:
            wanted = self._wanted(self._staying(self._world.now))
            if wanted is not None and wanted != self._serving_state.config:
                self._report(e.LoadChanged())
        elif self._planned is None and self._plan is None:
            self._prepare(self._change)

    def uses(self, instance: str) -> bool:
        """Return whether a pipeline has devices of an instance, or data still leaves it."""
        # Where pipelines are formed ahead, those under notice hand their requests over: nothing waits for the change.
        change = None if self._world.run_.system.forms_ahead else self._change
        leaving = () if change is None else change.leaving
        sending = () if self._plan is None else self._plan.transfers
        return (
            any(device.instance == instance for device in self._serving_state.positions)
            or any(each.instance == instance for each in leaving)
            or any(each.source is not None and each.source.instance == instance for each in sending)
        )

    @property
    def is_changing(self) -> bool:
        """Whether a reconfiguration is planned or moves data."""
        return self._planned is not None or self._plan is not None

    def _report(self, event: e.FleetChangeEvent) -> None:
        for command in self._changes.handle(event, self._world.now):
            match command:
                case e.BeginChange():
                    self._change = command
                    self._world.decide_soon()  # after all events of this time
                case e.AbandonChange():
                    if self._plan is None:
                        self._end(done=False)
                case e.MoveDeadline():
                    self._plan_again()
                case e.DropKv(instance):
                    self._lose(instance)
                case e.WakeAt(at_s):
                    self._world.events.at(max(at_s, self._world.now), self._ticked)

    def _ticked(self, _: object) -> None:
        self._report(e.FleetTick())

    def _lose(self, instance: str) -> None:
        """Stop the pipelines with devices of an instance, or that it still sends to."""
        state, dispatcher = self._serving_state, self._world.dispatcher
        hit = state.lose(instance)
        if self._plan is not None:
            hit += state.forget(lacking(self._plan, self._world.now - self._stopped_s, instance))
        for number in sorted(hit):
            if dispatcher.pipeline(number) is not None:
                dispatcher.recompute(dispatcher.stop(number), keep_answer=self._recovers)
        planned = self._planned
        if planned is None or not planned.is_formed or instance in planned.staying:
            self._plan_again()  # otherwise what forms goes on, and is mapped anew when it has its weights

    def _move_away(self, instance: str) -> None:
        """Let the requests of pipelines under notice go on in those that stay, where these have room: the mesh does that before
        a new configuration forms.
        """
        world, state = self._world, self._serving_state
        dispatcher, config = world.dispatcher, state.config
        if not isinstance(dispatcher, RoleDispatcher) or not world.run_.system.forms_ahead or self._plan is not None:
            return
        hit = {position.pipeline for device, position in state.positions.items() if device.instance == instance}
        lines = dispatcher.pipelines
        staying = [line for line in lines if line.number not in state.deadlines_s and line.serves_from_s <= world.now]
        room = sum(line.config.max_batch - len(line.batch) for line in staying)
        if config is None or config.is_split or sum(len(line.batch) for line in lines if line.number in hit) > room:
            return
        moved_bytes, pause_s, around = 0, 0.0, world.run_.surroundings
        for number in sorted(hit):
            for job in dispatcher.stop(number) if dispatcher.pipeline(number) is not None else ():
                target = min(staying, key=lambda line: (len(line.batch), line.number))
                moved_bytes += job.kv_tokens * world.run_.model.shape.kv_token_bytes
                pause_s = around.move_s + moved_bytes / around.network_bytes_per_s  # one after another
                dispatcher.hand_over(job, target.number, world.now + pause_s)
            state.forget([device for device, position in state.positions.items() if position.pipeline == number])
        if hit:
            left = replace(config, data=len(dispatcher.pipelines)) if dispatcher.pipelines else None
            world.changes.append(ConfigChange(world.now, left, len(world.fleet.here()), pause_s, moved_bytes))

    def _plan_again(self) -> None:
        if self._planned is not None:
            self._planned = None
            self._world.decide_soon()

    def _staying(self, by_s: float) -> tuple[str, ...]:
        change = self._change or e.BeginChange(0)
        instances = {**self._members, **{joining.instance: None for joining in change.joining}}
        for leaving in change.leaving:
            instances.pop(leaving.instance, None)
        machines = self._world.fleet.machines.values()
        return tuple(machine.id for machine in machines if machine.id in instances and machine.ready_s <= by_s)

    def _wanted(self, staying: tuple[str, ...]) -> ParallelConfig | None:
        return self._world.config_on(len(staying), self._change_seconds if self._keeps else None)

    def _start(self) -> None:
        world = self._world
        self._members = dict.fromkeys(machine.id for machine in world.fleet.here())
        config = self._wanted(tuple(self._members))
        if config is None:
            return
        self._serving_state.start(config, tuple(self._members))
        for number in range(config.pipelines):
            world.dispatcher.start(number, config, world.now, [])
        world.changes.append(ConfigChange(world.now, config, len(world.fleet.here())))

    def _prepare(self, change: e.BeginChange) -> None:
        """Plan a reconfiguration, or end it where nothing changes or no configuration fits."""
        now, state = self._world.now, self._serving_state
        ready_s = now if change.leaving else min((joining.ready_s for joining in change.joining), default=now)
        if ready_s > now and self._wanted(self._staying(now)) in (None, state.config):
            self._report(e.ChangeExpected(change.change, ready_s))
            return  # decided again when an instance is ready, or the load changes
        deadline_s = state.deadline_s(self._staying(now))
        planned = self._preview(now if deadline_s is None else deadline_s, deadline_s)
        if planned is not None and (complete_s := self._complete_s(planned)) > planned.begins_s:
            planned = self._preview(planned.begins_s, deadline_s) or planned
            planned = replace(planned, begins_s=max(planned.begins_s, min(complete_s, self._complete_s(planned))))
        if planned is None or (planned.config == state.config and state.is_whole and state.is_on(planned.staying)):
            self._members.update(dict.fromkeys(self._staying(now)))
            self._end(done=True)
            return
        self._planned, self._planned_s = planned, now
        self._world.events.at(planned.begins_s, self._begin, planned)
        self._report(e.ChangeExpected(change.change, planned.begins_s + planned.migration_s))

    def _preview(self, by_s: float, deadline_s: float | None) -> Planned | None:
        """`None` where no configuration fits the instances ready by `by_s`."""
        staying = self._staying(by_s)
        config = self._wanted(staying)
        return None if config is None else self._serving_state.preview(config, staying, deadline_s)

    def _complete_s(self, planned: Planned) -> float:
        machines = self._world.fleet.machines
        return max(machines[instance].ready_s for instance in planned.staying)

    def _begin(self, planned: Planned) -> None:
        if planned is not self._planned or self._change is None:
            return
        world, now = self._world, self._world.now
        device_map, plan = self._serving_state.plan(planned)
        self._report(e.ChangeExpected(self._change.change, now + plan.done_s))
        if planned is not self._planned:
            return  # it would take longer than an instance stays
        self._planned, self._plan, self._stopped_s = None, plan, now
        self._members.update(dict.fromkeys(planned.staying))
        pauses = [plan.pause_s[number] for number in plan.pause_s if number not in device_map.running_on]
        if self._serving_state.config is None or planned.config.shape != self._serving_state.config.shape:
            self._change_seconds = ChangeSeconds(now - self._planned_s, max(pauses, default=0.0))
        self._put_up(device_map, plan)
        migration_s = paper_migration_s(plan)
        world.changes.append(
            ConfigChange(
                now,
                planned.config,
                len(world.fleet.here()),
                max(pauses, default=0.0),
                plan.moved_bytes,
                plan.storage_bytes,
                migration_s,
            )
        )
        world.events.at(now + plan.done_s, self._moved)

    def _put_up(self, device_map: DeviceMap, plan: MigrationPlan) -> None:
        """Start a new configuration; requests follow their KV, or wait."""
        dispatcher, now, config = self._world.dispatcher, self._world.now, plan.config
        runs_on = {old: new for new, old in device_map.running_on.items()}
        jobs: dict[str, Job] = {}
        for pipeline in dispatcher.pipelines:
            if pipeline.number not in runs_on:
                jobs |= {str(job.number): job for job in dispatcher.stop(pipeline.number)}
        self._serving_state.take(config, dict(device_map.positions))
        dispatcher.renumber(runs_on, config)
        recomputed = {request.id for request in plan.recomputed}
        for number in range(config.pipelines):
            if number in device_map.running_on:
                continue
            resumed = [jobs.pop(request.id) for request in device_map.running.get(number, ()) if request.id in jobs]
            dispatcher.recompute([job for job in resumed if str(job.number) in recomputed], keep_answer=True)
            kept = [job for job in resumed if str(job.number) not in recomputed]
            dispatcher.start(number, config, now + plan.pause_s[number], kept)
        dispatcher.recompute(list(jobs.values()), keep_answer=self._recovers)

    def _moved(self, _: object) -> None:
        self._end(done=self._serving_state.is_whole)

    def _end(self, *, done: bool) -> None:
        """Report the end of the reconfiguration to core, and again the instances that it did not use."""
        change = self._change
        assert change is not None
        self._change = self._planned = self._plan = None
        if done:
            for leaving in change.leaving:
                self._members.pop(leaving.instance, None)
        self._report(e.ChangeEnded(change.change, done))
        for joining in change.joining if done else ():
            machine = self._world.fleet.machines.get(joining.instance)
            if machine is not None and machine.stays and machine.id not in self._members:
                self._report(e.InstanceAcquired(machine.id, machine.ready_s))
        self._world.decide_soon()
