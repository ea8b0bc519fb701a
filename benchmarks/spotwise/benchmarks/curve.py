"""A latency-throughput curve over offered rates (Orca, figure 10).

Latency is end to end per output token (normalized); throughput counts answers until the last one.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.benchmarks.open_loop import Outcome
from spotwise.cli.errors import CommandError
from spotwise.core.percentile import percentile


@dataclass(frozen=True, slots=True)
class RatePoint:
    """One rate.

    Attributes:
        rate: requests offered, per second.
        throughput: requests answered, per second.
        median_s, p90_s: normalized latency, seconds per output token.
    """

    rate: float
    throughput: float
    median_s: float
    p90_s: float
    answered: int
    failed: int


def point_of(rate: float, outcomes: Sequence[Outcome]) -> RatePoint:
    """Summarize one rate; raises `CommandError` where no request was answered."""
    answered = [(outcome.arrival, outcome.latency_s) for outcome in outcomes if outcome.latency_s is not None]
    if not answered:
        raise CommandError(f"at {rate:g} requests/s nothing was answered: {outcomes[0].failure}")
    normalized_s = [latency_s / arrival.output_tokens for arrival, latency_s in answered]
    return RatePoint(
        rate,
        len(answered) / max(arrival.at_s + latency_s for arrival, latency_s in answered),
        statistics.median(normalized_s),
        percentile(normalized_s, 90),
        len(answered),
        len(outcomes) - len(answered),
    )


def throughput_within(points: Sequence[RatePoint], median_s: float) -> float | None:
    """The highest throughput, requests per second, at which the median normalized latency stays within a bound.

    Interpolates linearly between the last rate within the bound and the next. Where every rate is within, it is the highest
    measured throughput, so a sweep should extend until latency rises. None where not even the lowest rate is.
    """
    ordered = sorted(points, key=lambda point: point.rate)
    within = list(itertools.takewhile(lambda point: point.median_s <= median_s, ordered))
    if not within:
        return None
    best = max(point.throughput for point in within)
    if len(within) == len(ordered):
        return best
    below, above = within[-1], ordered[len(within)]
    share = (median_s - below.median_s) / (above.median_s - below.median_s)
    return max(best, below.throughput + share * (above.throughput - below.throughput))
