"""The design space of a Splitwise cluster, run and drawn, and its requests' sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spotwise.simulator.runs.clusters import SPLITWISE_HH, Split
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.parallel import drive
from spotwise.studies.splitwise.paper import heat_map
from spotwise.studies.splitwise.plots import plot_design_space, plot_sizes
from tests.unit.simulator.runs.summaries import Oracle, case, summary_with


def test_a_heat_map_has_a_row_for_each_number_of_token_machines() -> None:
    """The map has a row for each number of token machines and a column for each number of prompt machines."""
    runs = drive({"": heat_map(case(), SPLITWISE_HH, (1, 2, 3), (5, 6))}, 1, run=Oracle(lambda of: True).run)[""]
    assert [[(run.case.split.prompt, run.case.split.token) for run in row] for row in runs] == [
        [(1, 5), (2, 5), (3, 5)],
        [(1, 6), (2, 6), (3, 6)],
    ]


def test_sizes_have_a_panel_for_prompts_and_one_for_answers() -> None:
    prompts, outputs = plot_sizes({"code": (np.array([30, 10]), np.array([5, 5]))}).axes
    assert np.asarray(prompts.get_lines()[0].get_xydata()).tolist() == [[10, 0.5], [30, 1.0]]
    assert (prompts.get_xlabel(), outputs.get_xlabel()) == ("prompt tokens", "output tokens")


def test_a_design_space_crosses_out_what_breaks_and_stars_the_cheapest() -> None:
    def cell(prompt: int, token: int, slowdown: float) -> RunSummary:
        own = summary_with("Splitwise-HH", 70.0, slowdown, split=Split(prompt, token))
        return replace(own, price_per_hour=float(prompt + token))

    grid = [[cell(10, 1, 9.0), cell(20, 1, 1.0)], [cell(10, 2, 1.1), cell(20, 2, 1.0)]]
    axes = plot_design_space(grid, "ttft", 90).axes[0]
    marks = [(line.get_marker(), np.asarray(line.get_xydata()).tolist()[0]) for line in axes.get_lines()]
    assert marks == [("x", [0, 0]), ("*", [0, 1])]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10", "20"]
