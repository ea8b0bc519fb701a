"""Workers of several processes answer as one process does, and a lost process costs a pause."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from spotwise.core.requests.sampling import Pooling
from tests.live.embeddings import MEANS, embeds_at_once, folder_with_embeddings
from tests.live.mesh import MODEL, LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts

pytestmark = pytest.mark.paired

NEW_TOKENS = 32
DEVICES = ("mixed-0-device-1", "mixed-0-device-2")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One worker of three shards."""
    with LiveMesh(tmp_path_factory.mktemp("shards"), "--parallel", "1,1,3", env=MEANS) as live:
        yield live


async def completed(mesh: LiveMesh, **body: Any) -> Any:
    """One completion, by the real client, which repeats nothing."""
    async with mesh.async_client() as client:
        return await client.completions.create(
            model=MODEL, extra_body={"ignore_eos": True, "return_token_ids": True}, **body
        )


def greedy_at_once(mesh: LiveMesh, count: int) -> None:
    """Several prompts side by side give the oracle's tokens."""
    prompts = mixed_prompts(8, 300)[:count]

    async def all_of_them() -> list[Any]:
        bodies = [{"prompt": [*prompt], "max_tokens": NEW_TOKENS, "temperature": 0} for prompt in prompts]
        return await asyncio.gather(*(completed(mesh, **body) for body in bodies))

    for prompt, answer in zip(prompts, asyncio.run(all_of_them()), strict=True):
        assert tuple(answer.choices[0].token_ids) == greedy(prompt, NEW_TOKENS)
    mesh.wait_until_idle()


def disturbed(mesh: LiveMesh, service_id: str, sign: signal.Signals) -> Any:
    """A greedy stream in the midst of which a process gets a signal; its tokens."""

    async def run() -> list[int]:
        token_ids: list[int] = []
        victim = mesh.pid(service_id)
        async with mesh.async_client() as client:
            chunks: Any = await client.completions.create(
                model=MODEL,
                prompt=[*mixed_prompts(4, 200)[0]],
                max_tokens=NEW_TOKENS,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
            async for chunk in chunks:
                before = len(token_ids)
                token_ids += [token for choice in chunk.choices for token in choice.token_ids or []]
                if before < 10 <= len(token_ids):
                    os.kill(victim, sign)
                    if sign is signal.SIGSTOP:
                        asyncio.get_running_loop().call_later(3.0, os.kill, victim, signal.SIGCONT)
        return token_ids

    return asyncio.run(run())


def test_three_shards_answer_as_one_process(shards: LiveMesh) -> None:
    """Side by side; a part of the model each, and cores, which status shows. Embeddings are those of the whole model."""
    greedy_at_once(shards, 4)
    embeds_at_once(shards, Pooling.MEAN)
    places = {status.member.id: status.member_now.place for status in shards.members()}
    parts = [places[name] for name in ("mixed-0", *DEVICES)]
    assert [(part.kv_heads, part.layers) for part in parts if part] == [((n, n + 1), (0, 30)) for n in range(3)]
    cores = {status.member.id: status.member_now.cores for status in shards.members()}
    assert {cores[name] for name in DEVICES} == {cores["mixed-0"]} != {None}
    assert "shard 2: layers 0-29, KV heads 2" in shards.command("status").stdout


def test_sampling_is_that_of_one_process(shards: LiveMesh) -> None:
    """A seed, two choices, penalties and log-probabilities: the same each time."""
    body = {"prompt": [*mixed_prompts(4, 120)[0]], "max_tokens": 24, "temperature": 0.9, "top_p": 0.9, "seed": 3}
    body |= {"n": 2, "presence_penalty": 0.5, "logprobs": 2}
    first, second = (asyncio.run(completed(shards, **body)) for _ in range(2))
    assert [choice.token_ids for choice in first.choices] == [choice.token_ids for choice in second.choices]
    assert first.choices[0].logprobs == second.choices[0].logprobs
    shards.wait_until_idle()


@pytest.mark.parametrize(
    ("service_id", "sign"),
    [("mixed-0-device-1", signal.SIGKILL), ("mixed-0-device-2", signal.SIGSTOP), ("mixed-0", signal.SIGKILL)],
    ids=["a device is killed", "a device is stopped for three seconds", "the leader is killed"],
)
def test_a_stream_goes_on_when_a_member_is_lost(shards: LiveMesh, service_id: str, sign: signal.Signals) -> None:
    """The oracle's tokens, none twice, none wrong; then the group is whole, and empty."""
    survives_loss(shards, service_id, sign, processes=3)


def survives_loss(mesh: LiveMesh, service_id: str, sign: signal.Signals, processes: int) -> None:
    """A stream goes on with the oracle's tokens when a process of the only worker is lost, and others are served later."""
    tokens = disturbed(mesh, service_id, sign)
    assert tuple(tokens) == greedy(mixed_prompts(4, 200)[0], NEW_TOKENS)
    wait_for(lambda: _is_whole(mesh, processes), lambda: str([s.member_now for s in mesh.members()]), 60.0)
    mesh.wait_until_idle()
    greedy_at_once(mesh, 2)


def _is_whole(mesh: LiveMesh, processes: int) -> bool:
    places = [status.member_now.place for status in mesh.members() if status.member.id.startswith("mixed-0-device")]
    epochs = {place.epoch if place else None for place in places}
    return len(places) == processes and len(epochs) == 1 and None not in epochs


def test_two_stages_answer_as_one_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two batches in flight; swapped and preempted sequences too, since blocks are few. Through TCP, as on two machines, and
    with a process that is lost. The model's folder says how its embeddings are pooled.
    """
    model = str(folder_with_embeddings(tmp_path_factory.mktemp("models")))
    options = ("--model", model, "--parallel", "1,2,1", "--policy", "mlfq", "--kv-cache", "12MiB")
    env = {"SPOTWISE_PROFILE_SECONDS": "1", "SPOTWISE_GROUP_EXCHANGE": "tcp"}
    with LiveMesh(tmp_path_factory.mktemp("stages"), *options, env=env) as mesh:
        greedy_at_once(mesh, 8)
        embeds_at_once(mesh, Pooling.LAST)
        load = next(s.member_now.load for s in mesh.members() if s.member.id == "mixed-0")
        assert load is not None and load.preemptions + load.kv_blocks_swapped_out > 0
        assert "activations from stage to stage of 2 (TCP)" in mesh.command("status").stdout
        survives_loss(mesh, "mixed-0-device-1", signal.SIGKILL, processes=2)
