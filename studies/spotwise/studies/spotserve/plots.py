"""Draws SpotServe's studies as bars of latency by system and trace (figures 6 to 9): bar mean, whisker P99, black line the
paper's figure; a system has one colour in every figure (Okabe and Ito)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spotwise.simulator.runs.plots import bare_grid, legend_below, new_figure
from spotwise.studies.spotserve.findings import SpotFinding, SpotFindings
from spotwise.studies.spotserve.studies import WHOLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#777777", "#F0E442")
_WIDTH = 0.8


def plot_study(found: SpotFindings) -> Figure:
    """Draw a panel for each load, bars by trace and system; for whole traces also a panel of goodput per dollar."""
    loads = list(dict.fromkeys(finding.load for finding in found.points))
    with_goodput = found.study.name == WHOLE
    columns = len(loads) + with_goodput
    figure = new_figure(6.4 * columns, 3.8, found.study.title)
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for axes, load in zip(panels, loads, strict=False):
        _latencies(axes, [finding for finding in found.points if finding.load == load])
        axes.set_title(f"requests: {load}", fontsize=9)
        axes.set_ylabel("latency: mean, and up to P99; seconds", fontsize=9)
    if with_goodput:
        for _, at, width, own, colour in _bars(panels[-1], found.points, loads, lambda finding: finding.load):
            panels[-1].bar(at, [finding.goodput_per_dollar or 0.0 for finding in own], 0.9 * width, color=colour)
        panels[-1].set_title("requests in time for each dollar", fontsize=9)
    legend_below(figure, panels[0], columns=4)
    return figure


def _latencies(axes: Axes, findings: Sequence[SpotFinding]) -> None:
    traces = list(dict.fromkeys(finding.trace for finding in findings))
    for line, at, width, own, colour in _bars(axes, findings, traces, lambda finding: finding.trace):
        means = [finding.latency_s.get("mean", 0.0) for finding in own]
        above = [max(0.0, finding.latency_s.get("p99", 0.0) - mean) for finding, mean in zip(own, means, strict=True)]
        axes.bar(at, means, 0.9 * width, yerr=([0.0] * len(own), above), color=colour, label=line, capsize=2)
        for place, finding in zip(at, own, strict=True):
            for paper_s in finding.paper_s.values():
                axes.plot((place - width / 2, place + width / 2), (paper_s, paper_s), color="#000000", linewidth=1.4)


def _bars(
    axes: Axes, findings: Sequence[SpotFinding], groups: list[str], group_of: Callable[[SpotFinding], str]
) -> list[tuple[str, list[float], float, list[SpotFinding], str]]:
    """By line: positions, bar width, findings and colour."""
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    bare_grid(axes, "y")
    axes.set_axisbelow(True)
    lines = list(dict.fromkeys(finding.point.line for finding in findings))
    width = _WIDTH / len(lines)
    bars = []
    for number, line in enumerate(lines):
        own = [finding for finding in findings if finding.point.line == line]
        at = [groups.index(group_of(finding)) + (number + 0.5) * width - _WIDTH / 2 for finding in own]
        bars.append((line, at, width, own, _PALETTE[number % len(_PALETTE)]))
    return bars
