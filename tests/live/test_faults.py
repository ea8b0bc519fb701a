"""Workers that die, drain and join, and a scheduler that restarts, under running streams.

No client sees an error, and no token is wrong.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from spotwise.core.messages.members import MemberKind
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
    wait_for(lambda: workers(mesh) >= everyone, lambda: f"all workers, of {workers(mesh)}", 60.0)
    mesh.wait_until_idle()


def workers(mesh: LiveMesh) -> set[str]:
    """Ids of the workers that serve now."""
    kinds = (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER)
    return {status.member.id for status in mesh.members() if status.member.kind in kinds and status.engine is not None}


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


def kill(mesh: LiveMesh, service_id: str) -> None:
    os.kill(mesh.pid(service_id), signal.SIGKILL)


def test_a_token_worker_is_killed(mesh: LiveMesh) -> None:
    """The worker's streams resume at their next token on the other token worker."""
    retries = stream_through(mesh, STREAMS * 10, lambda: kill(mesh, "token-0"))
    assert 1 <= retries < STREAMS  # its streams and no others


def test_answers_of_all_kinds_are_the_same_through_a_kill(mesh: LiveMesh) -> None:
    """Of a token worker, streamed and whole: text, tokens, log-probabilities and ends are as undisturbed."""

    async def answers(whole: int | None, disturb: Callable[[], Any] | None = None) -> dict[str, Answer]:
        async with mesh.async_client() as client:
            happen = None if disturb is None else functools.partial(asyncio.to_thread, disturb)
            return await ask_all(client, bodies(3 * NEW_TOKENS, whole=whole), happen)

    undisturbed = asyncio.run(answers(None))
    assert_fitting(undisturbed)
    disturbed = asyncio.run(answers(1, lambda: kill(mesh, "token-0")))
    assert_same(disturbed, undisturbed)
    ledgers = [mesh.ledger(answer.request_id, "completed") for answer in disturbed.values()]
    assert any(ledger["completed"]["attempts"] > 1 for ledger in ledgers)


def test_the_only_prompt_worker_is_killed_while_it_computes(mesh: LiveMesh) -> None:
    """The worker's prompts are computed again, by the restarted worker or by another one."""
    stream_through(mesh, 2, lambda: kill(mesh, "prompt-0"), longest=700)


def test_the_only_prompt_worker_is_killed_while_it_computes_embeddings(mesh: LiveMesh) -> None:
    """Their request takes longer, and has every one of them."""
    prompts = mixed_prompts(48, 700)

    async def run() -> tuple[Any, int]:
        async with mesh.async_client() as client:
            embedding = asyncio.create_task(
                client.embeddings.create(model=MODEL, input=[[*prompt] for prompt in prompts])
            )
            while not (held := await asyncio.to_thread(engine_sequences, mesh, "prompt-0")):
                assert not embedding.done()
            kill(mesh, "prompt-0")
            return await embedding, held

    answer, held = asyncio.run(run())
    assert held > 0
    require_embeddings(answer, prompts, Pooling.MEAN)


def test_all_workers_are_killed_at_once(mesh: LiveMesh) -> None:
    """The streams pause until the workers are back, and then resume."""
    victims = ("prompt-0", "token-0", "token-1")
    assert stream_through(mesh, STREAMS * 5, lambda: [kill(mesh, worker) for worker in victims]) >= STREAMS


def test_the_scheduler_is_killed(mesh: LiveMesh) -> None:
    """Running streams do not notice, and new requests are served once it is back."""
    assert stream_through(mesh, STREAMS * 5, lambda: kill(mesh, "scheduler-0")) == 0
    wait_for(lambda: mesh.get("/health").status_code == 200, lambda: "a healthy mesh")
    wait_for(lambda: answers(mesh), lambda: "an answer from the new scheduler")


def test_the_gateway_is_killed(mesh: LiveMesh) -> None:
    """The gateway's own streams end with it; the workers drop them, and its successor serves."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{mesh.url}/v1/completions", json=body, timeout=30.0) as stream,
    ):
        for count, _ in enumerate(stream.iter_lines()):
            if count == 6:
                kill(mesh, "gateway-0")
    mesh.wait_until_idle()
    wait_for(lambda: answers(mesh), lambda: "an answer from the new gateway")


def answers(mesh: LiveMesh) -> bool:
    """Whether a small request is answered."""
    try:
        return mesh.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 2}).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("server", ["nats-server", "redis-server"])
def test_broker_or_store_is_killed(mesh: LiveMesh, server: str) -> None:
    """Streams continue over the broker's restart, and do not notice the store's; afterwards the mesh is as before."""
    retries = stream_through(mesh, STREAMS * 5, lambda: kill(mesh, server))
    assert server == "nats-server" or retries == 0  # of the broker, a stream that lost no token continues
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh")
    answer = mesh.client().completions.create(model=MODEL, prompt="Still there?", max_tokens=3)
    assert answer.usage is not None


def test_workers_join_and_drain_while_serving(mesh: LiveMesh) -> None:
    """A worker joins, gets work, and leaves by order: what runs on it finishes there, nothing new comes to it."""
    command = [sys.executable, "-m", "spotwise.cli", "join", "token", "--id", "token-joined"]
    with subprocess.Popen(command, env=mesh.env, stderr=subprocess.DEVNULL) as joined:
        try:
            wait_for(lambda: "token-joined" in workers(mesh), lambda: f"the joined worker, of {workers(mesh)}", 60)

            def drain() -> None:
                assert engine_sequences(mesh, "token-joined") > 0
                mesh.drain("token-joined", 60.0)

            assert stream_through(mesh, STREAMS * 4, drain) == 0
            assert joined.wait(timeout=30) == 0
            assert "token-joined" not in workers(mesh)
        finally:
            joined.kill()


def engine_sequences(mesh: LiveMesh, worker: str) -> int:
    """Sequences that a worker's engine holds."""
    return sum(s.engine.engine_sequences for s in mesh.members() if s.member.id == worker and s.engine is not None)


def test_what_still_runs_at_a_drains_deadline_goes_on_elsewhere(mesh: LiveMesh) -> None:
    """A deadline too short for the streams gives them to the other worker, at their next token."""
    command = [sys.executable, "-m", "spotwise.cli", "join", "token", "--id", "token-hurried"]
    with subprocess.Popen(command, env=mesh.env, stderr=subprocess.DEVNULL) as joined:
        try:
            wait_for(lambda: "token-hurried" in workers(mesh), lambda: f"the joined worker, of {workers(mesh)}", 60)
            assert stream_through(mesh, STREAMS * 4, lambda: mesh.drain("token-hurried", 0.1)) >= 1
            assert joined.wait(timeout=30) == 0
        finally:
            joined.kill()


def test_draining_what_is_not_there(mesh: LiveMesh) -> None:
    """The error names the workers that there are."""
    done = mesh.command("drain", "token-9")
    assert done.returncode == 1
    assert "token-0" in done.stderr


def test_status_shows_everyone(mesh: LiveMesh) -> None:
    """A row for each service; exit status 0 while all are healthy."""
    done = mesh.command("status")
    assert done.returncode == 0, done.stdout
    for member in ("gateway-0", "scheduler-0", "prompt-0", "token-0", "token-1", "planner-0", "watcher-0"):
        assert member in done.stdout
    for pid in (mesh.pid("prompt-0"), mesh.pid("token-1")):
        assert str(pid) in done.stdout
        assert psutil.pid_exists(pid)
