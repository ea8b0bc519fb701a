"""What a request takes alone."""

from __future__ import annotations

import pytest

from spotwise.core.cost_model import BatchShape, LinearIterationCost, pairs
from spotwise.simulator.costs.published_costs import InterpolatedTable, PublishedIterationCost
from spotwise.simulator.runs.slo import AloneOn, PublishedAlone
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
    """A request of one token ends with its first token."""
    alone = AloneOn(COST).latencies(Arrival(0.0, 100, 1))
    assert alone.tbt_s is None
    assert alone.e2e_s == alone.ttft_s


def test_the_published_reference_looks_decodes_up_by_prompt_tokens() -> None:
    """The reference model looks decodes up by prompt tokens, and takes one per token after the first."""
    cost = PublishedIterationCost(InterpolatedTable((100, 200), (1.0, 2.0)), InterpolatedTable((100, 200), (0.1, 0.3)))
    alone = PublishedAlone(cost).latencies(Arrival(0.0, 150, 10))
    assert (alone.ttft_s, alone.tbt_s, alone.e2e_s) == pytest.approx((1.5, 0.2, 3.3))
