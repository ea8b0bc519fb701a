"""Through the whole mesh every request gets, token for token, what transformers gives it alone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh
from tests.live.oracle import greedy, greedy_with, mixed_prompts, model_folder, tokenizer

NEW_TOKENS = 16
PROMPTS = 16
LONGEST = 700
#: How llguidance lays JSON out: one blank at most, or any.
LAYOUTS: dict[str, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"},
    "flexible": {"whitespace_pattern": "[ \\t\\n\\r]{1,32}"},
}


async def complete(mesh: LiveMesh, prompts: Any, **options: Any) -> list[Any]:
    async with mesh.async_client() as client:
        return await asyncio.gather(
            *(
                client.completions.create(
                    model=MODEL, prompt=list(prompt), extra_body={"return_token_ids": True, **options}
                )
                for prompt in prompts
            )
        )


def check_equality(mesh: LiveMesh, count: int = PROMPTS) -> list[Any]:
    """Send all prompts at once, greedily; compare; return the answers."""
    prompts = mixed_prompts(PROMPTS, LONGEST)[:count]
    options = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    answers = asyncio.run(complete(mesh, prompts, **options))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert tuple(answer.choices[0].token_ids) == greedy(prompt, NEW_TOKENS), f"prompt of {len(prompt)} tokens"
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), NEW_TOKENS)
    mesh.wait_until_idle()
    return answers


def test_one_prompt_worker_and_one_token_worker(mesh: LiveMesh) -> None:
    """16 prompts of mixed lengths at once: prompt phase in one process, token phase in another, KV moved between."""
    answers = check_equality(mesh)
    ledger = mesh.ledger(answers[0].id)
    assert ledger["prefilled"]["member"] == "prompt-0"
    assert ledger["decoded"]["member"] == "token-0"
    assert ledger["handed_off"]["kv_bytes"] > 0


@pytest.mark.parametrize(
    ("workers", "way"),
    [
        pytest.param((), "serial", id="one of each, serial"),
        pytest.param(
            ("--prompt-workers", "2", "--token-workers", "2"),
            "layerwise",
            id="two of each, layerwise",
            marks=pytest.mark.long,
        ),
    ],
)
def test_both_ways_of_handing_over(tmp_path: Path, workers: tuple[str, ...], way: str) -> None:
    """The same whether all KV leaves after its prompt or as it is computed, in parts of at most 256 tokens.

    Where there are two workers of each kind, all of them take part.
    """
    push = {"SPOTWISE_KV_PUSH": way, "SPOTWISE_MAX_NUM_BATCHED_TOKENS": "256"}
    with LiveMesh(tmp_path, *workers, env=push) as mesh:
        answers = check_equality(mesh, PROMPTS // 2)
        ledgers = [mesh.ledger(answer.id, "prefilled", "handed_off", "decoded") for answer in answers]
    assert {ledger["handed_off"]["mode"] for ledger in ledgers} == {way}
    numbers = range(2 if workers else 1)
    assert {ledger["prefilled"]["member"] for ledger in ledgers} == {f"prompt-{number}" for number in numbers}
    assert {ledger["decoded"]["member"] for ledger in ledgers} == {f"token-{number}" for number in numbers}


def test_both_phases_on_one_worker(tmp_path: Path) -> None:
    """The same with one mixed worker: prompts and tokens share iterations, and no KV moves."""
    with LiveMesh(tmp_path, *ONE_MIXED) as mesh:
        ledger = mesh.ledger(check_equality(mesh, PROMPTS // 2)[0].id)
    assert ledger["prefilled"]["member"] == ledger["decoded"]["member"] == "mixed-0"
    assert "handed_off" not in ledger


def test_bad_words_and_allowed_tokens(mesh: LiveMesh) -> None:
    """What must not be drawn is not, as transformers has it, through the hand-off; words are banned also after a blank."""
    prompts = mixed_prompts(PROMPTS, LONGEST)[1:3]
    plain = [tokenizer().decode(greedy(prompt, NEW_TOKENS)) for prompt in prompts]
    words = [max(re.findall(r"[A-Za-z]{3,}", text), key=len) for text in plain]
    options = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    for prompt, word, text in zip(prompts, words, plain, strict=True):
        (answer,) = asyncio.run(complete(mesh, [prompt], bad_words=[word], **options))
        assert word in text
        assert word not in answer.choices[0].text
        ids = [tokenizer()(prefix + word)["input_ids"] for prefix in ("", " ")]
        assert tuple(answer.choices[0].token_ids) == greedy_with(prompt, NEW_TOKENS, bad_words_ids=ids)
        allowed = list(range(300, 900))
        (answer,) = asyncio.run(complete(mesh, [prompt], allowed_token_ids=allowed, **options))
        expected = greedy_with(prompt, NEW_TOKENS, prefix_allowed_tokens_fn=lambda *_, allowed=allowed: allowed)
        assert tuple(answer.choices[0].token_ids) == expected


@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_structured_outputs(mesh: LiveMesh, whitespace: str) -> None:
    """The likeliest tokens that fit, as transformers has them where llguidance names those that do; the end is the model's."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    layout = LAYOUTS[whitespace]
    output = {"json": schema} if whitespace == "compact" else {"json": schema, "whitespace": whitespace}
    tokens = LLTokenizer(str(model_folder() / "tokenizer.json"), n_vocab=len(tokenizer()))
    for prompt in mixed_prompts(PROMPTS, LONGEST)[1:3]:
        (answer,) = asyncio.run(complete(mesh, [prompt], structured_outputs=output, temperature=0, max_tokens=40))
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides=layout)  # type: ignore[arg-type]
        matcher = LLMatcher(tokens, grammar)

        def fitting(batch: int, ids: Any, matcher: LLMatcher = matcher, length: int = len(prompt)) -> list[int]:
            if len(ids) > length:
                matcher.consume_token(int(ids[-1]))
            allowed = np.flatnonzero(
                np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            )
            return [tokenizer().eos_token_id if each == tokens.eos_token else int(each) for each in allowed]

        expected = greedy_with(prompt, len(answer.choices[0].token_ids), prefix_allowed_tokens_fn=fitting)
        assert tuple(answer.choices[0].token_ids) == expected


def test_seeded_sampling_repeats(mesh: LiveMesh) -> None:
    """The same seed gives the same tokens, alone or among others; another seed gives others."""
    prompts = mixed_prompts(PROMPTS, LONGEST)[1:7]
    options = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "max_tokens": 24, "ignore_eos": True}

    def sample(seed: int, chosen: Any) -> list[list[int]]:
        answers = asyncio.run(complete(mesh, chosen, seed=seed, **options))
        return [answer.choices[0].token_ids for answer in answers]

    together = sample(5, prompts)
    assert sample(5, prompts) == together
    assert [sample(5, [prompt])[0] for prompt in prompts[:2]] == together[:2]
    assert sample(6, prompts) != together
