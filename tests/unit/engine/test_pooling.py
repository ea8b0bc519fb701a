"""Embeddings of prompts are transformers' hidden states, pooled, however prompts are cut and whatever runs beside."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.sampling import Pooling, SamplingParams
from spotwise.engine.engine import Engine
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, load_engine, record

#: Of 1 token, less than a block, more than a chunk, and of many blocks.
LENGTHS = (1, 5, 40, 150)
TOLERANCE = 2e-4


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


@functools.cache
def _model(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def expected(folder: Path, prompt: list[int], pooling: Pooling) -> torch.Tensor:
    """What transformers gives for the prompt alone."""
    with torch.inference_mode():
        hidden: torch.Tensor = _model(folder)(torch.tensor([prompt])).last_hidden_state[0]
    return hidden[-1] if pooling is Pooling.LAST else hidden.mean(0)


def pooled(pooling: Pooling) -> SamplingParams:
    return SamplingParams(temperature=0.0, pooling=pooling)


def require_near(embedding: tuple[float, ...] | None, wanted: torch.Tensor) -> None:
    assert embedding is not None
    torch.testing.assert_close(torch.tensor(embedding), wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("chunk_tokens", [1 << 30, 17])
def test_prompts_have_their_embeddings_beside_others(llama_folder: Path, chunk_tokens: int, native: bool) -> None:
    """Both poolings, whole or in chunks, in one batch with prompts without and with decodes, which it does not change."""
    engine = load_engine(llama_folder, native=native)
    alone = Driver(engine, chunk_tokens)
    for index, prompt in enumerate(prompts()):
        alone.add(record(f"alone-{index}", prompt, max_new_tokens=8))
    tokens = alone.finish()
    driver = Driver(load_engine(llama_folder, native=native), chunk_tokens)
    for index, prompt in enumerate(prompts()):
        driver.add(record(f"alone-{index}", prompt, max_new_tokens=8))
        driver.step()
        for pooling in Pooling:
            driver.add(record(f"{pooling}-{index}", prompt, pooled(pooling), max_new_tokens=1))
        driver.step()
    with_others = driver.finish()
    for index, prompt in enumerate(prompts()):
        for pooling in Pooling:
            (token,) = driver.results[f"{pooling}-{index}@1"]
            require_near(token.embedding, expected(llama_folder, prompt, pooling))
    assert {name: with_others[name] for name in tokens} == tokens
    assert all(token.embedding is None for name in tokens for token in driver.results[name])
    assert driver.largest_mix[0] >= 2


def test_an_embedding_is_of_the_prompt_and_comes_once(engine: Engine, llama_folder: Path) -> None:
    """With the first of several tokens, which are those of a request without one."""
    prompt = prompts()[2]
    driver = Driver(engine)
    driver.add(record("plain", prompt, max_new_tokens=4))
    driver.add(record("pooled", prompt, pooled(Pooling.MEAN), max_new_tokens=4))
    tokens = driver.finish()
    assert tokens["plain@1"] == tokens["pooled@1"]
    first, *others = driver.results["pooled@1"]
    require_near(first.embedding, expected(llama_folder, prompt, Pooling.MEAN))
    assert [token.embedding for token in others] == [None] * 3


def test_the_last_tokens_hidden_state_needs_no_other_to_be_computed_here(engine: Engine, llama_folder: Path) -> None:
    """After KV that another sequence left, as a prefix cache has it, and of a row of one token."""
    prompt = prompts()[2]
    engine.add_sequence(record("first", prompt))
    engine.run_iteration(Batch((BatchRow("first@1", 0, 40, (0, 1, 2)),)))
    for name, computed in (("rest", 32), ("last", 39)):
        engine.add_sequence(record(name, prompt, pooled(Pooling.LAST)))
        (token,) = engine.run_iteration(Batch((BatchRow(f"{name}@1", computed, 40 - computed, (0, 1, 2)),)))
        require_near(token.embedding, expected(llama_folder, prompt, Pooling.LAST))


def test_a_mean_without_the_first_tokens_is_refused(engine: Engine) -> None:
    """A wrong embedding would look like any other."""
    prompt = prompts()[2]
    engine.add_sequence(record("first", prompt))
    engine.run_iteration(Batch((BatchRow("first@1", 0, 40, (0, 1, 2)),)))
    engine.add_sequence(record("mean", prompt, pooled(Pooling.MEAN)))
    with pytest.raises(ValueError, match="lacks tokens before 32"):
        engine.run_iteration(Batch((BatchRow("mean@1", 32, 8, (0, 1, 2)),)))


def test_a_prompt_that_lost_its_blocks_is_pooled_anew(engine: Engine, llama_folder: Path) -> None:
    """From its first token, after some of its parts were computed: none counts twice."""
    prompt = prompts()[3]
    engine.add_sequence(record("mean", prompt, pooled(Pooling.MEAN)))
    blocks = tuple(range(10))
    for first, tokens in ((0, 30), (30, 50)):
        assert engine.run_iteration(Batch((BatchRow("mean@1", first, tokens, blocks),))) == ()
    for first, tokens in ((0, 64), (64, 85)):
        assert engine.run_iteration(Batch((BatchRow("mean@1", first, tokens, blocks),))) == ()
    (token,) = engine.run_iteration(Batch((BatchRow("mean@1", 149, 1, blocks),)))
    require_near(token.embedding, expected(llama_folder, prompt, Pooling.MEAN))


@pytest.mark.parametrize("place", ["sampling.sampler.sample", "sampling.sampler._requested_logprobs"])
def test_a_part_whose_iteration_failed_counts_once(
    engine: Engine, llama_folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It is computed again, cut in another way; hidden states that were read before the failure do not count."""
    prompt = prompts()[3]
    engine.add_sequence(record("mean", prompt, pooled(Pooling.MEAN)))
    engine.add_sequence(record("other", prompt[:7]))
    blocks, other = tuple(range(10)), BatchRow("other@1", 0, 7, (11,))
    engine.run_iteration(Batch((BatchRow("mean@1", 0, 30, blocks),)))

    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as failing:
        failing.setattr(f"spotwise.engine.{place}", fail)
        for tokens in (120, 50):
            with pytest.raises(RuntimeError, match="out of memory"):
                engine.run_iteration(Batch((BatchRow("mean@1", 30, tokens, blocks), other)))
    (token,) = engine.run_iteration(Batch((BatchRow("mean@1", 30, 120, blocks),)))
    require_near(token.embedding, expected(llama_folder, prompt, Pooling.MEAN))


def test_a_prompt_is_not_scored_and_pooled_at_once(engine: Engine) -> None:
    with pytest.raises(ValueError, match="both scored and pooled"):
        engine.add_sequence(record("a", [1], SamplingParams(prompt_logprobs=0, pooling=Pooling.LAST)))


@pytest.mark.parametrize("pooling", Pooling)
def test_a_prompt_may_fill_the_context(engine: Engine, llama_folder: Path, pooling: Pooling) -> None:
    """The token that is sampled beside it is never computed."""
    prompt = (prompts()[3] * 4)[: engine.context_length]
    assert len(prompt) == engine.context_length
    driver = Driver(engine, 100)
    driver.add(record("full", prompt, pooled(pooling), max_new_tokens=1))
    driver.finish()
    require_near(driver.results["full@1"][0].embedding, expected(llama_folder, prompt, pooling))
