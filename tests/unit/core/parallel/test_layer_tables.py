"""What a batch takes by measured layers."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import throughput
from spotwise.core.parallel.layer_tables import LayerTables
from tests.unit.core.parallel.profiles import published, round_profile

TABLES = LayerTables.from_profile(round_profile())


def test_a_batch_of_one_is_layers_hops_and_embeddings() -> None:
    """Three stages of four layers (the last has two, and is taken to be as slow)."""
    config = ParallelConfig.parse("1,3,2,1")
    assert TABLES.prompt_s(config, 512) == pytest.approx(2 * (24 * 4 * 3 + 2 * 8 + 2 * 1) / 1000)
    assert TABLES.step_s(config) == pytest.approx(2 * (2.0 * 4 * 3 + 2 * 0.5) / 1000)
    assert TABLES.execution_s(config, 512, 5) == pytest.approx(0.612 + 5 * 0.05)


def test_prompts_go_one_by_one_and_steps_together() -> None:
    """M1 is B, and prompts are divided by it; M2 is 1."""
    config = ParallelConfig.parse("7,2,1,4")
    assert TABLES.prompt_s(config, 512) == pytest.approx(2 * (40 * 5 * (2 + 3) / 4 + 8 / 4 + 2 * 3) / 1000)
    assert TABLES.step_s(config) == pytest.approx(2 * (6.0 * 5 * 2 + 0.5) / 1000)


def test_whole_prompts_cost_what_their_pipeline_is_busy_for() -> None:
    """Four times as much for four sequences, but for the embedding."""
    config = ParallelConfig.parse("1,2,1,4")
    whole = replace(TABLES, whole_prompts=True)
    assert whole.prompt_s(config, 512) == pytest.approx(2 * (40 * 5 * (2 + 3) + 8 + 2 * 3) / 1000)
    assert whole.step_s(config) == TABLES.step_s(config)


def test_micro_batches_can_be_set() -> None:
    """Prompts and steps run in micro-batches of two sequences, and a step's hops are divided among them."""
    tables = replace(TABLES, prompt_micro_batches=2, step_micro_batches=2)
    config = ParallelConfig.parse("1,2,1,4")
    assert tables.prompt_s(config, 512) == pytest.approx(2 * (70 * 5 * 3 / 2 + 8 / 2 + 6) / 1000)
    assert tables.step_s(config) == pytest.approx(2 * (5.0 * 5 * 3 + 0.5 / 2) / 1000)


def test_prompts_of_other_lengths_are_taken_in_proportion() -> None:
    """A layer's time scales with the prompt's length; hops and embeddings are as measured."""
    config = ParallelConfig.parse("1,1,1,1")
    assert TABLES.prompt_s(config, 1024) == pytest.approx(2 * (2 * 40 * 10 + 2) / 1000)


def test_a_batch_between_two_measured_ones_costs_as_the_larger() -> None:
    three = ParallelConfig.parse("1,1,2,3")
    assert TABLES.step_s(three) == TABLES.step_s(replace(three, max_batch=4))


@pytest.mark.parametrize("written", ["1,1,3,1", "1,1,4,1", "1,1,2,8", "1,11,1,1"])
def test_what_was_not_measured_takes_for_ever(written: str) -> None:
    """An M without measurements or above the largest to choose, a batch too large, more stages than layers."""
    config = ParallelConfig.parse(written)
    assert TABLES.execution_s(config, 512, 1) == math.inf
    assert throughput(TABLES, config, 512, 1) == 0.0


def test_throughput_is_pipelines_times_batch_over_seconds() -> None:
    """With both phases on the same pipelines, throughput is the sequences in flight over the execution time."""
    config = ParallelConfig.parse("3,2,2,4")
    assert throughput(TABLES, config, 512, 10) == pytest.approx(12 / TABLES.execution_s(config, 512, 10))


@pytest.mark.parametrize(("written", "bound"), [("1+30,2,2,4", "prompts"), ("9+1,2,2,4", "steps")])
def test_with_phases_apart_the_slower_side_bounds(written: str, bound: str) -> None:
    """Prompt pipelines and token pipelines each have a rate, and the lower rate is the throughput."""
    config = ParallelConfig.parse(written)
    prompts = config.prompt_data * 4 / TABLES.prompt_s(config, 512)
    steps = config.data * 4 / (100 * TABLES.step_s(config))
    assert throughput(TABLES, config, 512, 100) == min(prompts, steps) == {"prompts": prompts, "steps": steps}[bound]


def test_requests_without_tokens_have_no_throughput() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        throughput(TABLES, ParallelConfig(1, 1, 1), 512, 0)


def test_layers_can_be_given_in_place_of_the_profiles() -> None:
    """A profile of another model with the same layers can be used; without its padding there is none."""
    document = round_profile()
    del document["padded_layer_num"], document["max_tp"]
    tables = LayerTables.from_profile(document, layers=20)
    assert (tables.layers, tables.padded_layers, tables.max_tensor) == (20, 20, 4)
    assert LayerTables.from_profile(document, layers=20, padded_layers=24).padded_layers == 24


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("layer_num", None, "`layer_num` is missing"),
        ("layer_num", 0, "`layer_num` must be a whole number"),
        ("padded_layer_num", 9, "padding adds"),
        ("final_fix_factor", None, "`final_fix_factor` is missing"),
        ("final_fix_factor", "1.1", "`final_fix_factor` must be a number"),
        ("pp_init_comm", -1, "`pp_init_comm` must be a number"),
        ("pp_incr_comm", float("nan"), "`pp_incr_comm` must be a number"),
        ("embed", 3, "`embed` must be a list"),
        ("embed", [1.0, True], r"`embed\[1\]` must be a number"),
        ("tp-1", 3, "`tp-1` must be an object"),
        ("tp-1", {}, "tp-1 has no `bsz-N`"),
        ("tp-1", {"bsz-1": {"init": 1.0}}, "`tp-1.bsz-1.incr` is missing"),
        ("tp-1", {"bsz-one": {}}, "`bsz-one` in tp-1"),
        ("tp-0", {}, "`tp-0` in the profile"),
    ],
)
def test_a_bad_profile_is_refused_with_the_name_of_the_field(field: str, value: object, why: str) -> None:
    """Missing where the value is `None`."""
    document = round_profile()
    if value is None:
        del document[field]
    else:
        document[field] = value
    with pytest.raises(ValueError, match=why):
        LayerTables.from_profile(document)


def test_a_profile_without_measurements_is_refused() -> None:
    document = {key: value for key, value in round_profile().items() if not key.startswith("tp-")}
    with pytest.raises(ValueError, match="has no `tp-N`"):
        LayerTables.from_profile(document)


@pytest.mark.skipif("SPOTWISE_DATA" not in os.environ, reason="SPOTWISE_DATA names no folder with the data")
@pytest.mark.parametrize(
    ("model", "written", "seconds"),
    [("6.7B", "1,1,4,1", 5.447), ("h6144", "1,3,4,1", 14.373), ("h7168", "1,2,8,1", 17.540)],
)
def test_the_papers_latencies(model: str, written: str, seconds: float) -> None:
    """Table 1: one request of 512 tokens in and 128 out, alone."""
    assert published(model).execution_s(ParallelConfig.parse(written), 512, 128) == pytest.approx(seconds, abs=5e-4)
