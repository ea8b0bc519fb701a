"""KV between a machine and its host's memory: 100 bytes a block, 1,000 bytes a second."""

from __future__ import annotations

from typing import Any

import pytest

from spotwise.core.worker import commands as c
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.network import HostLink


class Host:
    """A link, and the times of its reports."""

    def __init__(self) -> None:
        self.queue = EventQueue()
        self.reported: list[tuple[str, float]] = []
        self.link = HostLink(1000.0, 100, self.queue, self._report)

    def _report(self, event: Any) -> None:
        assert isinstance(event, c.Swapped)
        self.reported.append((event.sequence_id, round(self.queue.now, 9)))

    def out(self, sequence_id: str, blocks: int) -> None:
        self.link.swap_out(c.SwapOut(sequence_id, (0,) * blocks, (0,) * blocks))

    def back(self, sequence_id: str, blocks: int) -> None:
        self.link.swap_in(c.SwapIn(sequence_id, (0,) * blocks, (0,) * blocks))


def test_a_copy_takes_what_its_bytes_take() -> None:
    """A copy is reported once its bytes are through."""
    host = Host()
    host.out("a", 20)
    host.queue.run()
    assert host.reported == [("a", 2.0)]
    assert (host.link.out_bytes, host.link.in_bytes) == (2000, 0)


def test_copies_of_one_direction_follow_one_another() -> None:
    """Copies of one direction run one after another, in the order of their requests."""
    host = Host()
    host.out("a", 10)
    host.out("b", 5)
    host.queue.run()
    assert host.reported == [("a", 1.0), ("b", 1.5)]


def test_both_directions_go_at_once() -> None:
    host = Host()
    host.out("a", 10)
    host.back("b", 5)
    host.queue.run()
    assert host.reported == [("b", 0.5), ("a", 1.0)]
    assert (host.link.out_bytes, host.link.in_bytes) == (1000, 500)


def test_a_link_that_has_been_idle_begins_at_once() -> None:
    """A copy on an idle link begins at its request, not when the last copy ended."""
    host = Host()
    host.out("a", 10)
    host.queue.at(5.0, lambda _: host.out("b", 10))
    host.queue.run()
    assert host.reported == [("a", 1.0), ("b", pytest.approx(6.0))]
