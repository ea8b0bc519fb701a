"""Swaps KV between device and host memory.

Law: a swap's source stays allocated until it has been read, and the sequence is in no iteration meanwhile.
Only computed KV moves, and only full blocks that the other side does not hold already.
A prompt whose beginning is on the host and not on the device has it fetched before it is computed.
After a failed swap the KV is where it was, or lost and computed again; that sequence is not swapped any more.
Source: proactive swapping beside the computation, FastServe (Wu et al., 2023), section 4.2.
"""

from __future__ import annotations

from spotwise.core.kv.blocks import BlockPool
from spotwise.core.requests.request import RequestEvent
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.sequences.sequence import KvPlace, Sequence
from spotwise.core.worker.sequences.table import SequenceTable


class Swaps:
    """Begins and ends swaps; `swapped_out` and `swapped_in` count blocks copied since the start."""

    def __init__(self, table: SequenceTable, host: BlockPool, prefixes: PrefixCache) -> None:
        self.swapped_out = 0
        self.swapped_in = 0
        self._table = table
        self._pool = table.pool
        self._host = host
        self._prefixes = prefixes

    @property
    def free_blocks(self) -> int:
        """Blocks of the host without an owner."""
        return self._host.free_blocks

    @property
    def leaving_blocks(self) -> int:
        """Blocks of the device that come free when the swaps in flight end."""
        leaving = [s.sequence_id for s in self._table if s.kv_place is KvPlace.LEAVING]
        return self._pool.freed_blocks(leaving) if leaving else 0

    def can_swap_out(self, sequence: Sequence) -> bool:
        """Tell whether a sequence's KV may be swapped out, and the host has free blocks for it."""
        return not sequence.swap_failed and self._host.can_allocate(
            sequence.computed_tokens, self._found_on_host(sequence)
        )

    def leave(self, sequence: Sequence, now: float) -> None:
        """Swap a sequence out; check `can_swap_out` first."""
        found = self._found_on_host(sequence)
        tokens = sequence.computed_tokens
        sequence.host_block_ids = self._host.allocate(sequence.sequence_id, tokens, found)
        blocks = len(sequence.host_block_ids)
        sequence.kv_place = KvPlace.LEAVING
        sequence.advance(RequestEvent.PREEMPTED)
        self._table.record(sequence, "swapped_out", now, blocks=blocks - len(found), known_blocks=len(found))
        self.swapped_out += blocks - len(found)
        source, place = sequence.block_ids[len(found) : blocks], sequence.host_block_ids[len(found) :]
        self._table.emit(c.SwapOut(sequence.sequence_id, source, place))

    def come_back(self, sequence: Sequence, tokens: int, now: float) -> None:
        """Swap a sequence in, into the first of its blocks for `tokens` tokens; check the pool first."""
        found = self.found_on_device(sequence)
        self._table.allocate(sequence, tokens, found)
        blocks = len(sequence.host_block_ids)
        sequence.kv_place = KvPlace.RETURNING
        self._table.record(sequence, "swapped_in", now, blocks=blocks - len(found), known_blocks=len(found))
        self.swapped_in += blocks - len(found)
        source, place = sequence.host_block_ids[len(found) :], sequence.block_ids[len(found) : blocks]
        self._table.emit(c.SwapIn(sequence.sequence_id, source, place))

    def fetch(
        self, sequence: Sequence, tokens: int, reused: tuple[int, ...], fetched: tuple[int, ...], now: float
    ) -> None:
        """Allocate for `tokens` tokens and fetch host blocks that follow the `reused` device blocks; check the pool first."""
        self._table.allocate(sequence, tokens, reused)
        size = self._host.block_size
        sequence.host_block_ids = self._host.allocate(sequence.sequence_id, len(fetched) * size, fetched)
        sequence.kv_place = KvPlace.FETCHED
        self._table.record(sequence, "prefix_fetched", now, blocks=len(fetched), known_blocks=len(reused))
        self.swapped_in += len(fetched)
        place = sequence.block_ids[len(reused) : len(reused) + len(fetched)]
        self._table.emit(c.SwapIn(sequence.sequence_id, sequence.host_block_ids, place))

    def found_on_device(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the first blocks of a sequence's swapped KV that the device holds as well."""
        return self._pool.find(self._prefixes.full_contents(sequence))

    def _found_on_host(self, sequence: Sequence) -> tuple[int, ...]:
        return self._host.find(self._prefixes.full_contents(sequence))

    def swapped(self, event: c.Swapped, now: float) -> None:
        """Free the source of a swap."""
        ended = self._table.swap_ended(event.sequence_id)
        if ended is None:
            return
        sequence, moved = ended
        if moved is KvPlace.LEAVING:
            sequence.kv_place = KvPlace.HOST
            for index, content in enumerate(self._prefixes.full_contents(sequence)):
                self._host.remember(sequence.sequence_id, index, content)
            self._table.take_blocks(sequence)
            sequence.entered_blocks = 0
        elif moved is KvPlace.RETURNING:
            self._give_host_blocks_back(sequence)
            self._prefixes.enter_computed(sequence)
            sequence.advance(RequestEvent.RESUMED)
        else:
            there = sequence.reused_blocks
            sequence.reused_blocks += len(sequence.host_block_ids)
            self._prefixes.enter_fetched(sequence, there, sequence.reused_blocks)
            self._give_host_blocks_back(sequence)

    def swap_failed(self, event: c.SwapFailed, now: float) -> None:
        """Continue with the KV on the device, or with none."""
        ended = self._table.swap_ended(event.sequence_id)
        if ended is None:
            return
        sequence, moved = ended
        sequence.swap_failed = True
        self._table.record(sequence, "swap_failed", now, reason=event.reason)
        self._give_host_blocks_back(sequence)
        if moved is KvPlace.LEAVING:
            sequence.advance(RequestEvent.RESUMED)
        else:
            self._table.take_blocks(sequence)
            sequence.computed_tokens = sequence.entered_blocks = 0

    def _give_host_blocks_back(self, sequence: Sequence) -> None:
        self._host.free(sequence.sequence_id)
        sequence.host_block_ids = ()
