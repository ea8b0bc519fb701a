"""An iteration that raises, wherever it does, leaves its sequences as they were."""

from __future__ import annotations

from typing import Any

import pytest

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.engine.engine import Engine
from tests.unit.engine.tiny_models import record

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
    """Return the tokens without their sequence ids."""
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
