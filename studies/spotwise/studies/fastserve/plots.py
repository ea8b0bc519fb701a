"""Draws FastServe's studies: JCT against the varied parameter, a line for each scheduler (FastServe, figures 9 to 11). A line
has one colour in every figure (Okabe and Ito's palette); the oracle's bound is dotted, published figures dashed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spotwise.core.kv.swap import WhenFull
from spotwise.simulator.runs.plots import bare_grid, legend_below, new_figure
from spotwise.studies.fastserve.engines import Scheduler
from spotwise.studies.fastserve.findings import PUBLISHED_PER_TOKEN_S, JobFinding, JobFindings
from spotwise.studies.fastserve.studies import ARTIFACT, PEAK_KV

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    Scheduler.REQUEST_LEVEL.value: "#777777",
    Scheduler.FCFS.value: "#000000",
    Scheduler.FCFS_ON_DEMAND.value: "#000000",
    Scheduler.MLFQ_PREEMPTION.value: "#CC79A7",
    Scheduler.MLFQ_NO_PREEMPTION.value: "#E69F00",
    Scheduler.FASTSERVE.value: "#0072B2",
    Scheduler.SRPT.value: "#009E73",
    WhenFull.PROACTIVE.value: "#0072B2",
    WhenFull.REACTIVE.value: "#56B4E9",
    WhenFull.DEFER.value: "#D55E00",
    WhenFull.RECOMPUTE.value: "#000000",
}


def plot_study(found: JobFindings) -> Figure:
    """Draw mean, p95 and p99 of JCT and the mean per token, or the peak of KV, against the varied parameter."""
    if found.study.name == PEAK_KV:
        return _plot_peaks(found)
    figure = new_figure(12.5, 3.5, found.study.title)
    panels = figure.subplots(1, 4)
    _panel(panels[0], found, "JCT mean, seconds", lambda finding: finding.jct_s["mean"])
    _panel(panels[1], found, "JCT p95, seconds", lambda finding: finding.jct_s["p95"])
    _panel(panels[2], found, "JCT p99, seconds", lambda finding: finding.jct_s["p99"])
    _panel(panels[3], found, "seconds per token, mean", lambda finding: finding.jct_per_token_s["mean"])
    if found.study.name == ARTIFACT:
        for line, by_rate in PUBLISHED_PER_TOKEN_S.items():
            style = {"color": _COLOURS[line], "linewidth": 1.2, "label": f"{line}, published"}
            panels[3].plot(list(by_rate), list(by_rate.values()), "--", **style)
    legend_below(figure, panels[3], columns=6)
    return figure


def _plot_peaks(found: JobFindings) -> Figure:
    figure = new_figure(5.0, 3.6)
    axes = figure.subplots()
    _panel(axes, found, "tokens with KV, at most", lambda finding: finding.mean("peak_kv_tokens"))
    axes.legend(frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, found: JobFindings, title: str, value_of: Callable[[JobFinding], float]) -> None:
    for line in found.study.lines:
        findings = list(found.line(line).values())
        names = [str(finding.at) for finding in findings]
        is_named = any(isinstance(finding.at, str) for finding in findings)
        at = [number if isinstance(finding.at, str) else finding.at for number, finding in enumerate(findings)]
        style = ":" if line == Scheduler.SRPT.value else "-"
        values = [value_of(finding) for finding in findings]
        axes.plot(at, values, style, marker="o", markersize=3, linewidth=1.5, color=_COLOURS[line], label=line)
        if is_named:
            axes.set_xticks(at, names)
    axes.set_yscale("log")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(found.study.axes[0], fontsize=9)
    bare_grid(axes)
