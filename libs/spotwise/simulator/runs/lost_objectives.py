"""Runs that only have to say whether the objectives hold, and end as soon as they say no.

Law: of a known number of requests, so many may be beyond a bound before its percentile is (nearest rank, as in
`percentiles.py`); one more, and nothing that is still to come can mend it. About half of a search's runs are such, and the
dearest: their queues grow to the end.
"""

from __future__ import annotations

import math

from spotwise.simulator.runs.slo import PERCENTS, SPLITWISE_OBJECTIVES


class ObjectivesLostError(Exception):
    """An objective cannot hold any more."""


class LostObjectives:
    """Counts what each objective still allows.

    Args:
        requests: of the run, those to come included. A metric that not all of them have is found lost later than it might be.
    """

    def __init__(self, requests: int) -> None:
        allowed = [requests - math.ceil(requests * percent / 100) for percent in PERCENTS]
        self._left = {
            metric: list(zip(bounds, allowed, strict=True)) for metric, bounds in SPLITWISE_OBJECTIVES.items()
        }

    def count(self, metric: str, slowdown: float) -> None:
        """Count a request's slowdown.

        Raises:
            ObjectivesLostError: it was one too many.
        """
        self._left[metric] = [(bound, left if slowdown < bound else left - 1) for bound, left in self._left[metric]]
        if any(left < 0 for _, left in self._left[metric]):
            raise ObjectivesLostError
