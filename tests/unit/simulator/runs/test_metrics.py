"""The figures of a run, and the objectives that they keep or break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import BatchShape, LinearIterationCost, pairs
from spotwise.simulator.costs.published_costs import InterpolatedTable, PublishedIterationCost
from spotwise.simulator.runs.metrics import RunMetrics, time_shares
from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.slo import (
    PERCENTS,
    SPLITWISE_OBJECTIVES,
    SPLITWISE_SLOS,
    AloneOn,
    Latencies,
    LatencyBound,
    LostObjectives,
    Objectives,
    ObjectivesLostError,
    PublishedAlone,
)
from spotwise.simulator.world.observation import Arrival, CompletedRequest


class OneSecond:
    """A request alone takes one second to its first token, ten to its last, one between tokens."""

    def latencies(self, arrival: Arrival) -> Latencies:
        return Latencies(1.0, 1.0, 10.0)


def metrics() -> RunMetrics:
    return RunMetrics(OneSecond(), {"m0": "prompt", "m1": "token", "m2": "token"})


def completed(ttft_s: float, e2e_s: float, output_tokens: int = 10) -> CompletedRequest:
    return CompletedRequest(Arrival(5.0, 100, output_tokens), 5.0 + ttft_s, 5.0 + e2e_s)


def test_latencies_are_kept_as_seconds_and_as_slowdowns() -> None:
    """Against the same request alone; TBT is the mean over a request's output tokens."""
    run = metrics()
    run.request_completed(completed(2.0, 22.0))
    assert {metric: values.at(50) for metric, values in run.latencies.items()} == {
        "ttft": 2.0,
        "tbt": 2.0,
        "e2e": 22.0,
        "itl": None,
    }
    assert {metric: values.at(50) for metric, values in run.slowdowns.items()} == {"ttft": 2.0, "tbt": 2.0, "e2e": 2.2}
    assert run.output_tokens == 10


def test_a_single_token_has_no_time_between_tokens() -> None:
    """Counted as 0 it would make a slow run look fast."""
    run = metrics()
    run.request_completed(completed(2.0, 2.0, output_tokens=1))
    assert run.latencies["tbt"].count == 0
    assert run.latencies["ttft"].count == 1


def test_objectives_hold_when_all_nine_do() -> None:
    run = metrics()
    for _ in range(98):
        run.request_completed(completed(1.0, 10.0))
    run.request_completed(completed(5.0, 14.0))
    assert run.verdict().holds
    run.request_completed(completed(8.0, 17.0))
    run.request_completed(completed(8.0, 17.0))
    assert run.verdict().broken == ["ttft p99"]
    assert not run.verdict().holds


def test_a_bound_that_is_reached_is_broken() -> None:
    run = metrics()
    run.request_completed(completed(2.0, 11.0))
    assert run.verdict().broken == ["ttft p50"]


def test_a_request_without_answer_breaks_the_objectives() -> None:
    run = metrics()
    run.request_completed(completed(1.0, 10.0))
    run.request_failed(Arrival(6.0, 10, 10), "queue full")
    assert not run.verdict().holds
    assert run.verdict().broken == []
    assert run.failed == 1


def test_busy_time_is_kept_by_tokens_and_by_pool() -> None:
    """The share of the time with at most so many tokens in an iteration."""
    run = metrics()
    run.iterations_ended("m0", BatchShape(100, 5000.0), 1.0)
    run.iterations_ended("m1", BatchShape(decodes=4, decode_context=400), 2.0, iterations=20)
    run.iterations_ended("m2", BatchShape(decodes=1, decode_context=100), 6.0, iterations=60)
    assert list(run.pools) == ["prompt", "token"]
    tokens = run.pools["token"]
    assert (tokens.busy_s, tokens.iterations, tokens.decode_tokens) == (8.0, 80, 140)
    assert time_shares(tokens) == ([1, 4], [0.75, 1.0])
    assert time_shares(run.pools["prompt"]) == ([100], [1.0])


def test_gaps_between_tokens_are_counted_each() -> None:
    """A gap that many sequences share counts for each of them."""
    run = metrics()
    run.tokens_spaced((0.05,), 99)
    run.tokens_spaced((1.0,))
    assert run.latencies["itl"].at(99) == 0.05
    assert run.latencies["itl"].at(99.5) == 1.0


def test_throughput_is_that_of_a_cluster_that_is_neither_filling_nor_emptying() -> None:
    """Ten answers a second in the middle, and one at the end that took long."""
    run = metrics()
    assert run.steady_requests_per_s is None
    for number in range(100):
        run.request_completed(completed(1.0, 10.0 + number / 10))
    run.request_completed(completed(1.0, 500.0))
    assert run.steady_requests_per_s == pytest.approx(10.0, rel=0.03)


COST = LinearIterationCost(0.01, 1e-4, 1e-8, 2e-3, 1e-6)


def test_a_request_alone_takes_its_prompt_and_its_decodes() -> None:
    """The same as its iterations one by one, its context growing by a token each."""
    alone = AloneOn(COST).latencies(Arrival(0.0, 100, 5))
    prompt_s = COST.iteration_s(BatchShape(100, pairs(0, 100)))
    decode_s = sum(COST.iteration_s(BatchShape(decodes=1, decode_context=context)) for context in (101, 102, 103, 104))
    assert alone.ttft_s == pytest.approx(prompt_s)
    assert alone.e2e_s == pytest.approx(prompt_s + decode_s)
    assert alone.tbt_s == pytest.approx(decode_s / 5)


def test_a_single_token_alone_has_no_time_between_tokens() -> None:
    alone = AloneOn(COST).latencies(Arrival(0.0, 100, 1))
    assert alone.tbt_s is None
    assert alone.e2e_s == alone.ttft_s


def test_the_published_reference_looks_decodes_up_by_prompt_tokens() -> None:
    cost = PublishedIterationCost(InterpolatedTable((100, 200), (1.0, 2.0)), InterpolatedTable((100, 200), (0.1, 0.3)))
    alone = PublishedAlone(cost).latencies(Arrival(0.0, 150, 10))
    assert (alone.ttft_s, alone.tbt_s, alone.e2e_s) == pytest.approx((1.5, 0.2, 3.3))


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (("itl", 50, 2.0, True), "itl has no bound of this kind; choose one of ttft, tbt, e2e"),
        (("jct", 50, 2.0, False), "choose one of ttft, tbt, e2e, itl"),
        (("ttft", 95, 2.0, True), "p95: choose one of p50, p90, p99"),
        (("ttft", 50, 0.0, True), "a bound is above 0"),
        (("ttft", 50, float("inf"), True), "a bound is above 0 and finite"),
    ],
)
def test_a_bound_is_of_what_is_measured(bound: tuple[str, int, float, bool], message: str) -> None:
    """At the percentiles that are measured; gaps between tokens have no slowdown."""
    metric, percent, below, is_slowdown = bound
    with pytest.raises(ValueError, match=message):
        LatencyBound(metric, percent, below, is_slowdown)
    with pytest.raises(ValueError, match="a bound at least"):
        Objectives(())


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
