"""Plots of benchmark results, drawn with matplotlib (the extra `spotwise[bench]`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotwise.benchmarks.curve import RatePoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_curves(curves: Mapping[str, Sequence[RatePoint]], path: Path) -> None:
    """Draw median (solid) and p90 (dashed) normalized latency against throughput, a colour for each server."""
    figure, axes = _axes()
    for number, (label, points) in enumerate(curves.items()):
        ordered = sorted(points, key=lambda point: point.rate)
        throughput = [point.throughput for point in ordered]
        colour = f"C{number}"
        axes.plot(throughput, [1000 * p.median_s for p in ordered], "o-", color=colour, label=f"{label}, median")
        axes.plot(throughput, [1000 * p.p90_s for p in ordered], "o--", color=colour, label=f"{label}, p90")
    axes.set_xlabel("throughput, requests/s")
    axes.set_ylabel("end-to-end latency per output token, ms")
    axes.set_yscale("log")
    _write(figure, axes, path)


def plot_completion_times(seconds: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw the cumulative share of completed jobs, a colour for each scheduling policy."""
    figure, axes = _axes()
    for label, times_s in seconds.items():
        axes.ecdf(times_s, label=label)
    axes.set_xlabel("job completion time, s")
    axes.set_ylabel("share of the jobs")
    axes.set_xscale("log")
    _write(figure, axes, path)


def _axes() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    return figure, figure.add_subplot()


def _write(figure: Figure, axes: Axes, path: Path) -> None:
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
