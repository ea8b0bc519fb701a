"""Report rows from sweeps: at each rate the median over rounds; ratios are taken within a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from spotwise.benchmarks.curve import RatePoint, throughput_within
from spotwise.benchmarks.policy_probe import ITERATION_LEVEL
from spotwise.benchmarks.rounds import row_of_rounds, spread_of
from spotwise.cli.bench.report import ReportRow, Target

#: Throughput is compared at this multiple of our median latency at the lowest rate.
_LATENCY_FACTOR = 2.0

#: The figures compared at each rate.
_FIGURES: dict[str, Callable[[RatePoint], float]] = {
    "requests answered/s": lambda point: point.throughput,
    "latency p50, ms/token": lambda point: _ms(point.median_s),
    "latency p90, ms/token": lambda point: _ms(point.p90_s),
}

#: The points of one round in ascending order of their rates.
Sweep = Sequence[RatePoint]


def merge_rounds(sweeps: Sequence[Sweep]) -> list[RatePoint]:
    """Merge several sweeps over the same rates: medians of the figures, sums of the requests."""
    return [
        RatePoint(
            points[0].rate,
            statistics.median(point.throughput for point in points),
            statistics.median(point.median_s for point in points),
            statistics.median(point.p90_s for point in points),
            sum(point.answered for point in points),
            sum(point.failed for point in points),
        )
        for points in zip(*sweeps, strict=True)
    ]


def latency_bound_s(sweeps: Sequence[Sweep]) -> float:
    """The median normalized latency at which throughput is compared, seconds per output token."""
    return _LATENCY_FACTOR * merge_rounds(sweeps)[0].median_s


def comparison_rows(servers: Mapping[str, Sequence[Sweep]]) -> list[ReportRow]:
    """Compare iteration-level batches with every other server: throughput at the same latency, and all figures at each rate."""
    ours = servers[ITERATION_LEVEL]
    bound_s = latency_bound_s(ours)
    rows = []
    for label, theirs in servers.items():
        if label == ITERATION_LEVEL:
            continue
        rows.append(_headline(label, ours, theirs, bound_s))
        for index, point in enumerate(ours[0]):
            at = f"at {point.rate:g}/s, against {label}"
            mine, other = ([sweep[index] for sweep in sweeps] for sweeps in (ours, theirs))
            for title, figure in _FIGURES.items():
                rows.append(row_of_rounds(f"{title} {at}", [figure(p) for p in mine], [figure(p) for p in other]))
    return rows


def curves_table(curves: Mapping[str, Sequence[RatePoint]]) -> Table:
    """Every point of every curve."""
    table = Table(header_style="bold", caption="latency: end to end, per output token", caption_justify="left")
    table.add_column("server")
    for heading in ("offered/s", "answered/s", "latency p50, ms", "latency p90, ms", "requests", "failed"):
        table.add_column(heading, justify="right")
    for label, points in curves.items():
        for point in points:
            table.add_row(
                label,
                f"{point.rate:g}",
                f"{point.throughput:.2f}",
                f"{_ms(point.median_s):,.1f}",
                f"{_ms(point.p90_s):,.1f}",
                str(point.answered),
                str(point.failed),
            )
        table.add_section()
    return table


def _headline(label: str, ours: Sequence[Sweep], theirs: Sequence[Sweep], bound_s: float) -> ReportRow:
    mine, other = ([throughput_within(sweep, bound_s) for sweep in sweeps] for sweeps in (ours, theirs))
    return ReportRow(
        f"requests/s at median latency <= {_ms(bound_s):,.0f} ms/token, against {label}",
        throughput_within(merge_rounds(ours), bound_s) or 0.0,
        throughput_within(merge_rounds(theirs), bound_s),
        Target(at_least=1.0),
        spread_of([a for a in mine if a is not None]),
        spread_of([a / b for a, b in zip(mine, other, strict=True) if a is not None and b is not None]),
    )


def _ms(seconds: float) -> float:
    return 1000 * seconds
