"""Processes that pause for seconds under running streams: no token is computed again because of it.

A worker that pauses for longer than the mesh waits is another matter: another worker serves its streams, with the same tokens.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.live.mesh import UNHURRIED, wait_for
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.paired

PAUSE_S = 3.0
#: Of workers.
LONG_PAUSE_S = 8.0
SEEDS = range(6)
TOKENS = 160


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """A worker of each kind, either of which can serve alone; a token takes some 30 ms."""
    options = ("--prompt-workers", "1", "--token-workers", "1")
    with SimulatedMesh(tmp_path_factory.mktemp("pauses"), *options, env=UNHURRIED) as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: SimulatedMesh) -> list[list[int]]:
    """The tokens of each stream as they should be."""
    return [stream.tokens for stream in mesh.streams(SEEDS, TOKENS)]


def pause(mesh: SimulatedMesh, service_id: str, seconds: float) -> None:
    """Stop a process for a while, whatever happens."""
    pid = mesh.pid(service_id)
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_killed_worker_is_missed_at_once(mesh: SimulatedMesh, undisturbed: list[list[int]]) -> None:
    """The watcher of its machine sees the process end, which is sooner than a missed heartbeat."""
    victim = mesh.pid("token-0")
    streams = mesh.streams(SEEDS, TOKENS, after_tokens=20, disturb=lambda: os.kill(victim, signal.SIGKILL))
    assert [stream.tokens for stream in streams] == undisturbed
    sys.stdout.write(f" longest gap {max(max(stream.gaps_s) for stream in streams):.2f} s ")
    lost = [mesh.ledger(stream.request_id, "attempt_lost")["attempt_lost"] for stream in streams]
    assert {facts["reason"] for facts in lost} == {"token_worker token-0 ended without notice"}
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh")
    mesh.wait_until_idle()


@pytest.mark.parametrize(
    "service_id",
    ["gateway-0", "scheduler-0", "planner-0", "watcher-0", "nats-server", "redis-server", "prompt-0", "token-0"],
)
def test_a_pause_loses_no_attempt(mesh: SimulatedMesh, undisturbed: list[list[int]], service_id: str) -> None:
    """Tokens are the same; only streams of a paused worker took another attempt."""
    is_worker = service_id in ("prompt-0", "token-0")
    seconds = LONG_PAUSE_S if is_worker else PAUSE_S
    streams = mesh.streams(SEEDS, TOKENS, after_tokens=20, disturb=lambda: pause(mesh, service_id, seconds))
    assert [stream.tokens for stream in streams] == undisturbed
    sys.stdout.write(f" longest gap {max(max(stream.gaps_s) for stream in streams):.2f} s ")
    if not is_worker:
        assert mesh.losses(streams) == []
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh")
    mesh.wait_until_idle()
