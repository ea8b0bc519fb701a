"""Performs a worker role's moves of KV between the device and the host's memory.

Law: each move is asked of the engine at once and told to the role when it has ended, well or not; what it means is the role's
to say (`core.worker.swaps`).
"""

from __future__ import annotations

from collections.abc import Callable

from spotwise.core.worker.commands import SwapFailed, SwapIn, SwapOut, Swapped
from spotwise.worker.worker_engine import WorkerEngine


class KvSwaps:
    """The moves of one worker.

    Args:
        engine: it copies.
        feed: takes what the role is told.
        on_room: called when blocks of the device have come free by that.
    """

    def __init__(
        self, engine: WorkerEngine, feed: Callable[[Swapped | SwapFailed], None], on_room: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._feed = feed
        self._on_room = on_room

    def swap_out(self, command: SwapOut) -> None:
        """Let KV go to the host."""

        def ended(error: Exception | None) -> None:
            self._tell(command.sequence_id, error)
            if error is None:
                self._on_room()

        self._engine.swap_out(command.block_ids, command.host_block_ids, ended)

    def swap_in(self, command: SwapIn) -> None:
        """Let KV come back."""
        self._engine.swap_in(
            command.host_block_ids, command.block_ids, lambda error: self._tell(command.sequence_id, error)
        )

    def _tell(self, sequence_id: str, error: Exception | None) -> None:
        if error is None:
            self._feed(Swapped(sequence_id))
        else:
            self._feed(SwapFailed(sequence_id, f"{type(error).__name__}: {error}"))
