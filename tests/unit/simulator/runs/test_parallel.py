"""Searches that share the processors."""

from __future__ import annotations

import pytest

from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.parallel import drive
from spotwise.simulator.searches.search import Grid, Search, limit_of
from tests.unit.simulator.runs.summaries import Oracle, case, summary


def holds_up_to_90(of: Case) -> RunSummary:
    return summary(of, holds=(of.rate or 0.0) <= 90.0)


def again(of: Case, times: int) -> Search[list[Case]]:
    """Search with the same run several times."""
    answered: list[Case] = []
    for _ in range(times):
        (run,) = yield [of]
        answered.append(run.case)
    return answered


def fails(of: Case) -> RunSummary:
    raise RuntimeError(f"cannot run {of.cluster.name}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_back_by_name(jobs: int) -> None:
    """Results are in the order of the searches, for any number of processes, and each run is reported once."""
    searches = {
        "fine": limit_of(case("Splitwise-HH"), Grid(5.0), (1, 2)),
        "coarse": limit_of(case("Splitwise-AA"), Grid(20.0), (1,)),
    }
    finished: list[Case] = []
    results = drive(searches, jobs, holds_up_to_90, lambda run: finished.append(run.case))
    assert [(name, limit.rates) for name, limit in results.items()] == [("fine", (90.0, 90.0)), ("coarse", (80.0,))]
    assert len(finished) == len(set(finished)) == sum(len(limit.runs) for limit in results.values())


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_breaks_a_run_ends_them_all(jobs: int) -> None:
    with pytest.raises(RuntimeError, match="cannot run Splitwise-HH"):
        drive({"": limit_of(case(), Grid(), (1,))}, jobs, run=fails)


def test_a_run_that_two_searches_want_happens_once() -> None:
    oracle = Oracle(lambda of: (of.rate or 0.0) <= 90.0)
    searches = {name: limit_of(case(), Grid(), (1,)) for name in ("one", "other")}
    one, other = drive(searches, 1, run=oracle.run).values()
    assert one == other
    assert len(oracle.cases) == len(set(oracle.cases))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_repeated_case_of_a_search_is_known(jobs: int) -> None:
    finished: list[Case] = []
    results = drive({"": again(case(), 3)}, jobs, holds_up_to_90, lambda run: finished.append(run.case))
    assert results == {"": [case()] * 3}
    assert finished == [case()]
