"""Curves as a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from spotwise.benchmarks.curve import RatePoint
from spotwise.benchmarks.plot import plot_completion_times, plot_curves
from spotwise.cli.bench.report import require_plotting
from spotwise.cli.errors import CommandError


def test_a_plot_is_written_in_the_format_of_its_name(tmp_path: Path) -> None:
    """The folder is made where it is missing; an SVG names every line."""
    curves = {
        "iteration_level": [RatePoint(1, 1.0, 0.1, 0.2, 5, 0), RatePoint(2, 2.0, 0.2, 0.3, 9, 0)],
        "request_level": [RatePoint(1, 0.9, 0.3, 0.9, 5, 0)],
    }
    picture, drawing = tmp_path / "plots" / "curve.png", tmp_path / "plots" / "curve.svg"
    for path in (picture, drawing):
        require_plotting(path)
        plot_curves(curves, path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = drawing.read_text()
    for label in ("iteration_level, median", "iteration_level, p90", "request_level, median"):
        assert label in text


def test_completion_times_are_drawn_with_a_line_for_each_discipline(tmp_path: Path) -> None:
    drawing = tmp_path / "plots" / "times.svg"
    plot_completion_times({"fcfs": [1.0, 2.0, 30.0], "mlfq": [0.5, 1.0, 40.0]}, drawing)
    text = drawing.read_text()
    assert all(label in text for label in ("fcfs", "mlfq", "job completion time, s"))


def test_a_name_without_a_format_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"\.png, \.svg"):
        require_plotting(tmp_path / "curve")


@pytest.mark.parametrize("option", ["--plot", "--figures"])
def test_a_missing_library_is_reported_with_the_option_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match=rf"{option} needs matplotlib.*pip install"):
        require_plotting(tmp_path / "curve.png", option)
