"""Ends a run at its first broken SLO, for searches that need only the verdict. Of a known number of requests a fixed number may
exceed a bound before its percentile does (nearest rank). About half of a search's runs break, with
ever-growing queues."""

from __future__ import annotations

from spotwise.core.percentile import nearest_rank
from spotwise.simulator.runs.slo import METRICS, Objectives


class ObjectivesLostError(Exception):
    """An SLO is broken, whatever follows."""


class LostObjectives:
    """Counts the requests that may still exceed each bound; of a metric that some of the run's `requests` lack, a break is
    found late, and of gaps between tokens, whose number is not known, at the end."""

    def __init__(self, requests: int, objectives: Objectives) -> None:
        self._left: dict[tuple[str, bool], list[tuple[float, int]]] = {}
        for bound in objectives.bounds:
            if bound.metric in METRICS:
                allowed = requests - nearest_rank(requests, bound.percent)
                self._left.setdefault((bound.metric, bound.is_slowdown), []).append((bound.below, allowed))

    def count(self, metric: str, seconds: float, slowdown: float) -> None:
        """Count a request's latency; raises ObjectivesLostError if it broke an SLO."""
        for value, key in ((slowdown, (metric, True)), (seconds, (metric, False))):
            bounds = self._left.get(key)
            if bounds:
                self._left[key] = left = [(bound, n if value < bound else n - 1) for bound, n in bounds]
                if any(n < 0 for _, n in left):
                    raise ObjectivesLostError
