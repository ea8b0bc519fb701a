"""Requests to SmolLM2 that differ in how they are sampled, and prompts that take long to compute."""

from __future__ import annotations

from typing import Any

from tests.live.oracle import greedy, greedy_with_penalties, mixed_prompts
from tests.live.reshaped_requests import Bodies
from tests.live.streamed import Streamed

#: What a stream of one process decodes in a few seconds.
MOST_TOKENS = 128
#: Of a long prompt's answer.
FEW_TOKENS = 24
LONG_PROMPT = 1000
PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.3}
_PROMPTS = mixed_prompts(8, 200)
_KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "top_p": 0.9, "seed": 7, "n": 2, "logprobs": 1},
    "penalties": {"temperature": 0, **PENALTIES},
}


def bodies(new_tokens: int) -> dict[str, dict[str, Any]]:
    """One of each kind."""
    return {
        kind: {"prompt": [*prompt], "max_tokens": new_tokens, **fields}
        for prompt, (kind, fields) in zip(_PROMPTS, _KINDS.items(), strict=False)
    }


def long_prompts(number: int) -> Bodies:
    """Two requests whose prompts take seconds, one greedy and one seeded; other prompts for each `number`, so that a cache
    does not know them.
    """
    running = mixed_prompts(1, LONG_PROMPT + 400)[0]
    prompts = [running[50 * number + 200 * half :][:LONG_PROMPT] for half in range(2)]
    seeded = {"temperature": 0.7, "top_p": 0.95, "seed": 11, "logprobs": 1}
    return {
        f"long {number}, greedy": {"prompt": [*prompts[0]], "max_tokens": FEW_TOKENS, "temperature": 0},
        f"long {number}, seeded": {"prompt": [*prompts[1]], "max_tokens": FEW_TOKENS, **seeded},
    }


def assert_as_transformers(answers: dict[str, Streamed]) -> None:
    """The greedy ones, with penalties or without."""
    for (name, body), tokens in ((item, answers[item[0]].token_ids) for item in bodies(MOST_TOKENS).items()):
        prompt = tuple(body["prompt"])
        if name == "greedy":
            assert tuple(tokens[0]) == greedy(prompt, MOST_TOKENS)
        elif name == "penalties":
            presence, frequency = PENALTIES.values()
            assert tuple(tokens[0]) == greedy_with_penalties(prompt, MOST_TOKENS, presence, frequency, 1.0)
