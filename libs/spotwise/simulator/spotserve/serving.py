"""Simulates serving on spot instances: runs a system, and reports its latencies, unserved requests and open requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.spotserve.migrations import Migrating
from spotwise.simulator.spotserve.restarts import Rerouting, Restarting
from spotwise.simulator.spotserve.run import SpotOutcome, SpotRun
from spotwise.simulator.spotserve.spot_world import ServingSystem, SpotWorld
from spotwise.simulator.spotserve.systems import Reaction

_SYSTEMS: Mapping[Reaction, Callable[[SpotWorld], ServingSystem]] = {
    Reaction.MIGRATE: Migrating,
    Reaction.RESTART: Restarting,
    Reaction.REROUTE: Rerouting,
}

#: Of the latencies.
_PERCENTS = (50, 90, 99)


def serve(run: SpotRun) -> SpotOutcome:
    """Run a simulation until its last answer, or its bound."""
    return world_of(run).run()


def world_of(run: SpotRun) -> SpotWorld:
    """Return a run's world before its first event."""
    return SpotWorld(run, _SYSTEMS[run.system.reaction])


@dataclass(frozen=True, slots=True)
class FleetResult:
    """A system's run; `wall_s` is real seconds."""

    system: str
    outcome: SpotOutcome
    wall_s: float

    @property
    def latency_s(self) -> Mapping[str, float]:
        """E2E seconds of the answered requests by figure (`mean`, `p50`, `p90`, `p99`, `max`); empty without any."""
        return figures_of(self.outcome.latencies_s)

    @property
    def longest_pause_s(self) -> float:
        """Of a pipeline in a reconfiguration after the first configuration."""
        return max((change.pause_s for change in self.outcome.changes[1:]), default=0.0)

    def open_requests(self) -> tuple[tuple[float, int], ...]:
        """Return (time, requests that wait or run from then on), one pair a time."""
        outcome = self.outcome
        steps = [(arrived_s, 1) for arrived_s in outcome.arrivals_s()]
        steps += [(request.finished_s, -1) for request in outcome.requests]
        steps.sort()
        counts = accumulate(change for _, change in steps)
        return tuple(dict(zip((at_s for at_s, _ in steps), counts, strict=True)).items())

    def configs(self) -> tuple[tuple[float, ParallelConfig | None], ...]:
        """Return (time, configuration from then on); `None` where none serves."""
        return tuple((change.time_s, change.config) for change in self.outcome.changes)


def simulate_fleet(run: SpotRun) -> FleetResult:
    """Run a system on a fleet until its last answer, or its bound."""
    began_s = time.perf_counter()
    outcome = serve(run)
    return FleetResult(run.system.name, outcome, time.perf_counter() - began_s)


def figures_of(latencies_s: Sequence[float]) -> dict[str, float]:
    """Return mean, percentiles and maximum by name; empty without latencies."""
    if not latencies_s:
        return {}
    # Interpolated, unlike `core/percentile.py`: the recorded tables are.
    percentiles = np.percentile(latencies_s, _PERCENTS).tolist()
    names = [f"p{percent}" for percent in _PERCENTS]
    return {"mean": float(np.mean(latencies_s)), **dict(zip(names, percentiles, strict=True)), "max": max(latencies_s)}
