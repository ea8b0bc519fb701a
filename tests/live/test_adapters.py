"""Adapters through the whole mesh: a request names one, and every worker that continues it computes with it."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import openai
import pytest

from tests.adapters import greedy, merged
from tests.live.mesh import MODEL, LiveMesh, wait_for
from tests.live.oracle import mixed_prompts, model
from tests.live.streams import stream

NEW_TOKENS = 32


def names_of(adapters: dict[str, Path]) -> list[str]:
    return [MODEL, *adapters]


def expected(adapters: dict[str, Path], name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    with merged(model(), adapters.get(name)):
        return tuple(greedy(model(), prompt, NEW_TOKENS))


def test_models_are_listed_with_their_adapters(mesh: LiveMesh, adapters: dict[str, Path]) -> None:
    """As vLLM lists them: an adapter's parent is the model."""
    listed = {card["id"]: card for card in mesh.get("/v1/models").json()["data"]}
    assert list(listed) == names_of(adapters)
    assert {name: card["parent"] for name, card in listed.items()} == {MODEL: None, **dict.fromkeys(adapters, MODEL)}
    with pytest.raises(openai.NotFoundError) as refused:
        mesh.client().completions.create(model="another", prompt="Hello")
    assert "'all-layers'" in str(refused.value)


def test_requests_of_all_adapters_survive_a_kill(mesh: LiveMesh, adapters: dict[str, Path]) -> None:
    """Prompts are computed on one worker, tokens on another, which dies in the middle: each stream has the tokens of the model
    with its adapter merged.
    """
    prompts = mixed_prompts(32, 700)[1:3]
    chosen = [(name, prompt) for prompt in prompts for name in names_of(adapters)]
    counts = dict.fromkeys(range(len(chosen)), 0)

    async def run() -> list[tuple[str, tuple[int, ...]]]:
        halfway = asyncio.Event()

        def seen(number: int, count: int) -> None:
            counts[number] = count
            if min(counts.values()) >= NEW_TOKENS // 4:
                halfway.set()

        async def kill() -> None:
            await halfway.wait()
            os.kill(mesh.pid("token-0"), signal.SIGKILL)

        async with mesh.async_client() as client:
            killing = asyncio.create_task(kill())
            answers = await asyncio.gather(
                *(
                    stream(client, prompt, NEW_TOKENS, partial(seen, number), name)
                    for number, (name, prompt) in enumerate(chosen)
                )
            )
            await killing
            return answers

    answers = asyncio.run(run())
    ledgers = [mesh.ledger(request_id, "prefilled", "completed") for request_id, _ in answers]  # the dead kept the rest
    assert all(ledger["prefilled"]["member"] == "prompt-0" for ledger in ledgers)
    assert any(ledger["completed"]["attempts"] > 1 for ledger in ledgers)
    for (name, prompt), (_, tokens) in zip(chosen, answers, strict=True):
        assert tokens == expected(adapters, name, prompt), name
    assert len({tokens for _, tokens in answers}) == len(chosen)  # each adapter has an effect
    wait_for(lambda: len(mesh.get("/health").json()["workers"]) > 1, lambda: "the killed worker to be back")
    mesh.wait_until_idle()


def test_an_adapter_follows_a_grammar(mesh: LiveMesh, adapters: dict[str, Path]) -> None:
    """What fits is decided beside what it computes."""
    colours = ["crimson", "ultramarine"]
    for name in names_of(adapters):
        answer = mesh.client().completions.create(
            model=name, prompt="Name a colour:", temperature=0, extra_body={"structured_outputs": {"choice": colours}}
        )
        assert answer.choices[0].text in colours


def test_an_adapter_shares_no_kv_with_the_model(mesh: LiveMesh, adapters: dict[str, Path]) -> None:
    """A prompt's beginning is found again under the same name only; the answer names what was asked."""
    client = mesh.client()
    text = "Of all the ways to share a cache, the one that mixes two models up is the worst. " * 4

    def cached(name: str) -> int:
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": text}], max_tokens=2, temperature=0
        )
        assert answer.model == name
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        return 0 if details is None else details.cached_tokens or 0

    assert [cached(name) for name in names_of(adapters)] == [0, 0, 0]
    assert all(cached(name) >= 32 for name in names_of(adapters))
