"""A mesh on a NATS cluster of three and on Redis with Sentinel: nodes die under running streams and new requests."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clusters import NatsCluster, RedisServers, running_nats_cluster, running_redis_servers
from tests.live.mesh import MODEL
from tests.live.simulated_mesh import SeededStream, SimulatedMesh

pytestmark = pytest.mark.paired

SEEDS = range(6)
TOKENS = 160


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with running_nats_cluster(tmp_path_factory.mktemp("nats")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def redis_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServers]:
    with running_redis_servers(tmp_path_factory.mktemp("redis")) as servers:
        yield servers


@pytest.fixture(scope="module")
def mesh(
    nats: NatsCluster, redis_servers: RedisServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimulatedMesh]:
    """A worker of each kind; a token takes some 30 ms."""
    options = ["--prompt-workers", "1", "--token-workers", "1"]
    options += ["--nats-url", nats.url, "--redis-url", redis_servers.url]
    with SimulatedMesh(tmp_path_factory.mktemp("clustered"), *options) as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: SimulatedMesh) -> list[list[int]]:
    """The tokens of each stream as they should be."""
    return [stream.tokens for stream in mesh.streams(SEEDS, TOKENS)]


class Newcomers:
    """Sends one short request after the other while a block runs."""

    def __init__(self, mesh: SimulatedMesh) -> None:
        self._mesh = mesh
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.statuses: list[int] = []
        self.longest_s = 0.0

    def __enter__(self) -> Newcomers:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        while not self._ended.wait(0.05):
            asked_s = time.monotonic()
            self.statuses.append(self._mesh.post("/v1/chat/completions", body).status_code)
            self.longest_s = max(self.longest_s, time.monotonic() - asked_s)


def disturbed(mesh: SimulatedMesh, disturb: Callable[[], Any]) -> list[SeededStream]:
    """Streams, with new requests beside them, while `disturb` runs; no request may fail."""
    with Newcomers(mesh) as newcomers:
        streams = mesh.streams(SEEDS, TOKENS, 20, disturb)
    longest_gap_s = max(max(stream.gaps_s) for stream in streams)
    attempts = [mesh.attempts(stream) for stream in streams]
    sys.stdout.write(
        f" longest gap {longest_gap_s:.2f} s, attempts {attempts}, new request {newcomers.longest_s:.2f} s "
    )
    assert set(newcomers.statuses) == {200}
    return streams


@pytest.mark.parametrize("number", range(3))
def test_a_nats_node_dies_and_returns(
    mesh: SimulatedMesh, nats: NatsCluster, undisturbed: list[list[int]], number: int
) -> None:
    """Whichever members it served: tokens are the same, new requests are answered, and the pause is one of seconds."""
    node = nats.servers[number]
    streams = disturbed(mesh, lambda: nats.kill(node))
    nats.start(node)
    assert [stream.tokens for stream in streams] == undisturbed
    assert max(max(stream.gaps_s) for stream in streams) < 10.0
    mesh.wait_until_idle()


def test_a_store_that_forgets_everything_loses_no_request(
    mesh: SimulatedMesh, redis_servers: RedisServers, undisturbed: list[list[int]]
) -> None:
    """Requests that run and requests that come while the store is emptied, again and again, are answered."""

    def flush() -> None:
        with redis_servers.client(redis_servers.primary()) as client:
            for _ in range(20):
                client.flushall()
                time.sleep(0.05)

    with Newcomers(mesh) as newcomers:
        streams = mesh.streams(SEEDS, TOKENS, 20, flush)
    assert set(newcomers.statuses) == {200}
    assert [stream.tokens for stream in streams] == undisturbed
    mesh.wait_until_idle()


def test_the_redis_primary_dies(mesh: SimulatedMesh, redis_servers: RedisServers, undisturbed: list[list[int]]) -> None:
    """Streams do not notice; new requests wait for the fail-over."""
    redis_servers.wait_until_replicated()
    primary = redis_servers.primary()
    streams = disturbed(mesh, lambda: os.kill(redis_servers.children[primary].pid, signal.SIGKILL))
    assert redis_servers.primary() == redis_servers.other(primary)
    assert [stream.tokens for stream in streams] == undisturbed
    assert mesh.losses(streams) == []
    mesh.wait_until_idle()
