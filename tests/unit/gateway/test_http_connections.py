"""Connections that take too much: bytes, time or places; and what else HTTP/1 allows clients to do. Over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from spotwise.http.limits import HttpLimits
from tests.contracts.waiting import until
from tests.unit.gateway.apps import MakeApp
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, COMPLETIONS, FakeMesh
from tests.unit.gateway.listening import Listening, listening, post

PATH = COMPLETIONS
BODY = json.dumps(COMPLETION).encode()
#: Short times, but for what a test does not wait for.
PATIENT = HttpLimits(header_timeout_s=60, body_timeout_s=60, write_timeout_s=60)
SMALL_BUFFER = 4096


def error_code(body: bytes) -> str:
    code: str = json.loads(body)["error"]["code"]
    return code


async def refused(server: Listening, *sent: bytes) -> tuple[int, str]:
    """Send; return status and code of the error, after which the connection is closed."""
    client = await server.connect()
    for part in sent:
        await client.send(part)
    head, body = await client.answer()
    assert b"connection: close" in head
    assert b"x-request-id: req-" in head
    assert await client.rest() == b""
    status = int(head.split()[1])
    assert server.errors[-1] == error_code(body)
    return status, error_code(body)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v1/models HTTP/1.1\r\nX-Endless: " + b"x" * 70_000,
        b"GET /" + b"x" * 70_000,
        b"GET /v1/models HTTP/1.1\r\nX-Long: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n" + b"X-Field: 1\r\n" * 300 + b"\r\n",
        b"\r\n" * 40_000,
    ],
    ids=["endless header", "endless path", "long header", "many headers", "empty lines"],
)
async def test_long_headers_are_refused(make_app: MakeApp, sent: bytes) -> None:
    """431, however they are long, whether they end or not."""
    async with listening(make_app(), PATIENT) as server:
        assert await refused(server, sent) == (431, "headers_too_large")


async def test_headers_that_do_not_come_are_not_waited_for(make_app: MakeApp) -> None:
    """408 in the middle of the first headers or of later ones; a connection without a byte is closed."""
    async with listening(make_app(), replace(PATIENT, header_timeout_s=0.2)) as server:
        assert await refused(server, b"GET /v1/models HTTP/1.1\r\nHost: ga") == (408, "request_timeout")
        silent = await server.connect()
        assert await silent.rest() == b""
        later = await server.connect()
        await later.send(post(PATH, BODY) + b"GET /v1")
        await later.answer()
        head, body = await later.answer()
        assert (head.split()[1], error_code(body)) == (b"408", "request_timeout")
        patient = await server.connect()
        await patient.send(post(PATH, BODY))
        await patient.answer()
        await asyncio.sleep(0.4)
        await patient.send(post(PATH, BODY))
        assert b"200 ok" in (await patient.answer())[0]
        patient.leave()


@pytest.mark.parametrize("framing", [("Content-Length: 100",), ("Transfer-Encoding: chunked",)])
async def test_a_body_that_does_not_come_is_not_waited_for(make_app: MakeApp, framing: tuple[str, ...]) -> None:
    """408, and the application's work for it ends."""
    async with listening(make_app(), replace(PATIENT, body_timeout_s=0.2)) as server:
        head = post(PATH, b"", *framing).replace(b"Content-Length: 0\r\n", b"")
        assert await refused(server, head) == (408, "request_timeout")
        await until(lambda: not server.server.server_state.tasks)


async def test_what_frames_a_body_is_bounded(make_app: MakeApp) -> None:
    head = post(PATH, b"", "Transfer-Encoding: chunked")
    async with listening(make_app(), PATIENT) as server:
        assert await refused(server, head, b"5;" + b"x" * 700_000) == (400, "invalid_http")
        trailing = await server.connect()
        await trailing.send(head + b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY))
        await trailing.send(b"X-Trailer: 1\r\n" * 60_000)
        head_of_answer, _ = await trailing.answer()
        assert b"400" in head_of_answer
        await trailing.rest()


async def test_a_body_behind_an_early_answer_is_bounded(make_app: MakeApp) -> None:
    """The rest of a body that was refused is dropped for some time, then the connection is closed."""
    async with listening(make_app(), replace(PATIENT, body_timeout_s=0.5)) as server:
        client = await server.connect()
        await client.send(post(PATH, b"", "Transfer-Encoding: chunked", "Content-Encoding: br") + b"5\r\nhello\r\n")
        head, body = await client.answer()
        assert (head.split()[1], error_code(body)) == (b"415", "unsupported_content_encoding")
        sending = asyncio.create_task(_send_for_ever(client.send))
        assert await client.rest() == b""
        sending.cancel()


async def _send_for_ever(send: Callable[[bytes], Any]) -> None:
    while True:
        await send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        await asyncio.sleep(0.01)


async def test_no_more_connections_than_there_are_places(make_app: MakeApp, mesh: FakeMesh) -> None:
    """While all are busy a further one gets 503, else it takes an idle one's place; many more are cut off."""
    mesh.hang_at = 0
    async with listening(make_app(), replace(PATIENT, max_connections=4)) as server:
        busy = [await server.connect() for _ in range(4)]
        for client in busy:
            await client.send(post(PATH, BODY))
        for _ in busy:
            await mesh.hung.get()
        head, body = await _request(server)
        assert (head.split()[1], error_code(body)) == (b"503", "too_many_connections")
        assert b"retry-after: 1" in head
        crowd = [await server.connect() for _ in range(5)]
        await until(lambda: len(server.server.server_state.connections) <= 5)
        for client in (*crowd, busy.pop()):
            client.leave()
        await until(lambda: len(server.server.server_state.connections) == 3)
        mesh.hang_at = None
        idle = await server.connect()
        await idle.send(post(PATH, BODY))
        await idle.answer()
        assert b"200 ok" in (await _request(server))[0]
        assert await idle.rest() == b""
        for client in busy:
            client.leave()


async def _request(server: Listening) -> tuple[bytes, bytes]:
    client = await server.connect()
    await client.send(post(PATH, BODY, "Connection: close"))
    answer = await client.answer()
    await client.rest()
    return answer


async def test_a_slow_reader_is_cut_off(make_app: MakeApp, mesh: FakeMesh) -> None:
    """The buffer and the time for a client that reads nothing are bounded, and the mesh's work is cancelled."""
    mesh.reply = [65] * 200
    async with listening(make_app(), replace(PATIENT, write_timeout_s=0.3), SMALL_BUFFER) as server:
        slow = await server.connect(receive_buffer_bytes=SMALL_BUFFER)
        many = json.dumps(COMPLETION | {"n": 16, "stream": True, "logprobs": 20, "max_tokens": 200}).encode()
        await slow.send(post(PATH, many))
        await until(lambda: bool(server.server.server_state.connections))
        (connection,) = server.server.server_state.connections
        most = 0
        while server.server.server_state.connections:
            most = max(most, connection.transport.get_write_buffer_size())
            await asyncio.sleep(0.02)
        assert most < 1 << 20
        await until(lambda: not mesh.open)
        slow.leave()


async def test_an_answer_that_is_taken_slowly_is_not_cut_off(make_app: MakeApp, mesh: FakeMesh) -> None:
    mesh.reply = [65] * 200
    async with listening(make_app(), replace(PATIENT, write_timeout_s=0.3, min_taken_bytes=1), SMALL_BUFFER) as server:
        slow = await server.connect(receive_buffer_bytes=SMALL_BUFFER)
        many = COMPLETION | {"n": 16, "logprobs": 20, "max_tokens": 200}
        await slow.send(post(PATH, json.dumps(many).encode(), "Connection: close"))
        head = await slow.read_until(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        taken = 0
        while taken < length:
            taken += len(await slow.read_exactly(min(200_000, length - taken)))
            await asyncio.sleep(0.02)
        assert await slow.rest() == b""


async def test_a_client_that_leaves_ends_its_pipelined_requests(make_app: MakeApp, mesh: FakeMesh) -> None:
    """The one that runs is cancelled, those behind it never start."""
    mesh.hang_at = 1
    async with listening(make_app(), PATIENT) as server:
        client = await server.connect()
        await client.send(post(PATH, BODY) * 3)
        await mesh.hung.get()
        client.leave()
        await until(lambda: not mesh.open)
        await until(lambda: not server.server.server_state.connections)
        await asyncio.sleep(0.05)
        assert len(mesh.specs) == 1


async def test_pipelined_requests_are_answered_in_order(make_app: MakeApp, mesh: FakeMesh) -> None:
    """Pipelined requests are answered in order; beyond `max_pipelined` the first is answered and the connection closed."""
    async with listening(make_app(), replace(PATIENT, max_pipelined=3)) as server:
        client = await server.connect()
        await client.send(b"".join(post(PATH, BODY, f"X-Request-Id: {number}") for number in range(3)))
        for number in range(3):
            assert b"x-request-id: %d\r" % number in (await client.answer())[0]
        await client.send(post(PATH, BODY) * 9)
        assert b"200 ok" in (await client.answer())[0]
        assert await client.rest() == b""
        assert len(mesh.specs) == 4


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
async def test_an_offer_to_upgrade_is_declined_and_the_body_read(
    make_app: MakeApp, mesh: FakeMesh, chunked: bool, upgrade: str
) -> None:
    """An upgrade offer, which the JDK's clients send, is declined; the connection stays open."""
    offer = (
        "Connection: Upgrade, HTTP2-Settings",
        f"Upgrade: {upgrade}",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA",
    )
    if chunked:
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
        request = post(PATH, framed, *offer, "Transfer-Encoding: chunked")
    else:
        request = post(PATH, BODY, *offer)
    async with listening(make_app(), PATIENT) as server:
        client = await server.connect()
        for _ in range(2):
            await client.send(request)
            head, body = await client.answer()
            assert b"200 ok" in head, body
        await client.send(request[:-7])
        await asyncio.sleep(0.05)
        await client.send(request[-7:] + request)
        for _ in range(2):
            assert b"200 ok" in (await client.answer())[0]
        lines = "\r\n".join(["GET /v1/models HTTP/1.1", "Host: gateway", *offer, "", ""])
        await client.send(lines.encode())
        assert b"200 ok" in (await client.answer())[0]
        client.leave()
    assert len(mesh.specs) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_to_http_1_0_is_not_chunked(make_app: MakeApp, stream: bool) -> None:
    async with listening(make_app(), PATIENT) as server:
        client = await server.connect()
        await client.send(post(PATH, json.dumps(COMPLETION | {"stream": stream}).encode(), version="1.0"))
        head = (await client.read_until(b"\r\n\r\n")).lower()
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        body = await client.rest()
        if stream:
            assert body.startswith(b"data: {")
            assert body.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(body)["choices"][0]["text"] == "Hello, world!"


async def test_connections_are_used_again(make_app: MakeApp) -> None:
    async with listening(make_app(), PATIENT) as server, httpx.AsyncClient(trust_env=False) as client:
        for number in range(30):
            body = COMPLETION | ({"user": "u" * 300_000} if number % 10 == 0 else {})
            answer = await client.post(f"{server.url}{PATH}", json=body)
            assert answer.status_code == 200, answer.text
        assert len(server.server.server_state.connections) == 1
        streamed = await client.post(f"{server.url}/v1/chat/completions", json=CHAT | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
