"""When an objective cannot hold any more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.slo import (
    PERCENTS,
    SPLITWISE_OBJECTIVES,
    SPLITWISE_SLOS,
    LostObjectives,
    ObjectivesLostError,
)

BOUNDS = SPLITWISE_OBJECTIVES["ttft"]
SLOWDOWNS = st.lists(
    st.sampled_from([1.0, *BOUNDS, *(bound - 0.01 for bound in BOUNDS), 9.0]), min_size=1, max_size=300
)


def is_lost(slowdowns: list[float], requests: int) -> bool:
    """Whether these are too many of so many requests."""
    lost = LostObjectives(requests, SPLITWISE_SLOS)
    try:
        for slowdown in slowdowns:
            lost.count("ttft", 10 * slowdown, slowdown)
    except ObjectivesLostError:
        return True
    return False


@given(slowdowns=SLOWDOWNS)
def test_all_requests_lose_an_objective_where_their_percentile_is_beyond_it(slowdowns: list[float]) -> None:
    seen = Percentiles()
    for slowdown in slowdowns:
        seen.add(slowdown)
    figures = [seen.at(percent) for percent in PERCENTS]
    holds = all(figure is not None and figure < bound for figure, bound in zip(figures, BOUNDS, strict=True))
    assert is_lost(slowdowns, len(slowdowns)) is not holds


@given(slowdowns=SLOWDOWNS, more=st.lists(st.just(1.0), max_size=300))
def test_what_is_lost_cannot_be_mended(slowdowns: list[float], more: list[float]) -> None:
    """Fast requests that come later change nothing, and those seen so far have lost it, too."""
    requests = len(slowdowns) + len(more)
    assert is_lost(slowdowns, requests) == is_lost(slowdowns + more, requests)
    if is_lost(slowdowns, requests):
        assert is_lost(slowdowns, len(slowdowns))
