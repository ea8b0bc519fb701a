"""Discrete-event simulation of SpotServe's paper (sections 3 and 6.1): arrivals, pipelines and the spot fleet. Batches are the
artifact's (`dispatch.py`) or the mesh's roles' (`role_dispatch.py`); the system (`migrations.py`, `restarts.py`) decides
after all events of one time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from spotwise.core.fleet.kept_choice import ChangeSeconds
from spotwise.core.parallel.arrivals import ArrivalWindow
from spotwise.core.parallel.config import ParallelConfig
from spotwise.files.traced_nodes import TracedNodes
from spotwise.simulator.spotserve.choices import Choices
from spotwise.simulator.spotserve.dispatch import Accepts, ArtifactDispatcher
from spotwise.simulator.spotserve.fleet import Fleet, InstanceEvent, fleet_events
from spotwise.simulator.spotserve.fleet_market import MARKET_TICK_S, FleetMarket
from spotwise.simulator.spotserve.pipelines import Job
from spotwise.simulator.spotserve.role_dispatch import RoleDispatcher
from spotwise.simulator.spotserve.run import (
    STALL_S,
    AnsweredRequest,
    ConfigChange,
    SpotOutcome,
    SpotRun,
    UnfinishedRequest,
)
from spotwise.simulator.world.events import EventQueue


class ServingSystem(Accepts, Protocol):
    """The interface of a system's decisions."""

    def fleet_changed(self, event: InstanceEvent) -> None:
        """Handle an event, already applied to the fleet."""

    def decide(self) -> None:
        """Reconfigure where needed, after all events of this time."""

    def uses(self, instance: str) -> bool:
        """Return whether a pipeline has devices of an instance, or data still leaves it."""

    @property
    def is_changing(self) -> bool:
        """Whether a reconfiguration is planned or moves data."""


class SpotWorld:
    """One run.

    Attributes:
        events: the clock.
        dispatcher: the queue and the pipelines.
        changes: reconfigurations so far.
        system: changes the configuration.
    """

    def __init__(self, run: SpotRun, system: Callable[[SpotWorld], ServingSystem]) -> None:
        self.run_ = run
        self.events = EventQueue()
        self.fleet = Fleet(run.model.devices)
        artifact = None if run.system.uses_roles else ArtifactDispatcher(run, self.events)
        self.dispatcher: ArtifactDispatcher | RoleDispatcher = artifact or RoleDispatcher(run, self.events)
        self.changes: list[ConfigChange] = []
        sizes = run.arrivals.request_sizes()
        self._jobs = [
            Job(number, at_s, *size)
            for number, (at_s, size) in enumerate(zip(run.arrivals.times_s, sizes, strict=True))
        ]
        self._rate = run.required_rate
        self._window = ArrivalWindow(run.surroundings.window_s)
        self._will_decide = False
        self._choices = Choices(run) if run.market is None else None
        self._market: FleetMarket | None = None
        if run.market is not None:
            nodes = TracedNodes(run.trace, grace_s=run.surroundings.grace_s)
            self._market = FleetMarket(
                run.market,
                run.model.shape,
                run.model.max_batch,
                nodes,
                self.events,
                self.dispatcher.running,
                self.fleet_happens,
            )
        self.system = system(self)
        if artifact is not None:
            artifact.judge = self.system

    @property
    def _is_measured(self) -> bool:
        """Whether neither the run nor its trace says what the load is."""
        return self._rate is None and not any(change.required_rate for change in self.run_.trace.events)

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return self.events.now

    def run(self) -> SpotOutcome:
        """Run to the last answer, to the bound, or until nothing has happened for `STALL_S` after the trace."""
        if self._market is None:
            self._foresee()
        for job in self._jobs:
            self.events.at(job.arrived_s, self._arrived, job)
        if self._market is not None:
            self._market.begin()
            self.events.at(0.0, self._market_advances, self._market)
        elif self.run_.system.keeps or self._is_measured:
            self.events.at(self.run_.surroundings.window_s, self._load_measured)
        self._run_until(self.run_.trace.end_s)
        while self.dispatcher.unanswered and self.now < self.run_.bound_s:
            before = self._progress()
            self._run_until(min(self.now + STALL_S, self.run_.bound_s))
            if self._progress() == before and not self._awaits():
                break
        return self._outcome()

    def _run_until(self, until_s: float) -> None:
        self.events.at(until_s, lambda _: None)  # the clock gets there, whatever else is scheduled
        self.events.run(until_s)

    def _awaits(self) -> bool:
        """Return whether an iteration runs, a pipeline gets its weights, or a change has begun: slow is not stalled."""
        lines = self.dispatcher.pipelines
        return self.system.is_changing or any(
            max(line.serves_from_s, line.boundary_s(self.now)) > self.now for line in lines
        )

    def _progress(self) -> tuple[object, ...]:
        """Return what differs once a token was computed, an instance came or left, or the configuration changed."""
        running = [line.snapshot(self.now) for line in self.dispatcher.pipelines]
        return self.dispatcher.unanswered, tuple(self.fleet.machines), len(self.changes), running

    def _foresee(self) -> None:
        """Schedule what happens without a market: instances come and go, and the load is told."""
        run, surroundings = self.run_, self.run_.surroundings
        for event in fleet_events(
            run.trace, surroundings.grace_s, surroundings.announced_s, frozenset(run.on_demand_nodes)
        ):
            self.events.at(event.time_s, self.fleet_happens, event)
        for change in run.trace.events:
            if change.required_rate is not None:
                self.events.at(change.time_s, self._load_given, change.required_rate)

    def _outcome(self) -> SpotOutcome:
        trace_end_s = self.run_.trace.end_s
        answered = tuple(
            AnsweredRequest(job.arrived_s, job.finished_s, job.interruptions, job.recomputed_tokens)
            for job in self._jobs
            if job.finished_s is not None
        )
        # A running batch has decoded more than its jobs were told at their last stop.
        running = {int(each.id): each for line in self.dispatcher.pipelines for each in line.snapshot(self.now)}
        unfinished = tuple(
            UnfinishedRequest(
                job.arrived_s,
                running[job.number].decoded if job.number in running else job.decoded,
                job.interruptions,
                job.recomputed_tokens,
            )
            for job in self._jobs
            if job.finished_s is None
        )
        ended_s = self.now if unfinished else max([trace_end_s, *(request.finished_s for request in answered)])
        shown = SpotOutcome(
            answered,
            unfinished,
            tuple(self.changes),
            self.fleet.paid_lives(ended_s),
            trace_end_s,
            ended_s,
            why_unfinished=self._why_unfinished() if unfinished else "",
        )
        if (market := self._market) is None:
            return shown
        return replace(shown, lives=market.lives(ended_s), spent=market.spent(ended_s), chosen=tuple(market.chosen))

    def _why_unfinished(self) -> str:
        here, model = len(self.fleet.here()), self.run_.model.shape.name
        left = f"{here} instance{'' if here == 1 else 's'}"
        if not here:
            return "no instance is left"
        if self.config_on(here) is None:
            return f"no configuration of {model} fits the {left} that {'is' if here == 1 else 'are'} left"
        if self.now < self.run_.bound_s:
            return f"nothing has happened for {STALL_S:g} s, with {left}"
        return f"{left} had not answered them {self.run_.drain_s:g} s after the trace's end"

    def rate(self) -> float:
        """Return the rate to serve, requests a second."""
        if self._rate is not None:
            return self._rate
        return self._window.rate(min(self.now, self.run_.trace.end_s) if self.run_.keeps_rate else self.now)

    def config_on(self, instances: int, change: ChangeSeconds | None = None) -> ParallelConfig | None:
        """Return the configuration for so many instances now; `None` where the model does not fit. `change`: what one takes, of
        a system that keeps its configuration.
        """
        if self._market is not None:
            return self._market.config_on(instances, change)
        assert self._choices is not None
        return self._choices.config(instances, self.rate(), self.now, change)

    def decide_soon(self, _: object = None) -> None:
        """Schedule one decision of the system after all events of this time."""
        if not self._will_decide:
            self._will_decide = True
            self.events.at(self.now, self._decide)

    def fleet_happens(self, event: InstanceEvent) -> None:
        """Apply an event to the fleet."""
        self.fleet.apply(event)
        self.system.fleet_changed(event)
        self.decide_soon()
        self.dispatcher.look()

    def _decide(self, _: object) -> None:
        self._will_decide = False
        self.system.decide()
        self.dispatcher.look()

    def _market_advances(self, market: FleetMarket) -> None:
        if market.advance(self.system):
            self.decide_soon()
        if self.dispatcher.unanswered or self.now < self.run_.trace.end_s:
            self.events.at(self.now + MARKET_TICK_S, self._market_advances, market)

    def _load_given(self, rate: float) -> None:
        self._rate = rate
        self.decide_soon()

    def _load_measured(self, _: object) -> None:
        self.decide_soon()
        if self.dispatcher.unanswered:
            self.events.at(self.now + self.run_.surroundings.window_s, self._load_measured)

    def _arrived(self, job: Job) -> None:
        self._window.add(self.now)
        if self._market is not None:
            self._market.arrived(job)
        self.dispatcher.arrive(job)
