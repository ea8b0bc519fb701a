"""Clusters of real servers on loopback: three NATS nodes; a Redis primary, its replica and three sentinels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from spotwise.mesh.embedded.child_process import ChildProcess, start_child
from spotwise.mesh.embedded.servers import (
    LOOPBACK,
    EmbeddedServer,
    free_port,
    nats_cluster,
    redis_answers,
    redis_server,
)
from spotwise.mesh.nats.bus import NatsBus

_PATIENCE_S = 30.0
_PASSWORD = "hush"
PRIMARY_NAME = "spotwise"


class NatsCluster:
    """Three running nodes."""

    def __init__(self, folder: Path) -> None:
        self.servers = nats_cluster(folder)
        self.children: dict[EmbeddedServer, ChildProcess] = {}

    @property
    def url(self) -> str:
        """All nodes, as a setting has them."""
        return ",".join(server.url for server in self.servers)

    def node_of(self, bus: NatsBus) -> EmbeddedServer:
        """The node that a bus is connected to."""
        server = bus._client.connected_url
        assert server is not None
        return next(node for node in self.servers if node.port == server.port)

    def start(self, node: EmbeddedServer) -> None:
        """Start a node, for the first time or again; it dies with the thread that starts it."""
        self.children[node] = node.start()

    def kill(self, node: EmbeddedServer) -> None:
        """As a machine's end does."""
        self.children[node].kill()

    async def connected_at(self, node: EmbeddedServer, name: str) -> NatsBus:
        """A bus that knows all nodes and is connected to this one."""
        while True:
            bus = await NatsBus.connect(self.url, name)
            if self.node_of(bus) is node:
                return bus
            await bus.close()


@contextmanager
def running_nats_cluster(folder: Path) -> Iterator[NatsCluster]:
    """A cluster for the length of a block."""
    cluster = NatsCluster(folder)
    try:
        for node in cluster.servers:
            cluster.start(node)
        yield cluster
    finally:
        for child in cluster.children.values():
            child.kill()


class RedisServers:
    """A primary, a replica and three sentinels, which miss a primary after two seconds: a busy machine is silent for one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = redis_server(folder).argv[0]
        self.ports = [free_port(), free_port()]
        self.sentinel_ports = [free_port() for _ in range(3)]
        self.children: dict[int, ChildProcess] = {}

    @property
    def url(self) -> str:
        """The sentinels, as a setting has them."""
        hosts = ",".join(f"{LOOPBACK}:{port}" for port in self.sentinel_ports)
        return f"redis+sentinel://:{_PASSWORD}@{hosts}/{PRIMARY_NAME}/0"

    def start(self) -> None:
        """Start all, and wait until the sentinels know the replica and one another."""
        primary, replica = self.ports
        self.start_server(primary)
        self.start_server(replica, replica_of=primary)
        for port in self.sentinel_ports:
            config = self._folder / f"sentinel-{port}.conf"
            config.write_text(
                f"port {port}\nbind {LOOPBACK}\ndir {self._folder}\n"
                f"sentinel monitor {PRIMARY_NAME} {LOOPBACK} {self.ports[0]} 2\n"
                f"sentinel auth-pass {PRIMARY_NAME} {_PASSWORD}\n"
                f"sentinel down-after-milliseconds {PRIMARY_NAME} 2000\n"
                f"sentinel failover-timeout {PRIMARY_NAME} 2000\n"
            )
            self._run(port, str(config), "--sentinel")
        self._wait_until(self._is_whole, "sentinels that know all")

    def start_server(self, port: int, replica_of: int | None = None) -> None:
        """Start a server, for the first time or again, as a primary or as a replica."""
        options = [
            "--port",
            str(port),
            "--bind",
            LOOPBACK,
            "--dir",
            str(self._folder),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        options += ["--requirepass", _PASSWORD, "--masterauth", _PASSWORD, "--repl-diskless-sync", "yes"]
        options += ["--repl-diskless-sync-delay", "0"]
        if replica_of is not None:
            options += ["--replicaof", LOOPBACK, str(replica_of)]
        self._run(port, *options)

    def primary(self) -> int:
        """The port of the primary, as a sentinel that answers has it."""
        return next(int(state["port"]) for state in self._states() if state is not None)

    def other(self, port: int) -> int:
        """The port of the other server."""
        return self.ports[1 - self.ports.index(port)]

    def wait_until_primary(self, port: int) -> None:
        """Wait until this server is the primary and the other one, where it runs, its replica."""
        self._wait_until(lambda: self.primary() == port, f"{port} as the primary")

    def make_replica(self, port: int) -> None:
        """Make a former primary a replica, which Sentinel does after ten seconds."""
        with self.client(port) as client:
            client.replicaof(LOOPBACK, self.other(port))

    def client(self, port: int) -> redis.Redis:
        """A client of one server."""
        return redis.Redis(port=port, password=_PASSWORD)

    def wait_until_replicated(self) -> None:
        """Wait until the primary has a replica that has received everything written so far."""

        def has_replica() -> bool:
            try:
                with self.client(self.primary()) as client:
                    client.set("spotwise-test:written", time.monotonic())
                    return bool(client.wait(1, 1000))
            except redis.RedisError:  # read-only since, or gone
                return False

        self._wait_until(has_replica, "a replica")

    def _is_whole(self) -> bool:
        return all(
            state is not None and (state["num-slaves"], state["num-other-sentinels"]) == (1, 2)
            for state in self._states()
        )

    def _states(self) -> list[dict[str, Any] | None]:
        states: list[dict[str, Any] | None] = []
        for port in self.sentinel_ports:
            try:
                with redis.Redis(port=port, socket_timeout=1.0) as sentinel:
                    states.append(sentinel.sentinel_masters()[PRIMARY_NAME])
            except redis.RedisError:
                states.append(None)
        return states

    def _run(self, port: int, *options: str) -> None:
        child = start_child([self._program, *options], log_path=self._folder / f"redis-{port}.log", folder=self._folder)
        self.children[port] = child
        self._wait_until(lambda: redis_answers(port), f"an answer at {port}")

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        ends_s = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < ends_s, f"waited in vain for {what}"
            time.sleep(0.05)


@contextmanager
def running_redis_servers(folder: Path) -> Iterator[RedisServers]:
    """Redis with Sentinel for the length of a block."""
    servers = RedisServers(folder)
    try:
        servers.start()
        yield servers
    finally:
        for child in servers.children.values():
            child.kill()
