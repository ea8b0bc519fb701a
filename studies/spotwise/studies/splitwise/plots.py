"""Draws the Splitwise paper's figures 3 and 12; the others are those of any run (`simulator/runs/plots.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spotwise.simulator.loads.traces import IntArray
from spotwise.simulator.runs.plots import BOUND_COLOUR, bare_grid, new_figure
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.slo import PERCENTS, SPLITWISE_OBJECTIVES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_sizes(workloads: Mapping[str, tuple[IntArray, IntArray]]) -> Figure:
    """Draw the distributions of prompt and output tokens (figure 3); by workload, both [requests]."""
    import numpy as np

    figure = new_figure(8, 3.4)
    titles = ("prompt tokens", "output tokens")
    for column, (axes, title) in enumerate(zip(figure.subplots(1, 2, sharey=True), titles, strict=True)):
        for number, (name, sizes) in enumerate(workloads.items()):
            tokens = np.sort(sizes[column])
            shares = np.arange(1, len(tokens) + 1) / len(tokens)
            axes.step(
                tokens, shares, where="post", label=name, color=("#0072B2", "#E69F00", "#009E73", "#CC79A7")[number % 4]
            )
        axes.set_xscale("log")
        axes.set_xlabel(title)
        axes.set_ylim(0, 1)
        bare_grid(axes)
    figure.axes[0].set_ylabel("share of requests")
    figure.axes[0].legend(loc="upper left", frameon=False)
    return figure


def plot_design_space(grid: Sequence[Sequence[RunSummary]], metric: str, percent: int, title: str = "") -> Figure:
    """Draw a metric's slowdown at a percentile over prompt and token machines (figure 12). Cells with a broken SLO are crossed
    out; the cheapest other cell has a star. `grid` has rows by token machines, columns by prompt machines, both ascending."""
    import numpy as np
    from matplotlib.colors import LogNorm

    column = PERCENTS.index(percent)
    bound = SPLITWISE_OBJECTIVES[metric][column]
    prompts = [run.case.split.prompt for run in grid[0]]
    tokens = [row[0].case.split.token for row in grid]
    values = np.array([[run.verdict.slowdowns[metric][column][0] for run in row] for row in grid])
    figure = new_figure(max(4.8, 1.6 + 0.42 * len(prompts)), max(3.2, 1.5 + 0.42 * len(tokens)))
    axes = figure.subplots()
    norm = LogNorm(min(bound / 4, float(values.min())), max(bound * 4, float(np.median(values))))
    image = axes.imshow(values, origin="lower", cmap="cividis_r", aspect="auto", norm=norm)
    cells = [(y, x, run) for y, row in enumerate(grid) for x, run in enumerate(row)]
    for y, x, run in cells:
        if not run.verdict.holds:
            axes.plot(x, y, marker="x", color="white", markersize=5, markeredgewidth=1.1)
    holding = [cell for cell in cells if cell[2].verdict.holds]
    if holding:
        y, x, _ = min(holding, key=lambda cell: (cell[2].price_per_hour, cell[0]))
        axes.plot(x, y, marker="*", color=BOUND_COLOUR, markersize=13, markeredgecolor="white")
    axes.set_xticks(range(len(prompts)), [str(number) for number in prompts])
    axes.set_yticks(range(len(tokens)), [str(number) for number in tokens])
    axes.set_xlabel("prompt machines\n(x: an objective breaks; star: the cheapest of the others)", fontsize=9)
    axes.set_ylabel("token machines", fontsize=9)
    axes.set_title(title, fontsize=10)
    bar = figure.colorbar(image, ax=axes, label=f"{metric.upper()} p{percent}, slowdown", extend="max")
    bar.ax.axhline(bound, color=BOUND_COLOUR, linewidth=1.5)
    bar.ax.yaxis.set_major_formatter("{x:g}")
    return figure
