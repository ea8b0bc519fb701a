"""KV on its way between a machine and its host's memory.

Law: there is one link out and one link in, and what is copied goes over each in the order in which it was asked for, beside the
iterations and without slowing them. The role is told when the last byte of a sequence is where it was to go.

Source: FastServe, section 4.2; both ways at once and beside the computation, as streams of their own have it.

Invariants: a copy ends no sooner than its bytes take; copies in one direction do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwise.core.worker import commands as c
from spotwise.simulator.world.events import EventQueue


class HostLink:
    """The copies of one machine.

    Args:
        bytes_per_s: each way.
        block_bytes: of a block of KV.
        queue: the clock.
        receive: takes in what happened to the machine.

    Attributes:
        out_bytes, in_bytes: copied to the host, and back.
    """

    def __init__(self, bytes_per_s: float, block_bytes: int, queue: EventQueue, receive: Callable[[Any], None]) -> None:
        self.out_bytes = self.in_bytes = 0
        self._bytes_per_s = bytes_per_s
        self._block_bytes = block_bytes
        self._queue = queue
        self._receive = receive
        self._out_free_s = self._in_free_s = 0.0

    def swap_out(self, command: c.SwapOut) -> None:
        """Copy to the host."""
        num_bytes = len(command.block_ids) * self._block_bytes
        self.out_bytes += num_bytes
        self._out_free_s = self._copied_s(self._out_free_s, num_bytes)
        self._queue.at(self._out_free_s, self._receive, c.Swapped(command.sequence_id))

    def swap_in(self, command: c.SwapIn) -> None:
        """Copy back."""
        num_bytes = len(command.block_ids) * self._block_bytes
        self.in_bytes += num_bytes
        self._in_free_s = self._copied_s(self._in_free_s, num_bytes)
        self._queue.at(self._in_free_s, self._receive, c.Swapped(command.sequence_id))

    def _copied_s(self, free_s: float, num_bytes: int) -> float:
        return max(free_s, self._queue.now) + num_bytes / self._bytes_per_s
