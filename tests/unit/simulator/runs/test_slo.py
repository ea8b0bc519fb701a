"""What a request takes alone."""

from __future__ import annotations

import pytest

from spotwise.core.costs.cost_model import BatchShape, LinearIterationCost, pairs
from spotwise.simulator.costs.published_costs import InterpolatedTable, PublishedIterationCost
from spotwise.simulator.runs.slo import (
    SPLITWISE_OBJECTIVES,
    SPLITWISE_SLOS,
    AloneOn,
    LatencyBound,
    Objectives,
    PublishedAlone,
)
from spotwise.simulator.world.observation import Arrival

COST = LinearIterationCost(0.01, 1e-4, 1e-8, 2e-3, 1e-6)


def test_a_request_alone_takes_its_prompt_and_its_decodes() -> None:
    """The same as its iterations one by one, its context growing by a token each."""
    alone = AloneOn(COST).latencies(Arrival(0.0, 100, 5))
    prompt_s = COST.iteration_s(BatchShape(100, pairs(0, 100)))
    decode_s = sum(COST.iteration_s(BatchShape(decodes=1, decode_context=context)) for context in (101, 102, 103, 104))
    assert alone.ttft_s == pytest.approx(prompt_s)
    assert alone.e2e_s == pytest.approx(prompt_s + decode_s)
    assert alone.tbt_s == pytest.approx(decode_s / 5)


def test_a_single_token_has_no_time_between_tokens() -> None:
    alone = AloneOn(COST).latencies(Arrival(0.0, 100, 1))
    assert alone.tbt_s is None
    assert alone.e2e_s == alone.ttft_s


def test_the_published_reference_looks_decodes_up_by_prompt_tokens() -> None:
    """The reference model looks decodes up by prompt tokens, and takes one per token after the first."""
    cost = PublishedIterationCost(InterpolatedTable((100, 200), (1.0, 2.0)), InterpolatedTable((100, 200), (0.1, 0.3)))
    alone = PublishedAlone(cost).latencies(Arrival(0.0, 150, 10))
    assert (alone.ttft_s, alone.tbt_s, alone.e2e_s) == pytest.approx((1.5, 0.2, 3.3))


def test_the_papers_objectives_are_nine_slowdowns() -> None:
    assert len(SPLITWISE_SLOS.bounds) == 9
    for metric, bounds in SPLITWISE_OBJECTIVES.items():
        assert SPLITWISE_SLOS.of(metric, is_slowdown=True) == bounds
        assert SPLITWISE_SLOS.of(metric, is_slowdown=False) == (None, None, None)


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
