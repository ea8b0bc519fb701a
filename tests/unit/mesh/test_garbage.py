"""A service looks for cycles of garbage seldom."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from spotwise.mesh.garbage import collect_rarely


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_youngest_are_looked_through_seldom_and_cycles_still_go() -> None:
    """Thousands of objects that live bring no look; as many cycles that nobody holds are freed."""
    collect_rarely()
    gc.collect()
    looks = gc.get_stats()[0]["collections"]
    kept = [[number] for number in range(5000)]
    assert gc.get_stats()[0]["collections"] == looks
    collected = sum(generation["collected"] for generation in gc.get_stats())
    for _ in range(60_000):
        cycle: list[object] = []
        cycle.append(cycle)
    assert sum(generation["collected"] for generation in gc.get_stats()) > collected
    assert len(kept) == 5000
