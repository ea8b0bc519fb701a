"""Connections that would stop a gateway: endless headers, slow senders, crowds, stalled readers; a stream continues."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.live.hostility import (
    MEMORY_BYTES,
    connect,
    limit_memory,
    memory_high_water_bytes,
    read_to_the_end,
    tell,
)
from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh, wait_for
from tests.live.simulated_mesh import SimulatedMesh
from tests.live.steady_stream import SteadyStream, bearable_s, calm_gap_s

pytestmark = pytest.mark.long

PLACES = 200
#: Shorter than what a gateway allows by default; nothing here is waited for longer than for a loaded machine.
LIMITS = {
    "SPOTWISE_MAX_CONNECTIONS": str(PLACES),
    "SPOTWISE_HEADER_TIMEOUT_S": "1",
    "SPOTWISE_BODY_TIMEOUT_S": "2",
    "SPOTWISE_WRITE_TIMEOUT_S": "2",
    "SPOTWISE_MAX_HELD_BODY_BYTES": str(64 << 20),
}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """A mesh without a model, its gateway limited to 1.5 GiB."""
    with SimulatedMesh(
        tmp_path_factory.mktemp("guarded"),
        *ONE_MIXED,
        env=LIMITS,
    ) as mesh:
        limit_memory(mesh.pid("gateway-0"))
        yield mesh


def endless_header(mesh: LiveMesh) -> None:
    """One header of 64 MiB is cut off long before its end."""
    with connect(mesh.url) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nX-Endless: ")
        with pytest.raises(ConnectionError):
            for _ in range(1024):
                connection.sendall(b"x" * 65536)


def slow_senders(mesh: LiveMesh) -> None:
    """Senders of a byte now and then, of headers and of bodies, each get a 408."""
    opened = [connect(mesh.url) for _ in range(60)]
    for number, connection in enumerate(opened):
        connection.sendall(POST + (b"Content-Length: 1000\r\n\r\n" if number % 2 else b"X-Slow: "))
    waiting, answers = list(opened), list[bytes]()
    deadline_s = time.monotonic() + PATIENCE_S
    while waiting:
        assert time.monotonic() < deadline_s, f"{len(waiting)} are still waited for"
        for connection in waiting[:]:
            connection.setblocking(False)
            try:
                answers.append(connection.recv(65536))
                waiting.remove(connection)
            except BlockingIOError:
                with contextlib.suppress(ConnectionError):
                    connection.send(b"x")
            except ConnectionError:
                waiting.remove(connection)
        time.sleep(0.2)
    for connection in opened:
        connection.close()
    assert any(b" 408 " in answer for answer in answers)


def unfinished_bodies(mesh: LiveMesh) -> None:
    """Forty bodies of four megabytes that never end: what they hold together is bounded, and for how long."""
    opened = [connect(mesh.url) for _ in range(40)]
    part = b"x" * (4 << 20)
    for connection in opened:
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.sendall(POST + b"Content-Length: 8000000\r\n\r\n" + part)
    answers = [read_to_the_end(connection) for connection in opened]
    for connection in opened:
        connection.close()
    assert any(b" 503 " in answer for answer in answers)
    assert not any(b" 200 " in answer for answer in answers)


def crowd(mesh: LiveMesh) -> None:
    """Open twice as many connections as there are places and finish no request on them; other requests are still answered."""
    opened = [connect(mesh.url) for _ in range(2 * PLACES)]
    assert mesh.get("/v1/models").status_code == 200
    for connection in opened:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nX-Half")
    answers = [read_to_the_end(connection) for connection in opened]
    for connection in opened:
        connection.close()
    assert not any(b" 200 " in answer for answer in answers)
    assert mesh.get("/v1/models").status_code == 200


def slow_readers(mesh: LiveMesh) -> None:
    """Streams without a reader are cut off, and their sequences with them."""
    body = {"model": MODEL, "prompt": "Go on", "max_tokens": 4000, "n": 16, "stream": True, "ignore_eos": True}
    content = json.dumps(body | {"return_token_ids": True}).encode()
    opened: list[socket.socket] = [connect(mesh.url, receive_buffer_bytes=2048) for _ in range(4)]
    for connection in opened:
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(content) + content)

    def running() -> int:
        return sum(each.member_now.load.running for each in mesh.members() if each.member_now.load is not None)

    wait_for(lambda: running() > 32, lambda: "the streams to begin")
    wait_for(lambda: running() <= 1, lambda: "the streams to be cut off", seconds=140.0)
    for connection in opened:
        connection.close()


ATTACKS: tuple[Callable[[LiveMesh], None], ...] = (endless_header, slow_senders, unfinished_bodies, crowd, slow_readers)


@pytest.fixture(scope="module")
def stream(guarded: LiveMesh) -> Iterator[SteadyStream]:
    """The stream beside it all."""
    with SteadyStream(guarded) as reading:
        yield reading


@pytest.fixture(scope="module")
def calm_s(stream: SteadyStream) -> float:
    """The stream's longest gap without other requests."""
    return calm_gap_s(stream)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_stream_goes_on_beside_hostile_connections(
    guarded: LiveMesh, calm_s: float, stream: SteadyStream, attack: Callable[[LiveMesh], None]
) -> None:
    """Hostile connections are closed, the stream's gaps stay, the next request is answered, and memory keeps its limit."""
    stream.lap()
    attack(guarded)
    lap = stream.lap()
    tell(guarded, lap)
    assert not lap.ended
    assert lap.longest_gap_s < bearable_s(calm_s)
    answer = guarded.client().completions.create(model=MODEL, prompt="Hello", max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert memory_high_water_bytes(guarded.pid("gateway-0")) < MEMORY_BYTES
