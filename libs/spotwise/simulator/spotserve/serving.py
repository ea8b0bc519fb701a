"""Simulates serving on spot instances: what `simulate spot` and `simulate paper spotserve` run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


def serve(run: SpotRun) -> SpotOutcome:
    """Run a simulation until its last answer, or its bound."""
    return world_of(run).run()


def world_of(run: SpotRun) -> SpotWorld:
    """Return a run's world before its first event."""
    return SpotWorld(run, _SYSTEMS[run.system.reaction])
