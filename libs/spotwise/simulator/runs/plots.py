"""Draws the Splitwise paper's figures (3, 12, 16 to 19) from simulated runs, and shares its style with other papers' figures. A
design has one colour in every figure (Okabe and Ito's palette, safe for colour-blind readers); baselines are dashed, bounds
red. matplotlib is an extra (`spotwise[bench]`), imported when needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.slo import METRICS, PERCENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "Baseline-A100": "#777777",
    "Baseline-H100": "#000000",
    "Splitwise-AA": "#E69F00",
    "Splitwise-HH": "#0072B2",
    "Splitwise-HA": "#009E73",
    "Splitwise-HHcap": "#CC79A7",
}
#: Of other clusters, by their place among those of a figure.
_OTHERS = ("#56B4E9", "#D55E00", "#F0E442", "#0072B2", "#CC79A7", "#009E73")
#: Of bounds.
BOUND_COLOUR = "#D00000"
_DPI = 150


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def plot_latencies(runs: Mapping[str, Sequence[RunSummary]], title: str = "") -> Figure:
    """Draw slowdowns against the rate, by design (figure 16): a row a metric, a column a percentile, their SLOs in red."""
    figure = new_figure(10, 7.6, title)
    grid = figure.subplots(len(METRICS), len(PERCENTS), sharex=True)
    for row, metric in enumerate(METRICS):
        for column, percent in enumerate(PERCENTS):
            axes = grid[row][column]
            for place, (label, own) in enumerate(runs.items()):
                points, style = _means(own, metric, column), _style(own[0], place)
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1.4, label=label, **style)
            bounds = {own[0].verdict.slowdowns[metric][column][1] for own in runs.values() if own}
            axes.set_ylim(bottom=0)
            for bound in sorted(each for each in bounds if each is not None):
                _draw_bound(axes, bound)
            axes.set_title(f"{metric.upper()} p{percent}", fontsize=9)
            bare_grid(axes)
            if row == len(METRICS) - 1:
                axes.set_xlabel("requests/s")
        grid[row][0].set_ylabel("slowdown")
    legend_below(figure, grid[0][0], columns=3)
    return figure


def plot_batch_sizes(runs: Sequence[RunSummary], title: str = "") -> Figure:
    """Draw the share of busy time with at most so many tokens in an iteration (figure 17), a line for each pool of a design."""
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    styles = {"prompt": ":", "token": "-", "mixed": "--"}
    for place, run in enumerate(runs):
        for pool, own in run.pools.items():
            axes.step(
                own.tokens,
                own.time_shares,
                where="post",
                linestyle=styles[pool.partition(",")[0]],
                linewidth=1.6,
                color=_colour(run.case.cluster.name, place),
                label=f"{run.case.cluster.name}, {pool} machines",
            )
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("tokens computed in an iteration (prompt tokens and decodes)")
    axes.set_ylabel("share of the busy time")
    if title:
        axes.set_title(title, fontsize=10)
    bare_grid(axes)
    axes.legend(fontsize=7.5, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plot_bars(figures: Mapping[str, Mapping[str, float]], title: str = "") -> Figure:
    """Draw bars for clusters side by side (figures 18 and 19): by figure (`throughput`, `cost`, ...) and by design."""
    figure = new_figure(1.2 + 2.3 * len(figures), 3.8, title)
    panels = figure.subplots(1, len(figures), squeeze=False)[0]
    for axes, (name, by_design) in zip(panels, figures.items(), strict=True):
        colours = [_colour(design, place) for place, design in enumerate(by_design)]
        bars = axes.bar(range(len(by_design)), list(by_design.values()), color=colours)
        axes.bar_label(bars, fmt="{:.3g}", fontsize=7.5, padding=2)
        axes.set_xticks(range(len(by_design)), [_wrapped(design) for design in by_design], fontsize=7, rotation=60)
        axes.set_title(name, fontsize=9)
        axes.margins(y=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Return an empty figure, inches, with a title above its panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Name a panel's lines below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def bare_grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw a faint grid and no frame above and to the right."""
    axes.grid(visible=True, which="major", axis=axis, alpha=0.25, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bound(axes: Axes, bound: float) -> None:
    axes.axhline(bound, color=BOUND_COLOUR, linewidth=1.2, linestyle=(0, (4, 2)))
    # Slowdowns far beyond the bound would flatten the rest.
    axes.set_ylim(0, 2 * bound)
    axes.annotate(
        f"at most {bound:g}",
        (0.02, bound),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        color=BOUND_COLOUR,
        fontsize=7,
    )


def _colour(name: str, place: int) -> str:
    return _COLOURS.get(name) or _OTHERS[place % len(_OTHERS)]


def _style(run: RunSummary, place: int) -> dict[str, Any]:
    is_baseline = run.case.split.token == 0
    return {"color": _colour(run.case.cluster.name, place), "linestyle": "--" if is_baseline else "-"}


def _means(runs: Sequence[RunSummary], metric: str, column: int) -> list[tuple[float, float]]:
    by_rate: dict[float, list[float]] = {}
    for run in runs:
        by_rate.setdefault(run.case.rate or run.requests_per_s, []).append(run.verdict.slowdowns[metric][column][0])
    return [(rate, sum(values) / len(values)) for rate, values in sorted(by_rate.items())]


def _wrapped(design: str) -> str:
    return design.replace("-", "\n", 1)
