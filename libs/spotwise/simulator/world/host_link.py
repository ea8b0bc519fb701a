"""KV copies between a machine and its host's memory: one queue each way (FastServe, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwise.core.worker import commands as c
from spotwise.simulator.world.events import EventQueue


class HostLink:
    """The copies of one machine.

    Attributes:
        out_bytes, in_bytes: swapped out and in.

    Args:
        bytes_per_s: each way.
        block_bytes: bytes of a block of KV.
        queue: the clock.
        receive: handles the machine's events.
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
