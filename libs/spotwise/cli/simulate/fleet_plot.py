"""Draws a user's fleet over time: instances, each system's pipelines, and its open requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spotwise.files.spot_traces import SpotTrace
from spotwise.simulator.runs.plots import bare_grid, legend_below, new_figure
from spotwise.simulator.spotserve.fleet_results import FleetResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's, by the order of systems.
_COLOURS = ("#0072B2", "#E69F00", "#009E73")
_STYLES = ("-", "--", ":")


def plot_fleet(trace: SpotTrace, results: Sequence[FleetResult]) -> Figure:
    """Draw instances, pipelines (with `P x M` where that changes) and open requests over seconds, one panel below the other; a
    dotted line is the trace's end."""
    ended_s = max(result.outcome.ended_s for result in results)
    figure = new_figure(9, 7.2, trace.name)
    instances, pipelines, waiting = figure.subplots(3, 1, sharex=True)
    _steps(instances, trace.counts(), ended_s, color="#000000")
    instances.set_ylabel("instances")
    for number, result in enumerate(results):
        line = {"color": _COLOURS[number % 3], "linestyle": _STYLES[number % 3], "label": result.system}
        configs = [(at_s, config) for at_s, config in result.configs()]
        _steps(pipelines, [(at_s, 0 if each is None else each.pipelines) for at_s, each in configs], ended_s, **line)
        for (_, before), (at_s, after) in pairwise([(0.0, None), *configs]):
            if after is not None and (before is None or after.pipeline_devices != before.pipeline_devices):
                label = f"{after.pipeline}x{after.tensor}"
                pipelines.annotate(label, (at_s, after.pipelines), fontsize=6.5, color=line["color"])
        _steps(waiting, result.open_requests(), ended_s, **line)
    pipelines.set_ylabel("pipelines (P x M)")
    waiting.set_ylabel("open requests")
    waiting.set_xlabel("seconds")
    for axes in (instances, pipelines, waiting):
        axes.axvline(trace.end_s, color="#777777", linewidth=0.8, linestyle=":")
        axes.set_ylim(bottom=0)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0, ended_s)
        bare_grid(axes)
    legend_below(figure, waiting, columns=3)
    return figure


def _steps(axes: Axes, points: Sequence[tuple[float, int]], ended_s: float, **line: Any) -> None:
    last = points[-1][1] if points else 0
    times_s, counts = zip(*((0.0, 0), *points, (ended_s, last)), strict=True)
    axes.step(times_s, counts, where="post", linewidth=1.4, **line)
