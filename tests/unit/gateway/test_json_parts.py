"""JSON that is written and sent in parts."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from spotwise.http.json_text import JsonList, PartsResponse, json_parts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_the_parts_are_the_value(value: Any) -> None:
    assert json.loads(b"".join(json_parts(value))) == value


@given(st.lists(st.lists(VALUES, max_size=3), max_size=4))
def test_a_list_is_written_while_its_items_come(items: list[list[Any]]) -> None:
    written = JsonList()
    for some in items:
        written.extend(some)
    whole = [item for some in items for item in some]
    value = {"choices": [{"index": 0, "logprobs": {"content": written, "refusal": None}}], "tail": 1}
    expected = {"choices": [{"index": 0, "logprobs": {"content": whole, "refusal": None}}], "tail": 1}
    assert json.loads(b"".join(json_parts(value))) == expected


async def sent(parts: list[bytes]) -> tuple[dict[bytes, bytes], list[bytes]]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError

    await PartsResponse(parts, {"X-Request-Id": "r"})({"type": "http"}, receive, send)
    start, *bodies = messages
    assert [each["more_body"] for each in bodies] == [True] * (len(bodies) - 1) + [False]
    return dict(start["headers"]), [each["body"] for each in bodies]


async def test_a_body_is_sent_in_chunks_of_its_length() -> None:
    body = orjson.dumps(["x" * 100] * 20_000)
    parts = [body[:10], body[10:1_000_000], *[body[first : first + 100] for first in range(1_000_000, len(body), 100)]]
    headers, chunks = await sent(parts)
    assert b"".join(chunks) == body
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == b"r"
    assert max(map(len, chunks)) < 200_000
    assert len(chunks) < len(body) / 60_000


async def test_a_small_body_is_one_chunk() -> None:
    _, chunks = await sent([b'{"a":', b"1}"])
    assert chunks == [b'{"a":1}']
