"""What a JSON text holds is found out without parsing it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.http import json_text
from spotwise.http.json_text import JsonTooComplexError, require_bounded_json

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
