"""Damaged requests: no answer but an error, and h11 as a second opinion on where each request ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import h11
import uvicorn
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from uvicorn.server import ServerState

from spotwise.http.limits import HttpLimits, Places
from spotwise.http.protocol import GatewayHttpProtocol

#: Turns of the loop in which an answer that waits for nothing is written.
TURNS = 12
#: What a request asks for: its method, its path with the query, and its body.
Asked = tuple[bytes, bytes, bytes]


class Wire(asyncio.Transport):
    """A connection's other end: it takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._is_closing = False

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self.written += data

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Go on: what was sent is there already."""

    def resume_reading(self) -> None:
        """Go on."""


@dataclass
class Served:
    """What a server made of a connection's bytes."""

    asked: list[Asked] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    is_closed: bool = False


async def serve(parts: Iterable[bytes]) -> Served:
    served = Served()

    async def app(scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        served.asked.append((scope["method"].encode(), scope["raw_path"] + query, bytes(body)))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False)  # type: ignore[arg-type]
    config.load()
    errors: list[str] = []
    connection = GatewayHttpProtocol(Places(HttpLimits(), errors.append), config, ServerState(), {})
    wire = Wire()
    connection.connection_made(wire)
    for part in parts:
        if not wire.is_closing():
            connection.data_received(part)
        await asyncio.sleep(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    served.statuses = statuses_of(bytes(wire.written))
    served.is_closed = wire.is_closing()
    connection.connection_lost(None)
    await asyncio.sleep(0)
    return served


def statuses_of(written: bytes) -> list[int]:
    """Return the statuses of whole answers, but for interim ones; fails where the bytes are nothing but answers."""
    found: list[int] = []
    while written:
        begun, end, written = written.partition(b"\r\n\r\n")
        assert begun.startswith(b"HTTP/1.1 ") and end, begun
        status = int(begun.split()[1])
        if status == 100:
            continue
        length = int(begun.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert len(written) >= length
        written = written[length:]
        found.append(status)
    return found


def by_h11(sent: bytes) -> list[Asked]:
    """Return what h11 takes for whole requests, until the first that it refuses or that ends the connection."""
    found: list[Asked] = []
    while True:
        while sent.startswith(b"\r\n"):  # a server should ignore it (RFC 9112, section 2.2); h11 does not
            sent = sent[2:]
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(sent)
        body, begun = bytearray(), None
        try:
            while not isinstance(happened := connection.next_event(), h11.EndOfMessage):
                match happened:
                    case h11.Request():
                        begun = happened
                    case h11.Data():
                        body += happened.data
                    case _:
                        return found
        except h11.RemoteProtocolError:
            return found
        assert begun is not None
        target = bytes(begun.target)
        if not target.startswith(b"/") and target != b"*":
            target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
        path, _, query = target.partition(b"?")
        target = path + b"?" + query if query else path  # an empty query is none
        found.append((bytes(begun.method), target, bytes(body)))
        if connection.their_state is h11.MUST_CLOSE or begun.http_version == b"1.0":
            return found
        sent = bytes(connection.trailing_data[0])


FIELDS = st.sampled_from(
    [
        b"X-Field: a",
        b"Accept: a/b, c/d",
        b"X-Empty:",
        b"Connection: keep-alive",
        b"Content-Type: application/json",
        b"Expect: 100-continue",
        b"Connection: Upgrade\r\nUpgrade: h2c",
    ]
)
TARGETS = st.sampled_from([b"/", b"/v1/models", b"/v1/completions?a=b", b"http://gateway/v1/x", b"/%20"])
EXTENSIONS = st.sampled_from([b"", b"", b";a", b';a="b;c"'])
BODIES = st.binary(max_size=24) | st.sampled_from(
    [b"\r\n\r\nGET", b"0\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n", b"{}"]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request as HTTP/1.1 allows it."""
    fields = draw(st.lists(FIELDS, max_size=3, unique=True))
    method = draw(st.sampled_from([b"GET", b"POST", b"DELETE", b"OPTIONS"]))
    version = draw(st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0"]))
    lines = [b"%b %b HTTP/%b" % (method, draw(TARGETS), version), b"Host: gateway", *fields]
    body = draw(BODIES)
    framing = draw(st.sampled_from(["none", "length", "chunks"]))
    if framing == "none":
        body = b""
    elif framing == "length" or version == b"1.0":
        lines.append(b"Content-Length: %d" % len(body))
    else:
        lines.append(b"Transfer-Encoding: chunked")
        cut = draw(st.integers(0, len(body)))
        chunks = [part for part in (body[:cut], body[cut:]) if part]
        trailer = draw(st.sampled_from([b"", b"X-Trailer: a\r\n"]))
        body = b"".join(b"%x%b\r\n%b\r\n" % (len(part), draw(EXTENSIONS), part) for part in chunks)
        body += b"0%b\r\n%b\r\n" % (draw(EXTENSIONS), trailer)
    return b"\r\n".join([*lines, b"", b""]) + body


#: What makes trouble where it does not belong.
ODD = [
    *(bytes([each]) for each in b'\r\n \t\0:;,05aF%#?/\\\x7f\xff"'),
    b"\r\n",
    b"\n\n",
    b"\r\n\r\n",
    b"\r\n ",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"Host: b\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Connection: close\r\n",
    b"Expect: 100-continue\r\n",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"RTSP/1.0",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@st.composite
def damaged(draw: st.DrawFn, sent: bytes) -> bytes:
    """The bytes with a few inserted, left out, replaced or repeated; most changes at the borders of lines and words."""
    for _ in range(draw(st.integers(1, 3))):
        borders = [place for place, each in enumerate(sent) if each in b"\r\n :;,/"] or [0]
        at = draw(st.sampled_from(borders) | st.integers(0, len(sent))) + draw(st.integers(0, 2))
        match draw(st.sampled_from(["insert", "replace", "leave out", "repeat a line"])):
            case "insert":
                sent = sent[:at] + draw(st.sampled_from(ODD)) + sent[at:]
            case "replace":
                sent = sent[:at] + draw(st.sampled_from(ODD)) + sent[at + 1 :]
            case "leave out":
                sent = sent[:at] + sent[at + draw(st.integers(1, 3)) :]
            case _:
                lines = sent.split(b"\r\n")
                place = draw(st.integers(0, len(lines) - 1))
                sent = b"\r\n".join([*lines[: place + 1], *lines[place:]])
    return sent


def split(sent: bytes, places: Sequence[int]) -> list[bytes]:
    borders = sorted({0, len(sent), *(place % (len(sent) + 1) for place in places)})
    return [sent[start:end] for start, end in itertools.pairwise(borders)]


PLACES = st.lists(st.integers(0, 1000), max_size=4)
CONNECTIONS = st.lists(requests(), min_size=1, max_size=3).map(b"".join)


@settings(max_examples=300)
@given(CONNECTIONS, PLACES)
def test_right_requests_are_all_answered(sent: bytes, places: list[int]) -> None:
    """As h11 reads them, up to one that ends the connection."""
    served = asyncio.run(serve(split(sent, places)))
    assert served.asked == by_h11(sent)
    assert served.statuses == [200] * len(served.asked)


@settings(max_examples=1500)
@example(b"GET /? HTTP/1.1\r\nHost: gateway\r\n\r\n", [])
@given(CONNECTIONS.flatmap(damaged), PLACES)
def test_damaged_requests_are_refused_or_read_as_h11_reads_them(sent: bytes, places: list[int]) -> None:
    """No request has two answers, none is answered that h11 does not find, and an error is the connection's last answer."""
    served = asyncio.run(serve(split(sent, places)))
    asked = by_h11(sent)
    assert served.asked == asked[: len(served.asked)]
    event(f"{len(served.asked)} of {len(asked)}, then {served.statuses[len(served.asked) :]}")
    answered = served.statuses[: len(served.asked)]
    errors = served.statuses[len(served.asked) :]
    assert answered == [200] * len(served.asked)
    assert len(errors) <= 1 and all(400 <= each < 600 for each in errors)
    assert served.is_closed or not errors
    # What is queued behind the answer that is under way is dropped with what is wrong.
    at_once = asyncio.run(serve([sent])).asked
    assert at_once == served.asked[: len(at_once)] and bool(at_once) == bool(served.asked)
