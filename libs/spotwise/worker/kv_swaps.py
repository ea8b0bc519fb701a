"""Performs a worker role's KV swaps between device and host memory, and feeds their ends to the role."""

from __future__ import annotations

from collections.abc import Callable

from spotwise.core.worker.commands import SwapFailed, SwapIn, SwapOut, Swapped
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.worker_engine import WorkerEngine


class KvSwaps:
    """The swaps of one worker; `feed` feeds an event to the role, `on_blocks_freed` runs after a swap to the host."""

    def __init__(
        self,
        engine: WorkerEngine,
        watch: EngineWatch,
        feed: Callable[[Swapped | SwapFailed], None],
        on_blocks_freed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._feed = feed
        self._on_blocks_freed = on_blocks_freed

    def swap_out(self, command: SwapOut) -> None:
        """Copy KV to the host."""

        def ended(error: Exception | None) -> None:
            self._ended(command.sequence_id, error)
            if error is None:
                self._on_blocks_freed()

        self._watch.swap_began()
        self._engine.swap_out(command.block_ids, command.host_block_ids, ended)

    def swap_in(self, command: SwapIn) -> None:
        """Copy KV back to the device."""
        self._watch.swap_began()
        self._engine.swap_in(
            command.host_block_ids, command.block_ids, lambda error: self._ended(command.sequence_id, error)
        )

    def _ended(self, sequence_id: str, error: Exception | None) -> None:
        self._watch.swap_ended()
        if error is None:
            self._feed(Swapped(sequence_id))
        else:
            self._feed(SwapFailed(sequence_id, f"{type(error).__name__}: {error}"))
