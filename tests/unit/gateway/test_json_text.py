"""JSON of any size: what a text holds is found out without parsing it, and answers are written and sent in parts."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from spotwise.http import json_text
from spotwise.http.json_text import JsonList, JsonTooComplexError, PartsResponse, json_parts, require_bounded_json

TEXTS = st.text(st.sampled_from('a"\\[]{},:\n é'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def counted(value: Any) -> tuple[int, int, int]:
    """Depth, containers and strings, the slow way."""
    if isinstance(value, str):
        return 0, 0, 1
    if not isinstance(value, list | dict):
        return 0, 0, 0
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    names = len(value) if isinstance(value, dict) else 0
    depth = 1 + max((each[0] for each in inner), default=0)
    return depth, 1 + sum(each[1] for each in inner), names + sum(each[2] for each in inner)


@settings(max_examples=300)
@given(VALUES, st.integers(0, 4), st.integers(0, 6), st.integers(0, 6), st.booleans())
def test_it_is_refused_where_a_bound_is_exceeded(
    value: Any, max_depth: int, max_containers: int, max_strings: int, ascii_only: bool
) -> None:
    """Whatever the strings hold: brackets, quotation marks and escapes in them count for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "MAX_DEPTH", max_depth)
        patch.setattr(json_text, "MAX_CONTAINERS", max_containers)
        patch.setattr(json_text, "MAX_STRINGS", max_strings)
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
        depth, containers, strings = counted(value)
        exceeds = depth > max_depth or containers > max_containers or strings > max_strings
        # Where nothing is near a bound by the quickest look, nothing else is looked at.
        if max_depth >= text.count(b"[") + text.count(b"{") and text.count(b'"') <= 2 * max_strings:
            exceeds = False
        try:
            require_bounded_json(text)
        except JsonTooComplexError:
            assert exceeds
        else:
            assert not exceeds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 400 + b"]" * 400, "deeper than 100"),
        (b"[" * 100_000, "deeper than 100"),
        (b"[" + b"[]," * 2_600_000 + b"1]", "2600001 lists"),
        (b"[" + b'"a",' * 1_900_000 + b"1]", "1900000 strings"),
        (b"[" + b"7," * 3_500_000 + b"1]", "values"),
    ],
)
def test_what_is_refused_is_named(text: bytes, words: str) -> None:
    """A refusal has the bound, and comes before a parser would have built the value."""
    begun_s = time.thread_time()
    with pytest.raises(JsonTooComplexError, match=words):
        require_bounded_json(text)
    assert time.thread_time() - begun_s < 5


def test_long_texts_and_long_prompts_pass() -> None:
    """A book full of brackets is one string; a batch of prompts may fill the largest body with token ids."""
    require_bounded_json(json.dumps({"prompt": '{"[]"}, ' * 800_000}).encode())
    require_bounded_json(json.dumps({"prompt": [[12345] * 5000] * 230}, separators=(",", ":")).encode())
    require_bounded_json(json.dumps({"messages": [{"role": "user", "content": "[]"}] * 16_000}).encode())


PART_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(PART_VALUES)
def test_the_parts_are_the_value(value: Any) -> None:
    assert json.loads(b"".join(json_parts(value))) == value


@given(st.lists(st.lists(PART_VALUES, max_size=3), max_size=4))
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
