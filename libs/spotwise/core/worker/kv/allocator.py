"""Common parts of the KV block allocators.

Law: blocks are allocated on demand or all at once (`Reserve`).
A sequence in an iteration has blocks for all its known tokens.
A preempted sequence that is not swapped out keeps its tokens only, and is computed again when blocks are free.
Which sequence gets blocks first, and which is preempted, is up to `FcfsKvAllocator` and `PreemptiveKvAllocator`.
Source: on-demand blocks and preemption by recomputation, PagedAttention (Kwon et al., SOSP 2023), section 4.5.
"""

from __future__ import annotations

import abc

from spotwise.core.requests.request import RequestEvent
from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.scheduling.policy import NewSequence
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable


class KvAllocator(abc.ABC):
    """Allocates blocks to sequences, and preempts sequences for them; `preemptions` counts these since the start."""

    def __init__(self, table: SequenceTable, policy: WorkerPolicy, prefixes: PrefixCache) -> None:
        self.preemptions = 0
        self.prefixes = prefixes
        self._table = table
        self._pool = table.pool
        self._policy = policy
        self._watermark_blocks = policy.watermark_blocks(self._pool.num_blocks)

    def reservation_tokens(self, kv_tokens: int, max_new_tokens: int) -> int:
        """Return for how many tokens a reservation takes blocks, of `kv_tokens` at most, `max_new_tokens` of them new."""
        return self._policy.reservation_tokens(kv_tokens, max_new_tokens)

    def reservation_refusal(self, kv_tokens: int, max_new_tokens: int, now: float, newcomer: NewSequence) -> str | None:
        """Return why a newcomer's reservation finds no blocks now; `None` where it does."""
        pool = self._pool
        if reason := pool.never_fits(kv_tokens):
            return reason
        requested, kept = (
            pool.blocks_for(self.reservation_tokens(kv_tokens, max_new_tokens)),
            self.kept_blocks(newcomer),
        )
        if requested + kept > pool.free_blocks:
            return f"{requested} blocks needed, {pool.free_blocks} free" + (f", {kept} of them kept" if kept else "")
        return None

    def kept_blocks(self, newcomer: NewSequence | None = None) -> int:
        """Count the free blocks kept from newcomers, or from this one: for sequences that wait here, and for growth."""
        waiting = [sequence for sequence in self._table.without_blocks if sequence.waits_for_blocks]
        return sum(map(self._entry_blocks, waiting)) + self._growth_blocks()

    def blocks_for_newcomers(self) -> int:
        """Count the blocks that newcomers could get, kept ones included."""
        return self._pool.free_blocks

    @abc.abstractmethod
    def begin_step(self, candidates: list[Sequence], now: float) -> None:
        """Begin to allocate for the next iteration, to `candidates` in scheduling order."""

    @abc.abstractmethod
    def can_admit(self, sequence: Sequence, reused: tuple[int, ...]) -> bool:
        """Tell whether a sequence has blocks, or can get those for its known tokens, `reused` the first of them."""

    @abc.abstractmethod
    def grow(self, sequence: Sequence, now: float) -> bool:
        """Allocate what a sequence lacks for its known tokens; tell whether it lacks nothing now."""

    def bring_back(self, sequence: Sequence, now: float) -> bool:
        """Swap a sequence in, whose KV is on the host, where its blocks are free now; tell whether it returns."""
        return False

    def end_step(self) -> None:  # noqa: B027 - FCFS does nothing here
        """Prepare later iterations, once the next one is made."""

    def admit(self, sequence: Sequence, reused: tuple[int, ...]) -> None:
        """Allocate for a prompt, or the next part of one, that is about to be computed; check `can_admit` first."""
        if not sequence.block_ids:
            self._table.allocate(sequence, self._entry_tokens(sequence), reused)
        if reused:
            sequence.entered_blocks = len(reused)
            sequence.computed_tokens = len(reused) * self._pool.block_size

    def all_can_decode(self, candidates: list[Sequence], max_num_seqs: int) -> bool:
        """Tell whether all of these decode and find a row and blocks; if so, allocate these."""
        if len(candidates) > max_num_seqs:
            return False
        size = self._pool.block_size
        needy = []
        for sequence in candidates:
            if sequence.known_tokens - sequence.computed_tokens != 1 or not sequence.computed_tokens:
                return False
            if sequence.known_tokens > size * len(sequence.block_ids):
                needy.append(sequence)
        if len(needy) > self._pool.free_blocks:
            return False
        for sequence in needy:
            self._table.extend(sequence, sequence.known_tokens)
        return True

    def _entry_tokens(self, sequence: Sequence) -> int:
        ever = self._policy.reserve is Reserve.MAX_TOKENS or sequence.preemptions >= self._policy.max_preemptions
        return sequence.known_tokens + (sequence.remaining_tokens_here if ever else 0)

    def _entry_blocks(self, sequence: Sequence) -> int:
        return self._pool.blocks_for(self._entry_tokens(sequence))

    def _growth_blocks(self) -> int:
        return self._watermark_blocks if self._pool.used_blocks else 0

    def _preempt(self, victim: Sequence, now: float) -> None:
        self.preemptions += 1
        victim.preemptions += 1
        victim.advance(RequestEvent.PREEMPTED)
        self._table.record(
            victim, "preempted", now, computed_tokens=victim.computed_tokens, preemptions=victim.preemptions
        )
        victim.computed_tokens = victim.entered_blocks = 0
        self._table.take_blocks(victim)
