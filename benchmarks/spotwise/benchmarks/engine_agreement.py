"""Compares the engine's greedy tokens with those of `transformers`.

Both sides score the same text at every position, so that one difference does not count for all tokens after it. In float32
they agree everywhere; in bfloat16 products are rounded in another order, and near ties may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.model.loading import EngineConfig


@dataclass(frozen=True, slots=True)
class Agreement:
    """The totals of a comparison.

    Attributes:
        positions: output positions compared.
        equal: positions of them at which the most likely token is the same.
        same_texts: prompts whose whole continuation is the same where each side continues from its own tokens.
        texts: prompts.
    """

    positions: int
    equal: int
    same_texts: int
    texts: int


def compare(config: EngineConfig, prompts: Sequence[Sequence[int]], new_tokens: int) -> Iterator[Agreement]:
    """Compare prompt after prompt and yield the totals so far.

    Args:
        config: the engine's; transformers gets the same folder, dtype and device.
        prompts: token ids.
        new_tokens: length of each continuation.

    Raises:
        ModelError: the folder cannot be loaded.
        ValueError: the KV cache does not hold a prompt and its continuation.
    """
    engine = Engine.load(config)
    reference: Any = AutoModelForCausalLM.from_pretrained(config.model_dir, dtype=engine.dtype, local_files_only=True)
    reference.to(engine.device).eval()
    positions = equal = same_texts = 0
    for number, prompt in enumerate(prompts):
        text = _continued(reference, prompt, new_tokens)
        scored = _run(engine, f"scored-{number}", text, 1, scores=True)[0].prompt_logprobs
        assert scored is not None
        ours = [entry.top_token_ids[0] for entry in scored[len(prompt) :] if entry is not None]
        positions += new_tokens
        equal += sum(mine == token for mine, token in zip(ours, text[len(prompt) :], strict=True))
        written = [token.token_id for token in _run(engine, f"written-{number}", prompt, new_tokens)]
        same_texts += written == text[len(prompt) :]
        yield Agreement(positions, equal, same_texts, number + 1)


@torch.inference_mode()
def _continued(reference: Any, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Return the prompt and transformers' greedy continuation."""
    ids = torch.tensor([prompt], device=reference.device)
    bounds = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
    output = reference.generate(ids, attention_mask=torch.ones_like(ids), **bounds)
    text: list[int] = output[0].tolist()
    return text


def _run(
    engine: Engine, name: str, prompt: Sequence[int], new_tokens: int, *, scores: bool = False
) -> list[SampledToken]:
    """Continue one prompt greedily, alone."""
    blocks = tuple(range(-(-(len(prompt) + new_tokens) // engine.block_size)))
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=1 if scores else None)
    record = RequestRecord(name, 1, "", 0, "", tuple(prompt), (), sampling, StopCriteria(new_tokens), 0.0)
    engine.add_sequence(record)
    computed = 0
    tokens: list[SampledToken] = []
    for known in range(len(prompt), len(prompt) + new_tokens):
        tokens += engine.run_iteration(Batch((BatchRow(record.sequence_id, computed, known - computed, blocks),)))
        computed = known
    engine.drop_sequence(record.sequence_id)
    return tokens
