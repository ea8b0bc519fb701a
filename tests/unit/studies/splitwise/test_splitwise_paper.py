"""Headlines out of what was found, and what is shown of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.clusters import DESIGNS, SPLITWISE_HH, Split
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.parallel import drive
from spotwise.simulator.searches.provisioning import Provisioned
from spotwise.simulator.searches.search import Grid, Limit
from spotwise.studies.splitwise.headlines import ClusterHeadline, headlines
from spotwise.studies.splitwise.paper import (
    AA_COST,
    HH_CODE,
    HHCAP_POWER,
    ClusterFindings,
    ClusterScope,
    clusters,
    heat_map,
    limit_searches,
    provisioning_searches,
    saturation_searches,
)
from spotwise.studies.splitwise.plots import plot_design_space, plot_sizes
from spotwise.studies.splitwise.tables import headlines_document, headlines_table, limits_table
from tests.unit.simulator.runs.summaries import Oracle, case, summary_with

TEN_AND_FIVE = Split(10, 5)
HONEST, PUBLISHED = DecodeModel.HONEST, DecodeModel.PUBLISHED
SCOPE = ClusterScope({name: ClusterWorkload(name) for name in ("code", "conv")}, 10.0, Grid(), (0, 1))


def findings(rates: dict[str, float], cheapest: Split | None = TEN_AND_FIVE) -> ClusterFindings:
    """Every cluster of a design carries the same."""
    return ClusterFindings(
        {cluster: Limit((rates.get(cluster.design, 100.0),) * 2, ()) for cluster in clusters()},
        {design: rates.get(design, 100.0) for design in DESIGNS},
        {question: Provisioned(cheapest, ()) for question in (HHCAP_POWER, AA_COST, HH_CODE)},
    )


def by_name(rows: list[ClusterHeadline], *words: str) -> ClusterHeadline:
    (found,) = [row for row in rows if all(word in row.name for word in words)]
    return found


def test_throughputs_are_ratios_of_limits() -> None:
    """A ratio of throughputs has its spread over the seeds, computed seed by seed."""
    found = findings({"Splitwise-AA": 215.0, "Baseline-A100": 100.0, "Baseline-H100": 150.0})
    rows = headlines({HONEST: found})
    assert by_name(rows, "equal power", "AA over Baseline-A100").measured[HONEST].value == pytest.approx(2.15)
    assert by_name(rows, "equal power", "AA over Baseline-A100").measured[HONEST].spread == pytest.approx((2.15, 2.15))
    assert by_name(rows, "equal cost", "throughput of AA over Baseline-H100").measured[HONEST].value == pytest.approx(
        215 / 150
    )
    assert by_name(rows, "made for code", "HA over").measured[HONEST].value == 1.0


def test_prices_and_power_follow_from_the_machines() -> None:
    rows = headlines({HONEST: findings({})})
    assert by_name(rows, "cost of HA over Baseline-H100").measured[HONEST].value == pytest.approx(0.927, abs=0.001)
    assert by_name(rows, "power of AA over Baseline-H100").measured[HONEST].value == pytest.approx(
        86 / (40 * 44 / 24.8)
    )
    assert by_name(rows, "machines of AA").measured[HONEST].value == pytest.approx(2.15)
    assert by_name(rows, "batch jobs", "Baseline-A100").measured[HONEST].value == pytest.approx(100 / (70 * 2.21))


def test_numbers_of_machines_come_from_the_search() -> None:
    rows = headlines({HONEST: findings({}, Split(27, 3))})
    assert by_name(rows, "70 requests/s", "prompt machines").measured[HONEST].value == 27
    assert by_name(rows, "70 requests/s", "token machines").measured[HONEST].value == 3
    power = by_name(rows, "power of HHcap")
    assert power.measured[HONEST].value == pytest.approx((27 * 44 + 3 * 30.8) / (40 * 44))


def test_what_was_not_found_is_not_made_up() -> None:
    rows = headlines({HONEST: findings({"Baseline-A100": 0.0}, None)})
    assert by_name(rows, "equal power", "AA over Baseline-A100").measured[HONEST].value is None
    assert by_name(rows, "power of HHcap").measured[HONEST].value is None
    assert by_name(rows, "70 requests/s", "prompt machines").measured[HONEST].value is None


def test_every_headline_has_its_searches() -> None:
    """All of the paper's clusters, and the splits at the throughput that 40 DGX-H100 were found to have."""
    oracle = Oracle(lambda case: (case.rate or 0.0) <= 2.0 * case.split.machines)
    searches: dict[Any, Any] = {
        **limit_searches(SCOPE, clusters()),
        **provisioning_searches(SCOPE),
        **{f"saturated {design}": search for design, search in saturation_searches(SCOPE).items()},
    }
    results = drive(searches, 1, run=oracle.run)
    found = ClusterFindings(
        {cluster: results[cluster] for cluster in clusters()},
        {design: results[f"saturated {design}"] for design in saturation_searches(SCOPE)},
        {question: results[question] for question in provisioning_searches(SCOPE)},
    )
    rows = headlines({HONEST: found})
    assert all(row.measured[HONEST].value is not None for row in rows)
    # 80 requests/s need 40 machines, the fewest of which cost least where half of them may be cheaper ones.
    assert found.cheapest[AA_COST].split is not None
    assert found.cheapest[AA_COST].split.machines == 40
    assert {case.seed for case in oracle.cases} == {0, 1}


def test_designs_that_the_paper_does_not_name_are_the_best() -> None:
    found = findings({"Splitwise-HA": 300.0, "Splitwise-AA": 215.0, "Baseline-H100": 150.0})
    rows = headlines({HONEST: found})
    assert by_name(rows, "abstract").measured[HONEST].value == pytest.approx(3.0)
    assert by_name(rows, "conclusion").measured[HONEST].value == pytest.approx(2.0)
    assert by_name(rows, "conclusion").measured[HONEST].about == "Splitwise-HA: 300 over 150 requests/s"


def test_what_differs_has_a_reason_for_each_model_of_time_and_the_rest_has_none() -> None:
    """The published simulator's own difference precedes a guess; arithmetic on prices has one reason for all."""
    as_the_paper = findings({"Splitwise-AA": 215.0, "Splitwise-HA": 118.0})
    slower = findings({"Splitwise-AA": 150.0, "Splitwise-HA": 90.0})
    rows = headlines({PUBLISHED: as_the_paper, HONEST: slower})
    aa = by_name(rows, "equal power", "AA over Baseline-A100")
    assert (aa.differs(PUBLISHED), aa.differs(HONEST)) == (False, True)
    assert aa.why.startswith("honest: decodes slow down")
    at_equal_cost = by_name(rows, "equal cost", "throughput of AA over Baseline-H100")
    assert at_equal_cost.why.startswith("published: the paper's own simulator gives 1.18")
    assert "honest: decodes slow down" in by_name(rows, "cheapest HH: prompt").why
    assert by_name(rows, "equal cost", "machines of AA").why == "a ratio of machines alone: 86 beside 40"
    assert headlines({PUBLISHED: as_the_paper})[0].why == ""


def test_the_reason_has_what_was_not_found() -> None:
    rows = headlines({HONEST: findings({"Baseline-A100": 0.0}, None)})
    assert by_name(rows, "equal power", "AA over Baseline-A100").why == "honest: Baseline-A100 carries nothing"
    assert by_name(rows, "cheapest HH: token").why == "honest: no split in reach serves the rate"


def two_seeds(rate: float) -> ClusterFindings:
    """All clusters but Baseline-A100's carry so much, with two seeds; that one carries 100 requests a second."""
    limits = {
        cluster: Limit((100.0, 100.0) if cluster.design == "Baseline-A100" else (rate, rate), ())
        for cluster in clusters()
    }
    provisioned = Provisioned(Split(27, 3), ())
    return ClusterFindings(
        limits, dict.fromkeys(DESIGNS, rate), dict.fromkeys((HHCAP_POWER, AA_COST, HH_CODE), provisioned)
    )


def shown(table: object) -> str:
    console = Console(width=250)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


FOUND = {DecodeModel.PUBLISHED: two_seeds(215.0), DecodeModel.HONEST: two_seeds(150.0)}


def test_a_headline_has_the_papers_number_both_of_ours_and_a_reason() -> None:
    text = shown(headlines_table(headlines(FOUND), list(FOUND)))
    for heading in ("headline", "paper", "ours, published", "ours, honest", "where they differ, why"):
        assert heading in text
    row = next(line for line in text.splitlines() if "throughput of AA over Baseline-A100" in line)
    assert "2.15" in row
    assert "1.5 (1.50–1.50)" in row
    assert "honest: decodes slow down" in row


def test_limits_show_their_model_of_time() -> None:
    text = shown(limits_table(FOUND[DecodeModel.HONEST].limits, DecodeModel.HONEST))
    assert "honest times" in text
    assert "iso-power, code; conv" in text


def test_a_document_has_every_figure_of_every_model() -> None:
    document = headlines_document(FOUND)
    first = document["headlines"][0]
    assert {model: ours["value"] for model, ours in first["ours"].items()} == {"published": 2.15, "honest": 1.5}
    assert first["ours"]["honest"]["about"] == "150 over 100 requests/s"
    assert {limit["decode_model"] for limit in document["limits"]} == {"published", "honest"}


def test_a_heat_map_has_a_row_for_each_number_of_token_machines() -> None:
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
