"""Studies drawn: latency of each system on each trace. matplotlib is an extra, imported when needed.

Law: a system has the same colour in every figure (Okabe and Ito's palette). A bar is the mean, the whisker reaches up to P99;
what the paper prints is a black line across each.

Source of the figures' shapes: SpotServe, figures 6 to 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotwise.simulator.spotserve.findings import Finding, Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#777777", "#F0E442")
_WIDTH = 0.8


def plot_study(found: Findings) -> Figure:
    """Draw a panel for each load: bars by trace and system; where dollars are the question, a panel of goodput besides."""
    from matplotlib.figure import Figure

    loads = list(dict.fromkeys(finding.point.load for finding in found.points))
    is_of_goodput = found.study.name == "whole"
    figure = Figure(figsize=(6.4 * (len(loads) + is_of_goodput), 3.8), layout="constrained")
    figure.suptitle(found.study.title, fontsize=11)
    panels = figure.subplots(1, len(loads) + is_of_goodput, squeeze=False)[0]
    for axes, load in zip(panels, loads, strict=False):
        _bars(axes, [finding for finding in found.points if finding.point.load == load])
        axes.set_title(f"requests: {load}", fontsize=9)
        axes.set_ylabel("latency: mean, and up to P99; seconds", fontsize=9)
    if is_of_goodput:
        _goodput(panels[-1], found, loads)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _bars(axes: Axes, findings: list[Finding]) -> None:
    traces = list(dict.fromkeys(finding.point.trace for finding in findings))
    lines = list(dict.fromkeys(finding.point.line for finding in findings))
    width = _WIDTH / len(lines)
    for number, line in enumerate(lines):
        own = [finding for finding in findings if finding.point.line == line and finding.latency_s]
        at = [traces.index(finding.point.trace) + (number + 0.5) * width - _WIDTH / 2 for finding in own]
        means = [finding.latency_s["mean"] for finding in own]
        above = [max(0.0, finding.latency_s["p99"] - finding.latency_s["mean"]) for finding in own]
        colour = _PALETTE[number % len(_PALETTE)]
        axes.bar(at, means, 0.9 * width, yerr=([0.0] * len(own), above), color=colour, label=line, capsize=2)
        for place, finding in zip(at, own, strict=True):
            for said in finding.paper_s.values():
                axes.plot((place - width / 2, place + width / 2), (said, said), color="#000000", linewidth=1.4)
    axes.set_xticks(range(len(traces)), traces, fontsize=8)
    _grid(axes)


def _goodput(axes: Axes, found: Findings, loads: list[str]) -> None:
    lines = list(dict.fromkeys(finding.point.line for finding in found.points))
    width = _WIDTH / len(lines)
    for number, line in enumerate(lines):
        own = [finding for finding in found.points if finding.point.line == line]
        at = [loads.index(finding.point.load) + (number + 0.5) * width - _WIDTH / 2 for finding in own]
        values = [finding.goodput_per_dollar or 0.0 for finding in own]
        axes.bar(at, values, 0.9 * width, color=_PALETTE[number % len(_PALETTE)])
    axes.set_xticks(range(len(loads)), loads, fontsize=8)
    axes.set_title("requests in time for each dollar", fontsize=9)
    _grid(axes)


def _grid(axes: Axes) -> None:
    axes.grid(visible=True, axis="y", alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
