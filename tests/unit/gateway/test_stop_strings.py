"""The stop string scanner, against `str.find` on the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.text.stop_strings import StopStringScanner, StopTables

SMALL_TEXTS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def scan(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    scanner = StopStringScanner(StopTables(tuple(stops)), include)
    given_text = "".join(scanner.push(piece) for piece in pieces)
    return given_text + scanner.flush(), scanner.matched


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: of all stop strings found the one that ends first, the longest if several end there."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end if include else end - len(stop)], stop


@given(st.lists(SMALL_TEXTS, max_size=8), STOPS, st.booleans())
def test_any_split_gives_what_find_gives_on_the_whole(pieces: list[str], stops: list[str], include: bool) -> None:
    """The result depends on the text alone, however it is cut."""
    assert scan(pieces, stops, include) == expected("".join(pieces), stops, include)


@given(st.lists(SMALL_TEXTS, max_size=8), STOPS)
def test_holds_back_only_what_may_become_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    """After every piece the text given is all but the longest end that begins a stop string."""
    scanner = StopStringScanner(StopTables(tuple(stops)))
    text = given_text = ""
    for piece in pieces:
        text += piece
        given_text += scanner.push(piece)
        if scanner.matched is not None:
            break
        beginnings = [stop[:length] for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])]
        assert given_text == text[: len(text) - max(map(len, beginnings), default=0)]


@pytest.mark.parametrize(
    ("pieces", "stops", "want"),
    [
        (["Hello", " wor", "ld! more"], ["world!"], "Hello "),
        (["aab", "aac"], ["aabaac"], ""),
        (["一二", "三四"], ["二三"], "一"),
        (["no match"], [], "no match"),
        (["ends with \n"], ["\n\n"], "ends with \n"),
    ],
)
def test_examples(pieces: list[str], stops: list[str], want: str) -> None:
    """Stop strings across borders, overlapping beginnings, wide characters, none at all, and an unfinished one."""
    assert scan(pieces, stops, include=False)[0] == want


def test_gives_nothing_after_a_match() -> None:
    """Tokens after a match are not part of the text."""
    scanner = StopStringScanner(StopTables(("END",)))
    assert scanner.push("a END b") == "a "
    assert (scanner.push("c"), scanner.flush(), scanner.matched) == ("", "", "END")
