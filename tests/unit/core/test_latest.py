"""A dictionary that forgets."""

from __future__ import annotations

from spotwise.core.latest import LatestDict


def test_the_keys_that_were_set_last_are_kept() -> None:
    """One that is set again is the latest; one that is only looked at is not."""
    known = LatestDict[str, int](3)
    for number, key in enumerate("abc"):
        known[key] = number
    known["a"] = 7
    assert known.get("b") == 1
    known["d"] = 8
    assert dict(known) == {"c": 2, "a": 7, "d": 8}
