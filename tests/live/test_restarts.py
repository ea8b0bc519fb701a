"""Services that die around simulated workers, and workers that join and drain, under running streams: no token is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.live.mesh import MODEL, UNHURRIED, wait_for
from tests.live.simulated_mesh import SeededStream, SimulatedMesh

pytestmark = pytest.mark.paired

#: Tokens of a stream, about 12 ms each.
TOKENS = 250
STREAMS = range(6)
EVERYONE = {"prompt-0", "token-0", "token-1"}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """One prompt worker and two token workers, whose KV crosses UCX."""
    options = ("--prompt-workers", "1", "--token-workers", "2", "--speed", "3", "--simulated-kv", "real")
    with SimulatedMesh(tmp_path_factory.mktemp("restarts"), *options, env=UNHURRIED) as live:
        yield live


@pytest.fixture(autouse=True)
def _whole_and_idle_afterwards(mesh: SimulatedMesh) -> Iterator[None]:
    yield
    wait_for(lambda: mesh.workers() >= EVERYONE, lambda: f"all workers, of {mesh.workers()}", 60.0)
    mesh.wait_until_idle()


def retries_through(mesh: SimulatedMesh, after_tokens: int, disturb: Callable[[], Any]) -> int:
    """Run some streams, `disturb` once each has `after_tokens`, and compare every token; attempts beyond the first ones."""
    streams: list[SeededStream] = mesh.streams(STREAMS, TOKENS, after_tokens, disturb)
    assert [stream.tokens for stream in streams] == [mesh.tokens_of(seed, TOKENS) for seed in STREAMS]
    return sum(mesh.attempts(stream) - 1 for stream in streams)


def answers(mesh: SimulatedMesh) -> bool:
    """Whether a small request is answered."""
    try:
        return mesh.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 2}).status_code == 200
    except httpx.TransportError:
        return False


def test_the_scheduler_is_killed(mesh: SimulatedMesh) -> None:
    """Running streams do not notice, and new requests are served once it is back."""
    assert retries_through(mesh, 5, lambda: mesh.kill("scheduler-0")) == 0
    wait_for(lambda: mesh.get("/health").status_code == 200, lambda: "a healthy mesh")
    wait_for(lambda: answers(mesh), lambda: "an answer from the new scheduler")


def test_the_gateway_is_killed(mesh: SimulatedMesh) -> None:
    """The gateway's own streams end with it; the workers drop them, and its successor serves."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{mesh.url}/v1/completions", json=body, timeout=30.0) as stream,
    ):
        for count, _ in enumerate(stream.iter_lines()):
            if count == 6:
                mesh.kill("gateway-0")
    mesh.wait_until_idle()
    wait_for(lambda: answers(mesh), lambda: "an answer from the new gateway")


@pytest.mark.parametrize("server", ["nats-server", "redis-server"])
def test_broker_or_store_is_killed(mesh: SimulatedMesh, server: str) -> None:
    """Streams continue over the broker's restart, and do not notice the store's; afterwards the mesh is as before."""
    retries = retries_through(mesh, 5, lambda: mesh.kill(server))
    assert server == "nats-server" or retries == 0  # of the broker, a stream that lost no token continues
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh")
    answer = mesh.client().completions.create(model=MODEL, prompt="Still there?", max_tokens=3)
    assert answer.usage is not None


def test_workers_join_and_drain_while_serving(mesh: SimulatedMesh) -> None:
    """A worker joins, gets work, and leaves by order: what runs on it finishes there, nothing new comes to it."""
    command = [sys.executable, "-m", "spotwise.cli", "join", "token", "--id", "token-joined"]
    with subprocess.Popen(command, env=mesh.env, stderr=subprocess.DEVNULL) as joined:
        try:
            wait_for(lambda: "token-joined" in mesh.workers(), lambda: f"the joined worker, of {mesh.workers()}", 60)

            def drain() -> None:
                assert mesh.engine_sequences("token-joined") > 0
                mesh.drain("token-joined", 60.0)

            assert retries_through(mesh, 5, drain) == 0
            assert joined.wait(timeout=30) == 0
            assert "token-joined" not in mesh.workers()
        finally:
            joined.kill()


def test_what_still_runs_at_a_drains_deadline_goes_on_elsewhere(mesh: SimulatedMesh) -> None:
    """A deadline too short for the streams gives them to the other worker, at their next token."""
    command = [sys.executable, "-m", "spotwise.cli", "join", "token", "--id", "token-hurried"]
    with subprocess.Popen(command, env=mesh.env, stderr=subprocess.DEVNULL) as joined:
        try:
            wait_for(lambda: "token-hurried" in mesh.workers(), lambda: f"the joined worker, of {mesh.workers()}", 60)
            assert retries_through(mesh, 5, lambda: mesh.drain("token-hurried", 0.1)) >= 1
            assert joined.wait(timeout=30) == 0
        finally:
            joined.kill()


def test_draining_what_is_not_there(mesh: SimulatedMesh) -> None:
    """The error names the workers that there are."""
    done = mesh.command("drain", "token-9")
    assert done.returncode == 1
    assert "token-0" in done.stderr


def test_status_shows_everyone(mesh: SimulatedMesh) -> None:
    """A row for each service; exit status 0 while all are healthy."""
    done = mesh.command("status")
    assert done.returncode == 0, done.stdout
    for member in ("gateway-0", "scheduler-0", "prompt-0", "token-0", "token-1", "planner-0", "watcher-0"):
        assert member in done.stdout
    for pid in (mesh.pid("prompt-0"), mesh.pid("token-0-to-1")):
        assert str(pid) in done.stdout
        assert psutil.pid_exists(pid)
