"""The paper's figures show the measured values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spotwise.simulator.runs.metrics import Verdict
from spotwise.simulator.runs.plots import plot_bars, plot_batch_sizes, plot_latencies, save
from spotwise.studies.splitwise.plots import plot_sizes
from tests.unit.simulator.runs.summaries import SLOWDOWN_BOUNDS, summary_with

pytest.importorskip("matplotlib", reason="matplotlib is an extra: pip install 'spotwise[bench]'")


def test_latencies_have_a_panel_for_each_objective() -> None:
    runs = {
        "Splitwise-HH (3, 1)": [
            summary_with("Splitwise-HH", 20.0, 1.0),
            summary_with("Splitwise-HH", 20.0, 2.0, seed=1),
            summary_with("Splitwise-HH", 40.0, 3.0),
        ],
        "Baseline-H100 (4)": [summary_with("Baseline-H100", 20.0, 4.0)],
    }
    figure = plot_latencies(runs, "conv")
    assert [axes.get_title() for axes in figure.axes] == [
        f"{m} p{p}" for m in ("TTFT", "TBT", "E2E") for p in (50, 90, 99)
    ]
    for axes, bound in zip(figure.axes, [b for bounds in SLOWDOWN_BOUNDS.values() for b in bounds], strict=True):
        split, baseline, limit = axes.get_lines()
        assert np.asarray(split.get_xydata()).tolist() == [[20.0, 1.5], [40.0, 3.0]]
        assert np.asarray(baseline.get_xydata()).tolist() == [[20.0, 4.0]]
        assert list(limit.get_ydata()) == [bound, bound]  # type: ignore[arg-type]
        assert axes.get_ylim() == (0, 2 * bound)


def test_clusters_of_ones_own_are_drawn_with_their_own_bounds() -> None:
    """A panel without an objective has no bound, and clusters that the paper has not have colours of their own."""
    own = replace(
        summary_with("Splitwise-HH", 20.0, 1.5),
        verdict=Verdict(dict.fromkeys(SLOWDOWN_BOUNDS, ((1.5, None), (1.5, 4.0), (1.5, None))), 0),
    )
    cluster = replace(own.case.cluster, name="mine")
    mine = replace(own, case=replace(own.case, cluster=cluster))
    other = replace(mine, case=replace(own.case, cluster=replace(cluster, name="other")))
    figure = plot_latencies({"mine": [mine], "other": [other]})
    assert [len(axes.get_lines()) for axes in figure.axes] == [2, 3, 2] * 3
    assert [axes.get_ylim()[0] for axes in figure.axes] == [0.0] * 9
    first, second = figure.axes[0].get_lines()
    assert first.get_color() != second.get_color()


def test_batch_sizes_have_a_line_for_each_pool() -> None:
    (axes,) = plot_batch_sizes([summary_with("Splitwise-HH", 20.0, 1.0)]).axes
    lines = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in axes.get_lines()}
    assert lines == {
        "Splitwise-HH, token machines": [[1, 0.25], [8, 1.0]],
        "Splitwise-HH, prompt machines": [[900, 1.0]],
    }


def test_bars_have_a_panel_for_each_figure() -> None:
    figures = {"throughput": {"Splitwise-HH": 1.2, "Baseline-H100": 1.0}, "cost": {"Splitwise-HH": 0.9}}
    throughput, cost = plot_bars(figures, "equal power").axes
    assert [bar.get_height() for bar in throughput.patches] == [1.2, 1.0]  # type: ignore[attr-defined]
    assert [bar.get_height() for bar in cost.patches] == [0.9]  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures_are_written_where_they_should(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "figures" / f"sizes.{suffix}"
    save(plot_sizes({"code": (np.array([30, 10]), np.array([5, 5]))}), path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
