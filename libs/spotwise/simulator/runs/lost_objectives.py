"""Ends a run at its first broken objective, for searches that need only the verdict.

Of a known number of requests, a fixed number may exceed a bound before its percentile does (nearest rank, as in
`percentiles.py`); with one more the objective cannot hold. About half of a search's runs break, and their queues keep growing.
"""

from __future__ import annotations

import math

from spotwise.simulator.runs.slo import PERCENTS, SPLITWISE_OBJECTIVES


class ObjectivesLostError(Exception):
    """An objective is broken whatever follows."""


class LostObjectives:
    """Counts the requests that may still exceed each bound.

    Args:
        requests: of the whole run. A metric that some requests do not have is found broken later than possible.
    """

    def __init__(self, requests: int) -> None:
        allowed = [requests - math.ceil(requests * percent / 100) for percent in PERCENTS]
        self._left = {
            metric: list(zip(bounds, allowed, strict=True)) for metric, bounds in SPLITWISE_OBJECTIVES.items()
        }

    def count(self, metric: str, slowdown: float) -> None:
        """Count a request's slowdown.

        Raises:
            ObjectivesLostError: it broke an objective.
        """
        self._left[metric] = [(bound, left if slowdown < bound else left - 1) for bound, left in self._left[metric]]
        if any(left < 0 for _, left in self._left[metric]):
            raise ObjectivesLostError
