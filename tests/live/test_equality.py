"""Through the whole mesh every request gets, token for token, what transformers gives it alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.live.mesh import MODEL, LiveMesh
from tests.live.oracle import greedy, mixed_prompts

NEW_TOKENS = 16
PROMPTS = 32
LONGEST = 700


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


def check_equality(mesh: LiveMesh) -> list[Any]:
    """Send all prompts at once, greedily; compare; return the answers."""
    prompts = mixed_prompts(PROMPTS, LONGEST)
    options = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    answers = asyncio.run(complete(mesh, prompts, **options))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert tuple(answer.choices[0].token_ids) == greedy(prompt, NEW_TOKENS), f"prompt of {len(prompt)} tokens"
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), NEW_TOKENS)
    mesh.wait_until_idle()
    return answers


def test_one_prompt_worker_and_one_token_worker(mesh: LiveMesh) -> None:
    """32 prompts of mixed lengths at once: prompt phase in one process, token phase in another, KV moved between."""
    answers = check_equality(mesh)
    ledger = mesh.ledger(answers[0].id)
    assert ledger["prefilled"]["member"] == "prompt-0"
    assert ledger["decoded"]["member"] == "token-0"
    assert ledger["handed_off"]["kv_bytes"] > 0


@pytest.mark.parametrize("own_mesh", [("--prompt-workers", "2", "--token-workers", "2")], indirect=True)
def test_two_of_each(own_mesh: LiveMesh) -> None:
    """The same with two prompt and two token workers, all of which take part."""
    own_mesh.up()
    answers = check_equality(own_mesh)
    ledgers = [own_mesh.ledger(answer.id) for answer in answers]
    assert {ledger["prefilled"]["member"] for ledger in ledgers} == {"prompt-0", "prompt-1"}
    assert {ledger["decoded"]["member"] for ledger in ledgers} == {"token-0", "token-1"}


@pytest.mark.parametrize("way", ["serial", "layerwise"])
def test_both_ways_of_handing_over(tmp_path: Path, way: str) -> None:
    """The same whether all KV leaves after its prompt or as it is computed, in parts of at most 256 tokens."""
    live = LiveMesh(tmp_path, env={"SPOTWISE_KV_PUSH": way, "SPOTWISE_MAX_NUM_BATCHED_TOKENS": "256"})
    try:
        live.up()
        answers = check_equality(live)
        ledgers = [live.ledger(answer.id, "handed_off") for answer in answers]
        assert {ledger["handed_off"]["mode"] for ledger in ledgers} == {way}
    finally:
        live.down()


MIXED = ("--prompt-workers", "0", "--token-workers", "0", "--mixed-workers", "1")


@pytest.mark.parametrize("own_mesh", [MIXED], indirect=True)
def test_both_phases_on_one_worker(own_mesh: LiveMesh) -> None:
    """The same with one mixed worker: prompts and tokens share iterations, and no KV moves."""
    own_mesh.up()
    answers = check_equality(own_mesh)
    ledger = own_mesh.ledger(answers[0].id)
    assert ledger["prefilled"]["member"] == ledger["decoded"]["member"] == "mixed-0"
    assert "handed_off" not in ledger


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
