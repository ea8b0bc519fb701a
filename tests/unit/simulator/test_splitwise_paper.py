"""Headlines out of what was found."""

from __future__ import annotations

import pytest

from spotwise.simulator.designs import DESIGNS, Split
from spotwise.simulator.machine_costs import DecodeModel
from spotwise.simulator.parallel import drive
from spotwise.simulator.provisioning import Provisioned
from spotwise.simulator.search import Grid, Limit
from spotwise.simulator.splitwise_headlines import Headline, headlines
from spotwise.simulator.splitwise_paper import (
    AA_COST,
    HH_CODE,
    HHCAP_POWER,
    Findings,
    Scope,
    clusters,
    limit_searches,
    provisioning_searches,
    saturation_searches,
)
from spotwise.simulator.workload import Workload
from tests.unit.simulator.summaries import Oracle

TEN_AND_FIVE = Split(10, 5)
SCOPE = Scope({name: Workload(name) for name in ("code", "conv")}, 10.0, Grid(), (0, 1))


def findings(rates: dict[str, float], cheapest: Split | None = TEN_AND_FIVE) -> Findings:
    """Every cluster of a design carries the same."""
    return Findings(
        {cluster: Limit((rates.get(cluster.design, 100.0),) * 2, ()) for cluster in clusters()},
        {design: rates.get(design, 100.0) for design in DESIGNS},
        {question: Provisioned(cheapest, ()) for question in (HHCAP_POWER, AA_COST, HH_CODE)},
    )


def by_name(rows: list[Headline], *words: str) -> Headline:
    (found,) = [row for row in rows if all(word in row.name for word in words)]
    return found


def test_throughputs_are_ratios_of_limits() -> None:
    """With their spread over the seeds, seed by seed."""
    found = findings({"Splitwise-AA": 215.0, "Baseline-A100": 100.0, "Baseline-H100": 150.0})
    rows = headlines(found, DecodeModel.HONEST)
    assert by_name(rows, "equal power", "AA over Baseline-A100").ours == pytest.approx(2.15)
    assert by_name(rows, "equal power", "AA over Baseline-A100").spread == pytest.approx((2.15, 2.15))
    assert by_name(rows, "equal cost", "throughput of AA over Baseline-H100").ours == pytest.approx(215 / 150)
    assert by_name(rows, "made for code", "HA over").ours == 1.0


def test_prices_and_power_follow_from_the_machines() -> None:
    """As the paper's tables have them, whatever a simulation says."""
    rows = headlines(findings({}), DecodeModel.HONEST)
    assert by_name(rows, "cost of HA over Baseline-H100").ours == pytest.approx(0.927, abs=0.001)
    assert by_name(rows, "power of AA over Baseline-H100").ours == pytest.approx(86 / (40 * 44 / 24.8))
    assert by_name(rows, "machines of AA").ours == pytest.approx(2.15)
    assert by_name(rows, "batch jobs", "Baseline-A100").ours == pytest.approx(100 / (70 * 2.21))


def test_numbers_of_machines_come_from_the_search() -> None:
    """As machines, and as what they draw and cost beside 40 DGX-H100."""
    rows = headlines(findings({}, Split(27, 3)), DecodeModel.HONEST)
    assert by_name(rows, "70 requests/s", "prompt machines").ours == 27
    assert by_name(rows, "70 requests/s", "token machines").ours == 3
    power = by_name(rows, "power of HHcap")
    assert power.ours == pytest.approx((27 * 44 + 3 * 30.8) / (40 * 44))


def test_what_was_not_found_is_not_made_up() -> None:
    """No split, and a baseline that carries nothing."""
    rows = headlines(findings({"Baseline-A100": 0.0}, None), DecodeModel.HONEST)
    assert by_name(rows, "equal power", "AA over Baseline-A100").ours is None
    assert by_name(rows, "power of HHcap").ours is None
    assert by_name(rows, "70 requests/s", "prompt machines").ours is None


def test_every_headline_has_its_searches() -> None:
    """All of the paper's clusters, and the splits at the throughput that 40 DGX-H100 were found to have."""
    oracle = Oracle(lambda case: (case.rate or 0.0) <= 2.0 * case.split.machines)
    searches = {
        **limit_searches(SCOPE, clusters()),
        **provisioning_searches(SCOPE),
        **{f"saturated {design}": search for design, search in saturation_searches(SCOPE).items()},
    }
    results = drive(searches, 1, run=oracle.run)
    found = Findings(
        {cluster: results[cluster] for cluster in clusters()},
        {design: results[f"saturated {design}"] for design in saturation_searches(SCOPE)},
        {question: results[question] for question in provisioning_searches(SCOPE)},
    )
    rows = headlines(found, DecodeModel.HONEST)
    assert all(row.ours is not None for row in rows)
    # 80 requests/s need 40 machines, the fewest of which cost least where half of them may be cheaper ones.
    assert found.cheapest[AA_COST].split is not None
    assert found.cheapest[AA_COST].split.machines == 40
    assert {case.seed for case in oracle.asked} == {0, 1}


def test_what_differs_has_a_reason_and_the_rest_has_none() -> None:
    """The reason is that of the model of time; arithmetic on prices has its own."""
    found = findings({"Splitwise-AA": 215.0, "Splitwise-HA": 100.0})
    honest, published = (headlines(found, model) for model in (DecodeModel.HONEST, DecodeModel.PUBLISHED))
    assert by_name(honest, "equal power", "AA over Baseline-A100").about == "215 over 100 requests/s"
    assert "behind longer contexts" in by_name(honest, "equal power", "throughput of HA").about
    assert "schedulers" in by_name(published, "equal power", "throughput of HA").about
    assert "schedulers" not in by_name(published, "equal cost", "machines of AA").about
