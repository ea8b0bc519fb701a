"""Requests of all kinds to SmolLM2 for long tests, what transformers gives for them, and prompts that take long to compute."""

from __future__ import annotations

from collections.abc import Mapping

from tests.live.answers import Answer, Bodies
from tests.live.oracle import greedy, greedy_with_penalties, mixed_prompts
from tests.live.request_kinds import PENALTIES, assert_fitting, bodies

#: What a stream of one process decodes in a few seconds.
MOST_TOKENS = 128
#: Of a long prompt's answer.
FEW_TOKENS = 24
LONG_PROMPT = 1000


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


def assert_as_transformers(answers: Mapping[str, Answer]) -> None:
    """The greedy ones, with penalties or without; structured ones fit."""
    assert_fitting(answers)
    asked = bodies(MOST_TOKENS)
    plain, penalised = (tuple(asked[name]["prompt"]) for name in ("greedy", "penalties"))
    assert tuple(answers["greedy"].token_ids[0]) == greedy(plain, MOST_TOKENS)
    presence, frequency = PENALTIES["presence_penalty"], PENALTIES["frequency_penalty"]
    expected = greedy_with_penalties(penalised, MOST_TOKENS, presence, frequency, 1.0)
    assert tuple(answers["penalties"].token_ids[0]) == expected
