"""Ends a run at its first broken SLO, for searches that need only the verdict. Of a known number of requests a fixed number may
exceed a bound before its percentile does (nearest rank). About half of a search's runs break, with
ever-growing queues."""

from __future__ import annotations

from spotwise.core.percentile import nearest_rank
from spotwise.simulator.runs.slo import PERCENTS, SPLITWISE_OBJECTIVES


class ObjectivesLostError(Exception):
    """An SLO is broken, whatever follows."""


class LostObjectives:
    """Counts the requests that may still exceed each bound; of a metric that some of the run's `requests` lack, a break is
    found late."""

    def __init__(self, requests: int) -> None:
        allowed = [requests - nearest_rank(requests, percent) for percent in PERCENTS]
        self._left = {
            metric: list(zip(bounds, allowed, strict=True)) for metric, bounds in SPLITWISE_OBJECTIVES.items()
        }

    def count(self, metric: str, slowdown: float) -> None:
        """Count a request's slowdown; raises ObjectivesLostError if it broke an SLO."""
        self._left[metric] = [(bound, left if slowdown < bound else left - 1) for bound, left in self._left[metric]]
        if any(left < 0 for _, left in self._left[metric]):
            raise ObjectivesLostError
