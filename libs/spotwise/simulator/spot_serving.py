"""Serving on machines that come and go, in simulated time: what `simulate paper spotserve` runs.

Law: the world is that of `spot_world.py`, the systems are those of `spot_systems.py`. Which configuration, which device
where, what moves when and how long pipelines decode comes from core, the functions that a live mesh decides with.
"""

from __future__ import annotations

from spotwise.simulator.spot_runs import AnsweredRequest, ConfigChange, SpotOutcome, SpotRun
from spotwise.simulator.spot_world import SpotWorld

__all__ = ["AnsweredRequest", "ConfigChange", "SpotOutcome", "SpotRun", "serve"]


def serve(run: SpotRun) -> SpotOutcome:
    """Run a world to the answer of its last request.

    Raises:
        ValueError: the instances that are there at the end cannot serve the model, so that requests stay unanswered.
    """
    return SpotWorld(run).run()
