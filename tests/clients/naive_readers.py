"""Readers of event streams as people write them by hand, without the rules of server-sent events in mind.

All they know besides is that a line which begins with a colon says nothing, as most servers send such ones. Each takes what the
network gave, in pieces, and returns the data of the events; what it does not expect ends it with an error, as it ends such
programs. By the standard library alone, so that it runs in any environment.
"""

from __future__ import annotations

import codecs
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Events = list[dict[str, Any]]
Reader = Callable[[Sequence[bytes]], Events]

_PREFIX = "data: "
_DONE = "[DONE]"
_COMMENT = ":"
#: OpenAI's chats and completions have no other lines than these; its responses and Anthropic's messages name each event.
_NAME = "event: "


def by_line(chunks: Sequence[bytes], *, named: bool = False) -> Events:
    """Cut the prefix off each line that is not empty."""
    events: Events = []
    for line in b"".join(chunks).decode().splitlines():
        if not line or line.startswith(_COMMENT) or (named and line.startswith(_NAME)):
            continue
        assert line.startswith(_PREFIX), f"a line begins with {line[:20]!r}"
        if line[len(_PREFIX) :] != _DONE:
            events.append(json.loads(line[len(_PREFIX) :]))
    return events


def by_blank_line(chunks: Sequence[bytes], *, named: bool = False) -> Events:
    """Split at blank lines, and take what is after the prefix for JSON."""
    events: Events = []
    *parts, rest = b"".join(chunks).decode().split("\n\n")
    assert rest == "", f"after the last event: {rest[:20]!r}"
    for part in parts:
        if part.startswith(_COMMENT):
            continue
        if named:
            name, _, part = part.partition("\n")
            assert name.startswith(_NAME), f"an event begins with {name[:20]!r}"
        assert part.startswith(_PREFIX), f"an event begins with {part[:20]!r}"
        if part[len(_PREFIX) :] != _DONE:
            events.append(json.loads(part[len(_PREFIX) :]))
    return events


def by_chunk(chunks: Sequence[bytes], *, named: bool = False) -> Events:
    """Parse each piece as it comes, and keep nothing of it for the next one."""
    return [event for chunk in chunks for event in by_blank_line([chunk], named=named)]


def as_vllm_bench(chunks: Sequence[bytes]) -> Events:
    """Read as `vllm bench serve` does (vLLM 0.32, vllm/benchmarks/lib/endpoint_request_func.py), whose events have no names.

    Pieces lose their blanks at both ends, so an event is over at a blank line, or as soon as what is there is whole.
    """
    events: Events = []
    decoder = codecs.getincrementaldecoder("utf-8")()
    waiting = ""

    def take(message: str) -> None:
        if message.strip() and not message.startswith(":"):
            data = message.strip().removeprefix(_PREFIX)
            if data != _DONE:
                events.append(json.loads(data))

    for chunk in chunks:
        if not chunk.strip():
            continue
        *messages, waiting = (waiting + decoder.decode(chunk.strip())).split("\n\n")
        for message in messages:
            take(message)
        if waiting.startswith(_PREFIX) and _is_whole(waiting[len(_PREFIX) :].strip()):
            take(waiting)
            waiting = ""
    assert not waiting, f"an event that never ended: {waiting[:20]!r}"
    return events


def _is_whole(data: str) -> bool:
    try:
        json.loads(data)
    except json.JSONDecodeError:
        return data == _DONE
    return True


def post(
    host: str, port: int, path: str, body: Mapping[str, Any], headers: Iterable[str] = ()
) -> tuple[str, list[bytes], list[bytes]]:
    """Send a request over a connection of its own, and read to its end.

    Returns:
        The head of the answer; its body in HTTP's chunks; the same in the pieces that the network gave.
    """
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close", *headers]
    lines.append(f"Content-Length: {len(content)}")
    with socket.create_connection((host, port), timeout=300) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        received = list(iter(lambda: connection.recv(1 << 16), b""))
    whole = b"".join(received)
    head, _, rest = whole.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return head.decode(), [rest], [rest]
    chunks, spans, place = list[bytes](), list[tuple[int, int]](), len(head) + 4
    while True:
        end_of_size = whole.index(b"\r\n", place)
        length = int(whole[place:end_of_size], 16)
        if not length:
            return head.decode(), chunks, _pieces(received, whole, spans)
        spans.append((end_of_size + 2, end_of_size + 2 + length))
        chunks.append(whole[slice(*spans[-1])])
        place = spans[-1][1] + 2


def _pieces(received: Sequence[bytes], whole: bytes, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return what each piece that was received had of the body, whose parts lie at `spans`."""
    pieces, begin = list[bytes](), 0
    for each in received:
        end = begin + len(each)
        pieces.append(
            b"".join(whole[max(begin, first) : min(end, last)] for first, last in spans if first < end > begin)
        )
        begin = end
    return [piece for piece in pieces if piece]
