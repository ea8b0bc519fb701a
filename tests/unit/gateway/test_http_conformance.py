"""What HTTP/1.1 forbids (RFC 9110, RFC 9112) is refused over a raw socket, and what it allows is answered."""

from __future__ import annotations

import asyncio
import json

import pytest

from spotwise.gateway.access.auth import ApiKey
from spotwise.http.limits import HttpLimits
from tests.unit.gateway.apps import MakeApp
from tests.unit.gateway.fake_mesh import COMPLETION, FakeMesh
from tests.unit.gateway.listening import Client, listening

PATIENT = HttpLimits(header_timeout_s=60, body_timeout_s=60, write_timeout_s=60)
BODY = json.dumps(COMPLETION).encode()
LINE = b"POST /v1/completions HTTP/1.1"
LENGTH = b"Content-Length: %d" % len(BODY)
TYPE = b"Content-Type: application/json"
HOST = b"Host: gateway"
CHUNKED = b"Transfer-Encoding: chunked"


def head(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"", b""])


def sized(*lines: bytes, line: bytes = LINE, host: bytes = HOST) -> bytes:
    """A completion with the length of its body."""
    return head(line, *([host] if host else []), TYPE, LENGTH, *lines) + BODY


def chunked(body: bytes, *lines: bytes, line: bytes = LINE) -> bytes:
    """A completion whose body comes as it is given."""
    return head(line, HOST, TYPE, CHUNKED, *lines) + body


def coded(coding: bytes, body: bytes | None = None) -> bytes:
    """A completion of some coding; its body comes in chunks, unless it is given."""
    return head(LINE, HOST, TYPE, b"Transfer-Encoding: " + coding) + (chunk(BODY) + END if body is None else body)


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


END = b"0\r\n\r\n"

#: Requests that are none, and the status of their answer.
MALFORMED: dict[str, tuple[bytes, int]] = {
    "no host": (sized(host=b""), 400),
    "two hosts": (sized(b"Host: other"), 400),
    "the same host twice": (sized(HOST), 400),
    "two hosts in one": (sized(host=b"Host: gateway, other"), 400),
    "a host with a user": (sized(host=b"Host: user@gateway"), 400),
    "a host with a path": (sized(host=b"Host: gateway/path"), 400),
    "a host with a blank": (sized(host=b"Host: gate way"), 400),
    "a host with a port that is no number": (sized(host=b"Host: gateway:80a"), 400),
    "a host of other letters": (sized(host=b"Host: g\xc3\xa4teway"), 400),
    "a host with two ports": (sized(host=b"Host: gateway:80:80"), 400),
    "two hosts in HTTP/1.0": (sized(b"Host: other", line=b"POST /v1/completions HTTP/1.0"), 400),
    "a folded field": (sized(b"X-Folded: a\r\n b"), 400),
    "a fold by a tab": (sized(b"X-Folded: a\r\n\tb"), 400),
    "a fold before all fields": (head(LINE, b" X-Folded: a", HOST, LENGTH) + BODY, 400),
    "a blank before a colon": (sized(b"X-Field : a"), 400),
    "a blank before the length's colon": (head(LINE, HOST, b"Content-Length : 5") + b"hello", 400),
    "a tab before the coding's colon": (head(LINE, HOST, b"Transfer-Encoding\t: chunked") + END, 400),
    "a field without a colon": (sized(b"X-Field"), 400),
    "a field without a name": (sized(b": a"), 400),
    "a name with a bracket": (sized(b"X(Field): a"), 400),
    "a name of other letters": (sized(b"X-F\xc3\xa9ld: a"), 400),
    "a bare CR in a value": (sized(b"X-Field: a\rb"), 400),
    "a bare CR as an end": (sized(b"X-Field: a\rX-Other: b"), 400),
    "a bare LF in a value": (sized(b"X-Field: a\nX-Other: b"), 400),
    "lines that end with LF alone": (sized().replace(b"\r\n", b"\n"), 400),
    "a first line that ends with LF alone": (sized().replace(b"\r\n", b"\n", 1), 400),
    "a head that ends with LF alone": (head(LINE, HOST, LENGTH)[:-2] + b"\n" + BODY, 400),
    "an LF before the first line": (b"\n" + sized(), 400),
    "a NUL in a value": (sized(b"X-Field: a\0b"), 400),
    "a control character in a value": (sized(b"X-Field: a\x01b"), 400),
    "a DEL in a value": (sized(b"X-Field: a\x7fb"), 400),
    "a NUL in a name": (sized(b"X-\0Field: a"), 400),
    "a NUL in the target": (sized(line=b"POST /v1/\0completions HTTP/1.1"), 400),
    "a control character in the target": (sized(line=b"POST /v1/\x01completions HTTP/1.1"), 400),
    "a target of other letters": (sized(line=b"POST /v1/compl\xc3\xa9tions HTTP/1.1"), 400),
    "a blank in the target": (sized(line=b"POST /v1/completions /x HTTP/1.1"), 400),
    "a fragment": (sized(line=b"POST /v1/completions#part HTTP/1.1"), 400),
    "a backslash in the target": (sized(line=b"POST /v1\\completions HTTP/1.1"), 400),
    "an escape that is none": (sized(line=b"POST /v1/completions?%zz HTTP/1.1"), 400),
    "half an escape": (sized(line=b"POST /v1/completions?a=%4 HTTP/1.1"), 400),
    "a relative target": (sized(line=b"POST v1/completions HTTP/1.1"), 400),
    "an authority as the target": (sized(line=b"POST gateway:80 HTTP/1.1"), 400),
    "an asterisk as the target": (sized(line=b"POST * HTTP/1.1"), 400),
    "a URL with a user": (sized(line=b"POST http://user@gateway/v1/completions HTTP/1.1"), 400),
    "a URL without a host": (sized(line=b"POST http:///v1/completions HTTP/1.1"), 400),
    "a URL of another scheme": (sized(line=b"POST ftp://gateway/v1/completions HTTP/1.1"), 400),
    "a tunnel": (head(b"CONNECT gateway:443 HTTP/1.1", HOST), 400),
    "a tunnel to a path": (head(b"CONNECT /v1/completions HTTP/1.1", HOST), 400),
    "two blanks before the target": (sized(line=b"POST  /v1/completions HTTP/1.1"), 400),
    "two blanks before the version": (sized(line=b"POST /v1/completions  HTTP/1.1"), 400),
    "a tab before the target": (sized(line=b"POST\t/v1/completions HTTP/1.1"), 400),
    "a blank before the method": (sized(line=b" POST /v1/completions HTTP/1.1"), 400),
    "a blank behind the version": (sized(line=b"POST /v1/completions HTTP/1.1 "), 400),
    "no target": (sized(line=b"POST HTTP/1.1"), 400),
    "a line that is none": (b"GARBAGE\r\n\r\n", 400),
    "no version": (sized(line=b"POST /v1/completions"), 400),
    "HTTP/0.9": (b"GET /v1/models\r\n\r\n", 400),
    "a version 0.9": (sized(line=b"POST /v1/completions HTTP/0.9"), 505),
    "a version 1.2": (sized(line=b"POST /v1/completions HTTP/1.2"), 400),
    "a version 2.0": (sized(line=b"POST /v1/completions HTTP/2.0"), 505),
    "a version without a dot": (sized(line=b"POST /v1/completions HTTP/1"), 400),
    "a version of two digits": (sized(line=b"POST /v1/completions HTTP/1.11"), 400),
    "a version in small letters": (sized(line=b"POST /v1/completions http/1.1"), 400),
    "RTSP": (sized(line=b"POST /v1/completions RTSP/1.0"), 400),
    "RTSP with a version of HTTP": (sized(line=b"POST /v1/completions RTSP/1.1"), 400),
    "ICE": (sized(line=b"SOURCE /v1/completions ICE/1.0"), 400),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "an unknown method": (sized(line=b"COMPLETE /v1/completions HTTP/1.1"), 501),
    "a method in small letters": (sized(line=b"post /v1/completions HTTP/1.1"), 501),
    "another expectation": (sized(b"Expect: 200-ok"), 417),
    "two expectations": (sized(b"Expect: 100-continue, 200-ok"), 417),
    "an expectation twice": (sized(b"Expect: 100-continue", b"Expect: 100-continue"), 400),
    "two lengths": (sized(b"Content-Length: 5"), 400),
    "the same length twice": (sized(LENGTH), 400),
    "a list of lengths": (head(LINE, HOST, TYPE, LENGTH + b", %d" % len(BODY)) + BODY, 400),
    "a length with a plus": (head(LINE, HOST, TYPE, b"Content-Length: +%d" % len(BODY)) + BODY, 400),
    "a length with a minus": (head(LINE, HOST, TYPE, b"Content-Length: -1") + BODY, 400),
    "a length with a blank": (head(LINE, HOST, TYPE, b"Content-Length: 1 2") + BODY, 400),
    "a length in hexadecimal": (head(LINE, HOST, TYPE, b"Content-Length: 0x%x" % len(BODY)) + BODY, 400),
    "a length with an underscore": (head(LINE, HOST, TYPE, b"Content-Length: 1_0") + BODY, 400),
    "a length with a point": (head(LINE, HOST, TYPE, LENGTH + b".0") + BODY, 400),
    "a length of other digits": (head(LINE, HOST, TYPE, "Content-Length: ٥".encode()) + BODY, 400),
    "an empty length": (head(LINE, HOST, TYPE, b"Content-Length:") + BODY, 400),
    "a length beyond 64 bits": (head(LINE, HOST, TYPE, b"Content-Length: 18446744073709551616") + BODY, 400),
    "chunks and a length": (head(LINE, HOST, TYPE, CHUNKED, LENGTH) + BODY, 400),
    "a length and chunks": (head(LINE, HOST, TYPE, LENGTH, CHUNKED) + BODY, 400),
    "chunks in HTTP/1.0": (chunked(chunk(BODY) + END, line=b"POST /v1/completions HTTP/1.0"), 400),
    "chunks twice": (coded(b"chunked, chunked"), 400),
    "chunks in two fields": (chunked(chunk(BODY) + END, CHUNKED), 400),
    "chunks before another coding": (coded(b"chunked, gzip", chunk(BODY)), 400),
    "another coding": (coded(b"gzip", BODY), 400),
    "another coding before chunks": (coded(b"gzip, chunked"), 501),
    "the body as it is": (coded(b"identity", BODY), 400),
    "an empty coding": (head(LINE, HOST, TYPE, b"Transfer-Encoding:", LENGTH) + BODY, 400),
    "a coding that begins like chunks": (coded(b"chunkedx"), 400),
    "a coding with a letter before": (coded(b"xchunked"), 400),
    "a coding in quotes": (coded(b'"chunked"'), 400),
    "a coding with a parameter": (coded(b"chunked;q=1"), 400),
    "a vertical tab before a coding": (coded(b"\x0bchunked"), 400),
    "two media types": (sized(b"Content-Type: text/plain"), 400),
    "two keys": (sized(b"Authorization: Bearer a", b"Authorization: Bearer b"), 400),
    "a chunk's size in hexadecimal": (chunked(b"0x5\r\nhello\r\n" + END), 400),
    "a chunk's size with a plus": (chunked(b"+5\r\nhello\r\n" + END), 400),
    "a chunk's size with a minus": (chunked(b"-5\r\nhello\r\n" + END), 400),
    "a chunk's size with an underscore": (chunked(b"0_5\r\nhello\r\n" + END), 400),
    "a chunk's size with a blank before": (chunked(b" 5\r\nhello\r\n" + END), 400),
    "a chunk's size with a blank behind": (chunked(b"5 \r\nhello\r\n" + END), 400),
    "a chunk without a size": (chunked(b"\r\nhello\r\n" + END), 400),
    "a chunk's size that is none": (chunked(b"five\r\nhello\r\n" + END), 400),
    "a chunk's size beyond 64 bits": (chunked(b"10000000000000005\r\nhello\r\n" + END), 400),
    "a chunk that is longer than its size": (chunked(b"5\r\nhello!\r\n" + END), 400),
    "a chunk that is shorter than its size": (chunked(b"6\r\nhello\r\n" + END), 400),
    "a chunk without an end": (chunked(b"5\r\nhello" + END), 400),
    "a chunk's size that ends with LF alone": (chunked(b"5\nhello\r\n" + END), 400),
    "a chunk's size that ends with CR alone": (chunked(b"5\rhello\r\n" + END), 400),
    "a chunk that ends with LF alone": (chunked(b"5\r\nhello\n" + END), 400),
    "chunks that end with LF alone": (chunked(chunk(BODY) + b"0\r\n\n"), 400),
    "an extension with an LF": (chunked(chunk(BODY, b";a\nb") + END), 400),
    "an extension with a CR": (chunked(chunk(BODY, b";a\rb") + END), 400),
    "an extension with a NUL": (chunked(chunk(BODY, b";a\0") + END), 400),
    "an extension in quotes that do not end": (chunked(chunk(BODY, b';a="b') + END), 400),
    "a trailer that is folded": (chunked(chunk(BODY) + b"0\r\nX-Trailer: a\r\n b\r\n\r\n"), 400),
    "a length in a trailer": (chunked(chunk(BODY) + b"0\r\nContent-Length: 5\r\n\r\n"), 400),
    "a coding in a trailer": (chunked(chunk(BODY) + b"0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400),
    "a trailer without a colon": (chunked(chunk(BODY) + b"0\r\nX-Trailer\r\n\r\n"), 400),
}

#: Requests that HTTP/1.1 allows, though they are rare.
ALLOWED: dict[str, bytes] = {
    "a plain one": sized(),
    "an empty line before": b"\r\n" + sized(),
    "a host with a port": sized(host=b"Host: gateway:8000"),
    "an address": sized(host=b"Host: [::1]:8000"),
    "an empty host": sized(host=b"Host:"),
    "blanks round a value": sized(host=b"Host: \t gateway \t "),
    "a length with zeros before": head(LINE, HOST, TYPE, b"Content-Length: 000%d" % len(BODY)) + BODY,
    "an empty value": sized(b"X-Field:"),
    "a value of other letters": sized(b"X-Field: \xe9\xff"),
    "a name with an underscore": sized(b"X_Field: a"),
    "a field twice that is a list": sized(b"Accept: a/b", b"Accept: c/d"),
    "a query": sized(line=b"POST /v1/completions?a[]=%20b HTTP/1.1"),
    "an escape in the path": sized(line=b"POST /v1/%63ompletions HTTP/1.1"),
    "a URL": sized(line=b"POST http://gateway:8000/v1/completions HTTP/1.1"),
    "a URL of another host": sized(line=b"POST HTTPS://other/v1/completions?a=b HTTP/1.1"),
    "chunks": chunked(chunk(BODY[:7]) + chunk(BODY[7:]) + END),
    "chunks in capitals": head(LINE, HOST, TYPE, b"transfer-ENCODING: Chunked") + chunk(BODY) + END,
    "sizes in capitals with zeros before": chunked(b"000%X\r\n%b\r\n" % (len(BODY), BODY) + b"000\r\n\r\n"),
    "extensions": chunked(chunk(BODY, b';a=b;c="d;e"') + b"0;f\r\n\r\n"),
    "trailers": chunked(chunk(BODY) + b"0\r\nX-Trailer: a\r\nHost: b\r\n\r\n"),
    "an expectation": sized(b"expect: 100-Continue"),
}


async def whole_answer(client: Client) -> tuple[int, bytes, bytes]:
    """Return status, head and body of the next answer that is no interim one."""
    while True:
        begun = (await client.read_until(b"\r\n\r\n")).lower()
        if not begun.startswith(b"http/1.1 100"):
            break
    length = int(begun.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(begun.split()[1]), begun, await client.read_exactly(length)


async def test_what_the_standard_forbids_is_refused(make_app: MakeApp, mesh: FakeMesh) -> None:
    """Once, by an error of the one shape, also where a right request follows; nothing is computed for it."""
    async with listening(make_app(), PATIENT) as server:
        for what, (sent, status) in MALFORMED.items():
            server.errors.clear()
            client = await server.connect()
            await client.send(sent + sized())
            answered, begun, body = await whole_answer(client)
            error = json.loads(body)["error"]
            kind = "server_error" if status >= 500 else "invalid_request_error"
            assert (answered, error["type"]) == (status, kind), (what, error)
            assert b"connection: close" in begun, what
            assert await client.rest() == b"", what
            assert server.errors == [error["code"]], what
            assert not mesh.specs, what


@pytest.mark.parametrize("size", [None, 1, 7], ids=["at once", "byte by byte", "in parts"])
async def test_what_the_standard_allows_is_answered(make_app: MakeApp, mesh: FakeMesh, size: int | None) -> None:
    """And the next request of the connection, too, however the bytes come."""
    async with listening(make_app(), PATIENT) as server:
        for what, request in ALLOWED.items():
            mesh.specs.clear()
            sent = request * 2
            client = await server.connect()
            for start in range(0, len(sent), size or len(sent)):
                await client.send(sent[start : start + (size or len(sent))])
                await asyncio.sleep(0)
            for _ in range(2):
                answered, _, body = await whole_answer(client)
                assert answered == 200, (what, body)
            client.leave()
            assert len(mesh.specs) == 2, what


async def test_a_malformed_request_behind_a_right_one_is_not_answered(make_app: MakeApp, mesh: FakeMesh) -> None:
    async with listening(make_app(), PATIENT) as server:
        for what, (sent, _) in MALFORMED.items():
            mesh.specs.clear()
            client = await server.connect()
            await client.send(sized() + sent + sized())
            answered, _, _ = await whole_answer(client)
            assert answered == 200, what
            assert await client.rest() == b"", what
            assert len(mesh.specs) == 1, what


async def test_http_1_0_needs_no_host_and_expects_nothing(make_app: MakeApp) -> None:
    """An interim answer would be an answer to HTTP/1.0."""
    line = b"POST /v1/completions HTTP/1.0"
    async with listening(make_app(), PATIENT) as server:
        for fields in ((), (b"Expect: 100-continue",), (b"Expect: 200-ok",)):
            client = await server.connect()
            await client.send(sized(*fields, line=line, host=b""))
            said = await client.rest()
            assert said.startswith(b"HTTP/1.1 200 ") and said.count(b"HTTP/1.1") == 1


async def test_an_answer_in_place_of_continue_ends_the_connection(make_app: MakeApp) -> None:
    """Whether the client then sends its body or another request cannot be told."""
    async with listening(make_app(api_keys=(ApiKey("key"),)), PATIENT) as server:
        client = await server.connect()
        await client.send(head(LINE, HOST, TYPE, LENGTH, b"Expect: 100-continue"))
        answered, begun, _ = await whole_answer(client)
        assert answered == 401 and b"connection: close" in begun
        assert await client.rest() == b""


async def test_a_body_of_hardly_more_than_framing_is_refused(make_app: MakeApp, mesh: FakeMesh) -> None:
    """Chunks with long extensions, or of one byte each, cost more than what they bring."""
    async with listening(make_app(), PATIENT) as server:
        for body in (chunk(b" ") * 40_000, chunk(b" " * 8, b";a=" + b"b" * 1000) * 400):
            client = await server.connect()
            await client.send(chunked(body))
            answered, _, refused = await whole_answer(client)
            assert (answered, json.loads(refused)["error"]["code"]) == (400, "invalid_http")
            assert await client.rest() == b""
        client = await server.connect()
        await client.send(chunked(chunk(b" " * 8) * 8000 + chunk(BODY) + END))
        assert (await whole_answer(client))[0] == 200
        client.leave()
    assert len(mesh.specs) == 1
