"""Studies drawn: JCT against what varies, a line for each that is compared. matplotlib is an extra, imported when needed.

Law: a line has the same colour in every figure (Okabe and Ito's palette); the bound that only an oracle reaches is dotted, and
what a publication has is dashed.

Source of the figures' shapes: FastServe, figures 9 to 11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spotwise.core.kv_swap import WhenFull
from spotwise.simulator.fastserve.engines import Scheduler
from spotwise.simulator.fastserve.findings import PUBLISHED_PER_TOKEN_S, Finding, Findings

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


def plot_study(found: Findings) -> Figure:
    """Draw mean, p95 and p99 of JCT, and the mean per token, against what varies."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 3.5), layout="constrained")
    figure.suptitle(found.study.title, fontsize=11)
    panels = figure.subplots(1, 4)
    _panel(panels[0], found, "JCT mean, seconds", lambda finding: finding.jct_s["mean"])
    _panel(panels[1], found, "JCT p95, seconds", lambda finding: finding.jct_s["p95"])
    _panel(panels[2], found, "JCT p99, seconds", lambda finding: finding.jct_s["p99"])
    _panel(panels[3], found, "seconds per token, mean", lambda finding: finding.jct_per_token_s["mean"])
    if found.study.name == "artifact":
        for line, by_rate in PUBLISHED_PER_TOKEN_S.items():
            label = f"{line}, published"
            panels[3].plot(
                list(by_rate), list(by_rate.values()), "--", color=_COLOURS[line], linewidth=1.2, label=label
            )
    handles, labels = panels[3].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def plot_peaks(found: Findings) -> Figure:
    """Draw the most KV that there was against what varies."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = figure.subplots()
    _panel(axes, found, "tokens with KV, at most", lambda finding: finding.peak_kv_tokens)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, found: Findings, title: str, value_of: Callable[[Finding], float]) -> None:
    for line in found.study.lines:
        points = found.line(line)
        names = [str(at) for at in points]
        at = [each if isinstance(each, float | int) else names.index(str(each)) for each in points]
        values = [value_of(finding) for finding in points.values()]
        style = ":" if line == Scheduler.SRPT.value else "-"
        axes.plot(at, values, style, marker="o", markersize=3, linewidth=1.5, color=_COLOURS[line], label=line)
        if any(isinstance(each, str) for each in points):
            axes.set_xticks(at, names)
    axes.set_yscale("log")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(found.study.axis, fontsize=9)
    axes.grid(visible=True, which="major", alpha=0.25, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
