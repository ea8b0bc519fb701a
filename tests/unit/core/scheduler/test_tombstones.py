"""Closings that came before their submissions."""

from __future__ import annotations

from spotwise.core.scheduler.gone import CAPACITY, LIFETIME_S, Tombstones


def test_attempts_up_to_the_closed_one_are_covered() -> None:
    """A later attempt is another matter, and an earlier closing that comes late takes nothing back."""
    closed = Tombstones()
    closed.add("r", 2, 0.0)
    closed.add("r", 1, 1.0)
    assert [closed.cover("r", epoch, 2.0) for epoch in (1, 2, 3)] == [True, True, False]
    assert not closed.cover("other", 1, 2.0)


def test_a_tombstone_has_its_time() -> None:
    closed = Tombstones()
    closed.add("r", 1, 0.0)
    closed.add("s", 1, 30.0)
    assert closed.cover("r", 1, LIFETIME_S)
    assert not closed.cover("r", 1, LIFETIME_S + 1.0)
    assert closed.cover("s", 1, LIFETIME_S + 1.0)
    assert len(closed) == 1


def test_there_are_only_so_many() -> None:
    closed = Tombstones()
    for number in range(CAPACITY + 10):
        closed.add(f"r{number}", 1, 0.0)
    assert len(closed) == CAPACITY
    assert [closed.cover(f"r{number}", 1, 0.0) for number in (9, 10)] == [False, True]
