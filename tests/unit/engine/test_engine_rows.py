"""Rows that an engine is given: those that cannot run or fail, what is reported of layers, and numbers that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.sampling import Pooling, SampledToken, SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.model.attention_interface import reporting_layers
from spotwise.engine.sampling.sampler import NOT_FINITE
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, load_engine, record


def test_the_engine_describes_itself(engine: Engine) -> None:
    assert engine.context_length == 512
    assert engine.vocab_size == VOCAB_SIZE
    assert engine.dtype == "float32"
    assert engine.device == "cpu"
    assert engine.kv_bytes_per_token == 3 * 2 * (16 + 16) * 4
    assert engine.num_blocks == (4 << 20) // (16 * engine.kv_bytes_per_token)
    assert engine.kv.layer_block_bytes * engine.kv.num_layers == 16 * engine.kv_bytes_per_token


def test_a_cache_too_small_for_a_block_is_refused(llama_folder: Path) -> None:
    with pytest.raises(ValueError, match="one block of this model takes 12288"):
        load_engine(llama_folder, kv_cache_bytes=12287)


@pytest.mark.parametrize(
    ("prompt", "reason"), [([], "empty"), ([1] * 513, "513 tokens"), ([VOCAB_SIZE], "outside"), ([-1], "outside")]
)
def test_a_sequence_that_cannot_run_is_refused(engine: Engine, prompt: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        engine.add_sequence(record("a", prompt))
    assert engine.num_sequences == 0


def test_sequences_are_known_by_attempt_and_dropped_for_good(engine: Engine) -> None:
    engine.add_sequence(record("a", [1, 2]))
    with pytest.raises(ValueError, match="already"):
        engine.add_sequence(record("a", [3]))
    engine.append_token("a@1", 5)
    with pytest.raises(ValueError, match="outside"):
        engine.append_token("a@1", VOCAB_SIZE)
    engine.drop_sequence("a@1")
    engine.drop_sequence("a@1")
    assert engine.num_sequences == 0
    with pytest.raises(ValueError, match="not here"):
        engine.append_token("a@1", 5)


@pytest.mark.parametrize(
    "row",
    [
        BatchRow("b@1", 0, 1, (0,)),
        BatchRow("a@1", 0, 4, (0,)),
        BatchRow("a@1", 0, 0, (0,)),
        BatchRow("a@1", -1, 1, (0,)),
        BatchRow("a@1", 0, 3, ()),
        BatchRow("a@1", 0, 3, (1 << 20,)),
        BatchRow("a@1", 2, 1, (1 << 20,)),
        BatchRow("a@1", 0, 3, (-1,)),
    ],
)
def test_a_row_that_names_what_does_not_exist_changes_nothing(engine: Engine, row: BatchRow) -> None:
    engine.add_sequence(record("a", [1, 2, 3]))
    with pytest.raises(ValueError):
        engine.run_iteration(Batch((row,)))
    (token,) = engine.run_iteration(Batch((BatchRow("a@1", 0, 3, (0,)),)))
    assert token.sequence_id == "a@1"


def test_tokens_come_in_the_order_of_the_rows(engine: Engine) -> None:
    """Prefills and decodes are computed in another order than they are answered in."""
    blocks = {name: (index,) for index, name in enumerate("abcd")}
    for name in "abcd":
        engine.add_sequence(record(name, [1, 2, 3]))
    engine.run_iteration(Batch(tuple(BatchRow(f"{name}@1", 0, 3, blocks[name]) for name in "bd")))
    rows = [("a", 0, 3), ("b", 3, 1), ("c", 0, 3), ("d", 3, 1)]
    batch = Batch(tuple(BatchRow(f"{name}@1", first, count, blocks[name]) for name, first, count in rows))
    assert [token.sequence_id for token in engine.run_iteration(batch)] == ["a@1", "b@1", "c@1", "d@1"]


def test_an_empty_batch_gives_nothing(engine: Engine) -> None:
    assert engine.run_iteration(Batch(())) == ()


PROMPTS = {"decodes": [1, 2, 3], "begins": [4, 5, 6, 7, 8], "scored": [9, 10, 11, 12]}


def sequences(engine: Engine, suffix: str, first_block: int) -> Batch:
    """Three sequences, one of which decodes already; the batch of their next iteration."""
    rows = []
    for number, (name, prompt) in enumerate(PROMPTS.items()):
        scores: dict[str, Any] = {"prompt_logprobs": 1} if name == "scored" else {}
        sampling = SamplingParams(temperature=1.0, seed=7 + number, presence_penalty=0.5, logprobs=2, **scores)
        engine.add_sequence(record(f"{name}-{suffix}", prompt, sampling))
        rows.append(BatchRow(f"{name}-{suffix}@1", 0, len(prompt), (first_block + number,)))
    engine.run_iteration(Batch((rows[0],)))
    return Batch((rows[0]._replace(first_position=3, num_tokens=1), *rows[1:]))


def without_owner(sampled: tuple[SampledToken, ...]) -> list[Any]:
    return [(token.token_id, token.logprobs, token.prompt_logprobs) for token in sampled]


@pytest.mark.parametrize(
    "place", ["sampling.sampler.sample", "sampling.sampler._requested_logprobs", "engine.note_prompt_logprobs"]
)
def test_the_same_rows_bring_the_same_tokens_afterwards(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Sampling counts on nothing that a failed iteration used up; scores of prompts are there, and once."""
    expected = without_owner(engine.run_iteration(sequences(engine, "sound", 0)))
    batch = sequences(engine, "again", 8)

    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as failing:
        failing.setattr(f"spotwise.engine.{place}", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of memory"):
                engine.run_iteration(batch)
    again = without_owner(engine.run_iteration(batch))
    assert [token_id for token_id, *_ in again] == [token_id for token_id, *_ in expected]
    assert [scores is None for *_, scores in again] == [True, True, False]
    assert again == expected


LONG_PROMPT = [(7 * k) % 90 for k in range(40)]
BLOCKS = (3, 0, 5)


@pytest.fixture(params=[True, False], ids=["native", "torch"])
def reporting_engine(request: pytest.FixtureRequest, llama_folder: Path) -> Engine:
    """An engine with fused layers, and one with the layers of transformers."""
    return load_engine(llama_folder, native=request.param)


def test_a_reported_layer_is_written(reporting_engine: Engine) -> None:
    engine = reporting_engine
    seen: list[int] = []
    early: list[np.ndarray] = []

    def listen(layers: int) -> None:
        seen.append(layers)
        early.append(engine.kv.export_layers(layers - 1, 1, BLOCKS))

    engine.add_sequence(record("a", LONG_PROMPT))
    engine.run_iteration(Batch((BatchRow("a@1", 0, 40, BLOCKS),)), listen)
    assert seen == list(range(1, engine.kv.num_layers + 1))
    for layer, cells in enumerate(early):
        assert cells.any()
        assert np.array_equal(cells, engine.kv.export_layers(layer, 1, BLOCKS))


def test_listening_changes_no_token(reporting_engine: Engine) -> None:
    engine = reporting_engine
    seen: list[int] = []
    tokens = []
    for name, listener in (("a", None), ("b", seen.append)):
        engine.add_sequence(record(name, LONG_PROMPT))
        (sampled,) = engine.run_iteration(Batch((BatchRow(f"{name}@1", 0, 40, BLOCKS),)), listener)
        tokens.append(sampled.token_id)
    assert tokens[0] == tokens[1]
    reported = len(seen)
    engine.run_iteration(Batch((BatchRow("b@1", 40, 1, BLOCKS),)))
    assert len(seen) == reported


def test_forwards_that_only_score_a_prompt_are_not_reported(engine: Engine) -> None:
    """Layers are counted for the iteration's own forward alone, which computes the last of the prompt."""
    seen: list[int] = []
    engine.add_sequence(record("a", LONG_PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=0)))
    engine.run_iteration(Batch((BatchRow("a@1", 0, 40, BLOCKS),)), seen.append)
    assert seen == list(range(1, engine.kv.num_layers + 1))


def test_an_iteration_that_raises_reports_no_more(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def fail(layers: int) -> None:
        seen.append(layers)
        raise RuntimeError("the listener's own mistake")

    engine.add_sequence(record("a", LONG_PROMPT))
    row = BatchRow("a@1", 0, 40, BLOCKS)
    with pytest.raises(RuntimeError, match="own mistake"):
        engine.run_iteration(Batch((row,)), fail)
    engine.run_iteration(Batch((row,)))
    assert seen == [1]


def test_layers_that_come_out_of_order_are_not_reported(engine: Engine) -> None:
    """A reported number of layers covers the first ones; layers left out count as written when the iteration ends."""

    class Attention:
        on_written = None

    attention: Any = Attention()
    seen: list[int] = []
    with reporting_layers(attention, engine.kv, seen.append):
        for layer in (1, 0, 2, 1, 1):
            attention.on_written(layer)  # type: ignore[misc]
    assert seen == [1, 2]
    assert attention.on_written is None


def test_a_cache_on_the_host_has_nothing_to_wait_for(engine: Engine) -> None:
    engine.kv.note_written(0)
    assert engine.kv.written_event(0) is None
    assert engine.kv.device == torch.device("cpu")


#: The token whose embedding is damaged: only prompts that have it give no numbers.
DAMAGED = 200


@pytest.fixture
def damaged(folder: Path) -> Path:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][DAMAGED] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def first_of(folder: Path, prompt: list[int], *, native: bool, **sampling: Any) -> SampledToken:
    """What comes of one iteration with this prompt and a sound one beside it, which has its token."""
    driver = Driver(load_engine(folder, native=native))
    driver.add(record("sound", [1, 2, 3]))
    driver.add(record("a", prompt, SamplingParams(**sampling), max_new_tokens=1))
    driver.step()
    assert driver.results["sound@1"][0].failure is None
    return driver.results["a@1"][0]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"seed": 5},
        {"top_p": 0.9},
        {"temperature": 0.0, "logprobs": 3},
        {"allowed_token_ids": (3, 4)},
        {"temperature": 0.0, "prompt_logprobs": 2},
        {"pooling": Pooling.LAST},
        {"pooling": Pooling.MEAN},
    ],
    ids=str,
)
def test_no_number_is_no_answer(sampling: dict[str, Any], native: bool, damaged: Path) -> None:
    """Greedy, seeded, filtered, restricted, scored or embedded: the failure says what to look for, and is the engine's."""
    sampled = first_of(damaged, [1, DAMAGED, 3], native=native, **sampling)
    assert (sampled.failure, sampled.may_be_ill) == (NOT_FINITE, True)
    assert first_of(damaged, [1, 2, 3], native=native, **sampling).failure is None


@pytest.mark.parametrize("native", [False, True])
def test_a_mask_does_not_hide_what_is_no_number(native: bool, folder: Path) -> None:
    """One damaged row of the head is a damaged model, also where the request allows other tokens only."""
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][9] = torch.inf
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    driver = Driver(load_engine(folder, native=native))
    driver.add(record("a", [1, 2], SamplingParams(allowed_token_ids=(3, 4)), max_new_tokens=1))
    driver.step()
    assert driver.results["a@1"][0].failure == NOT_FINITE


def test_a_scored_prompt_is_broken_where_one_of_its_positions_is(damaged: Path) -> None:
    """In the pieces that are scored apart, too; log-probabilities that are no numbers are no JSON."""
    prompt = [1, 2, *[3] * 300, DAMAGED, 4]
    assert first_of(damaged, prompt, native=True, temperature=0.0, prompt_logprobs=0).failure == NOT_FINITE


@pytest.mark.parametrize("native", [False, True])
def test_the_next_sequence_in_its_blocks_is_not_harmed(native: bool, damaged: Path) -> None:
    """What a sequence does not use of its blocks is multiplied by zero: nothing of the failed one is left there."""
    engine = load_engine(damaged, native=native)
    driver = Driver(engine)
    driver.add(record("a", [1, 2, DAMAGED, *[3] * 9], max_new_tokens=1))
    driver.step()
    engine.drop_sequence("a@1")
    engine.add_sequence(record("next", [1, 2]))
    (sampled,) = engine.run_iteration(Batch((BatchRow("next@1", 0, 2, driver.pool.owned_by("a@1")),)))
    assert sampled.failure is None
