"""A model whose numbers are none (NaN, infinite) gives no token, embedding or log-probability: its requests fail by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.sampling import Pooling, SampledToken, SamplingParams
from spotwise.engine.sampling.sampler import NOT_FINITE
from tests.unit.engine.tiny_models import Driver, load_engine, record

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
