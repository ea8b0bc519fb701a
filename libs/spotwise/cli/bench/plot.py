"""Curves as a picture. matplotlib is an extra (`spotwise[bench]`), so it is imported where a plot is asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotwise.cli.bench.curve import Point
from spotwise.cli.errors import CommandError, OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg", ".pdf")


def require_plotting(path: Path, option: str = "--plot") -> None:
    """Check before anything is measured that the plot that an option asks for can be written.

    Raises:
        CommandError: matplotlib is missing.
        OptionError: the file's name says no format that it writes.
    """
    if path.suffix not in _FORMATS:
        raise OptionError(f"{option} {path}: give it a name that ends in {', '.join(_FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(f"{option} needs matplotlib; install it with: pip install 'spotwise[bench]'")


def plot_curves(curves: Mapping[str, Sequence[Point]], path: Path) -> None:
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
    """Draw which share of the jobs had ended after how long, a colour for each discipline."""
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
