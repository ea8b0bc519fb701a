"""Workers that die under running streams: no client sees an error, and no token is wrong."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spotwise.core.requests.sampling import Pooling
from tests.live.answers import Answer, ask_all, assert_same
from tests.live.embeddings import MEANS, require_embeddings
from tests.live.mesh import MODEL, LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts
from tests.live.request_kinds import assert_fitting, bodies
from tests.live.streams import stream

pytestmark = pytest.mark.paired

NEW_TOKENS = 48
STREAMS = 6


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One prompt worker and two token workers of this module's own."""
    options = ("--prompt-workers", "1", "--token-workers", "2")
    with LiveMesh(tmp_path_factory.mktemp("faults"), *options, env=MEANS) as live:
        yield live


@pytest.fixture(autouse=True)
def _whole_and_idle_afterwards(mesh: LiveMesh) -> Iterator[None]:
    yield
    everyone = {"prompt-0", "token-0", "token-1"}
    wait_for(lambda: mesh.workers() >= everyone, lambda: f"all workers, of {mesh.workers()}", 60.0)
    mesh.wait_until_idle()


def stream_through(mesh: LiveMesh, after_tokens: int, disturb: Callable[[], Any], longest: int = 200) -> int:
    """Run some streams, `disturb` once they have `after_tokens` tokens in all, compare every token of every stream.

    Returns how many attempts the streams took beyond the first.
    """
    prompts = mixed_prompts(32, longest)[:STREAMS]
    counts = dict.fromkeys(range(STREAMS), 0)

    async def run() -> list[tuple[str, tuple[int, ...]]]:
        reached = asyncio.Event()

        def seen(number: int, count: int) -> None:
            counts[number] = count
            if sum(counts.values()) >= after_tokens:
                reached.set()

        async with mesh.async_client() as client:

            async def one(number: int) -> tuple[str, tuple[int, ...]]:
                return await stream(client, prompts[number], NEW_TOKENS, lambda count: seen(number, count))

            async def disturbance() -> None:
                await reached.wait()
                await asyncio.to_thread(disturb)

            disturbing = asyncio.create_task(disturbance())
            answers = await asyncio.gather(*map(one, range(STREAMS)))
            await disturbing
            return answers

    retries = 0
    for prompt, (request_id, tokens) in zip(prompts, asyncio.run(run()), strict=True):
        assert tokens == greedy(prompt, NEW_TOKENS)
        retries += (
            mesh.ledger(request_id, "completed")["completed"]["attempts"] - 1
        )  # the dead kept their part to themselves
    return retries


def test_a_token_worker_is_killed(mesh: LiveMesh) -> None:
    """The worker's streams resume at their next token on the other token worker."""
    retries = stream_through(mesh, STREAMS * 10, lambda: mesh.kill("token-0"))
    assert 1 <= retries < STREAMS  # its streams and no others


def test_answers_of_all_kinds_are_the_same_through_a_kill(mesh: LiveMesh) -> None:
    """Of a token worker, streamed and whole: text, tokens, log-probabilities and ends are as undisturbed."""

    async def answers(whole: int | None, disturb: Callable[[], Any] | None = None) -> dict[str, Answer]:
        async with mesh.async_client() as client:
            happen = None if disturb is None else functools.partial(asyncio.to_thread, disturb)
            return await ask_all(client, bodies(3 * NEW_TOKENS, whole=whole), happen)

    undisturbed = asyncio.run(answers(None))
    assert_fitting(undisturbed)
    disturbed = asyncio.run(answers(1, lambda: mesh.kill("token-0")))
    assert_same(disturbed, undisturbed)
    ledgers = [mesh.ledger(answer.request_id, "completed") for answer in disturbed.values()]
    assert any(ledger["completed"]["attempts"] > 1 for ledger in ledgers)


def test_the_only_prompt_worker_is_killed_while_it_computes(mesh: LiveMesh) -> None:
    """The worker's prompts are computed again, by the restarted worker or by another one."""
    stream_through(mesh, 2, lambda: mesh.kill("prompt-0"), longest=700)


def test_the_only_prompt_worker_is_killed_while_it_computes_embeddings(mesh: LiveMesh) -> None:
    """Their request takes longer, and has every one of them."""
    prompts = mixed_prompts(48, 700)

    async def run() -> tuple[Any, int]:
        async with mesh.async_client() as client:
            embedding = asyncio.create_task(
                client.embeddings.create(model=MODEL, input=[[*prompt] for prompt in prompts])
            )
            while not (held := await asyncio.to_thread(mesh.engine_sequences, "prompt-0")):
                assert not embedding.done()
            mesh.kill("prompt-0")
            return await embedding, held

    answer, held = asyncio.run(run())
    assert held > 0
    require_embeddings(answer, prompts, Pooling.MEAN)


def test_all_workers_are_killed_at_once(mesh: LiveMesh) -> None:
    """The streams pause until the workers are back, and then resume."""
    victims = ("prompt-0", "token-0", "token-1")
    assert stream_through(mesh, STREAMS * 5, lambda: [mesh.kill(worker) for worker in victims]) >= STREAMS
