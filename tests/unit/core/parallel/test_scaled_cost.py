"""One worker's measurements on more devices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from spotwise.core.costs.cost_model import BatchShape, LinkCost, pairs
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.scaled_cost import GroupCost
from tests.unit.core.parallel.builders import MODEL, WORKER, engine_shape, scaled

FREE = LinkCost(0.0, 1e18)


def test_one_stage_and_one_shard_is_the_worker_itself() -> None:
    """Prompts of the whole batch at once, or one after the other where that is faster; steps together."""
    config = ParallelConfig(3, 1, 1, 2)
    assert scaled().prompt_s(config, 40) == pytest.approx(WORKER.iteration_s(BatchShape(80, 2 * pairs(0, 40))))
    step_s = WORKER.iteration_s(BatchShape(decodes=2, decode_context=100))
    assert scaled().step_s(config) == pytest.approx(step_s)
    assert scaled().execution_s(config, 40, 7) == pytest.approx(scaled().prompt_s(config, 40) + 7 * step_s)


def test_shards_divide_what_is_computed_and_add_up_twice_a_layer() -> None:
    """A ring of four: six turns with a quarter of the activations each, twice in each of ten layers."""
    step_s = WORKER.iteration_s(BatchShape(decodes=1, decode_context=50))
    turn_s = 1e-3 + 50 / 1e6  # of 100 numbers of 2 bytes a quarter
    assert scaled().step_s(ParallelConfig(1, 1, 4)) == pytest.approx(step_s / 4 + 10 * 2 * 6 * turn_s)


def test_shards_of_the_engine_gather_around_two_matrices_of_a_layer_and_behind_the_head() -> None:
    """What both are computed from and what they give: 1 and 160 columns of two bytes, each twice in each of ten layers; and
    1,000 logits of four bytes. Two others send a third each.
    """
    model = engine_shape()
    step_s = WORKER.iteration_s(BatchShape(decodes=1, decode_context=50))
    columns_s = [2 * (1e-3 + -(-2 * columns // 3) / 1e6) for columns in (1, 160, 1, 160)]
    logits_s = 2 * (1e-3 + 1334 / 1e6)
    assert scaled(model=model).step_s(ParallelConfig(1, 1, 3)) == pytest.approx(
        step_s / 3 + 10 * sum(columns_s) + logits_s
    )


def test_a_hop_of_the_engine_carries_whole_activations() -> None:
    """Each shard sends them to the same shard of the next stage: 160 numbers of two bytes."""
    model = engine_shape()
    one, two = (scaled(model=model, link=FREE).step_s(ParallelConfig(1, stages, 3)) for stages in (1, 2))
    assert two - one == pytest.approx(1e-3 + 320 / 1e6)


@pytest.mark.parametrize("shape", [(1, 5), (11, 1)])
def test_what_the_engine_cannot_cut_takes_for_ever(shape: tuple[int, int]) -> None:
    """Five shards of twelve KV heads; eleven stages of ten layers."""
    assert scaled(model=engine_shape()).step_s(ParallelConfig(1, *shape)) == math.inf


def test_what_each_shard_does_anew_is_not_divided() -> None:
    """The fixed part of an iteration; without a cost of links."""
    step_s = WORKER.iteration_s(BatchShape(decodes=1, decode_context=50))
    whole = scaled(link=FREE, unsharded_s=0.010).step_s(ParallelConfig(1, 1, 2))
    assert whole == pytest.approx((step_s - 0.010) / 2 + 0.010)


def test_a_step_passes_all_stages_and_hops_between() -> None:
    """Stages share the work out, so that only hops are added."""
    step_s = WORKER.iteration_s(BatchShape(decodes=1, decode_context=50))
    assert scaled().step_s(ParallelConfig(1, 5, 1)) == pytest.approx(step_s + 4 * (1e-3 + 200 / 1e6))


def test_prompts_go_one_by_one_through_stages_where_that_is_faster() -> None:
    """The slowest stage sets the pace: with the head, 3.5 of 12 parts of the work (padding leaves it one layer less)."""
    config = ParallelConfig(1, 4, 1, 8)
    one_s = WORKER.iteration_s(BatchShape(400, pairs(0, 400)))
    slowest_s = one_s * 3 / 12  # three layers of a million bytes; the last stage has one layer, and a head of two
    expected = one_s + 7 * slowest_s
    assert scaled(hop=FREE).prompt_s(config, 400) == pytest.approx(expected)
    assert expected < WORKER.iteration_s(BatchShape(3200, 8 * pairs(0, 400)))


def test_with_phases_apart_the_last_layer_of_the_kv_is_waited_for() -> None:
    """With split phases the last layer's KV, half per shard for two prompts of 40 tokens, adds to the execution."""
    together, apart = ParallelConfig(1, 1, 2, 2), ParallelConfig(1, 1, 2, 2, prompt_data=1)
    extra_s = scaled().execution_s(apart, 40, 3) - scaled().execution_s(together, 40, 3)
    assert extra_s == pytest.approx(1e-3 + 2 * 40 * 400 / 2 / 1e6)


@pytest.mark.parametrize("stages", [6, 11])
def test_stages_without_layers_take_for_ever(stages: int) -> None:
    """Ten layers, two each, are five stages; a sixth would be empty."""
    assert scaled().execution_s(ParallelConfig(1, stages, 1), 10, 1) == math.inf


def test_the_head_can_make_the_last_stage_the_slowest() -> None:
    model = replace(MODEL, head_bytes=10_000_000)
    one_s = WORKER.iteration_s(BatchShape(400, pairs(0, 400)))
    cost = scaled(model=model, hop=FREE)
    assert cost.prompt_s(ParallelConfig(1, 2, 1, 8), 400) == pytest.approx(one_s * (1 + 7 * 15 / 20))


def test_an_iteration_of_a_group_is_a_step_or_a_prompt_of_its_shape() -> None:
    """As much faster than on one device as the planner expects, also where both are in one batch."""
    cost, config = scaled(model=engine_shape()), ParallelConfig(1, 2, 3, 4)
    steps = BatchShape(decodes=4, decode_context=4 * cost.context_tokens)
    group = GroupCost(cost, config)
    assert group.iteration_s(steps) == pytest.approx(cost.step_s(config))
    prompt = BatchShape(40, pairs(0, 40))
    assert group.iteration_s(prompt) == pytest.approx(cost.prompt_s(replace(config, max_batch=1), 40))
    assert GroupCost(cost, config, speed=4.0).iteration_s(steps) == pytest.approx(cost.step_s(config) / 4)
    both = BatchShape(40, pairs(0, 40), 4, 4 * cost.context_tokens)
    assert group.iteration_s(prompt) < group.iteration_s(both) < group.iteration_s(prompt) + group.iteration_s(steps)
