"""What all ways of giving sequences KV blocks have in common.

Law: blocks are given on demand or all at once (`Reserve`). A sequence that loses its blocks and is not swapped out is computed
again from its known tokens when there is room. Whose turn it is to get blocks, and who gives them up, differs:
`arrival_memory.py` where sequences run in the order of their arrival, `ranked_memory.py` where that order changes.

Source: on-demand blocks and preemption by recomputation, PagedAttention (Kwon et al., SOSP 2023), section 4.5.

Invariants: whoever takes part in an iteration has blocks for all its known tokens; nothing is kept of a preempted sequence but
its tokens.
"""

from __future__ import annotations

import abc
import math

from spotwise.core.request import RequestEvent
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.prefix_cache import PrefixCache
from spotwise.core.worker.sequence import Sequence
from spotwise.core.worker.sequence_table import SequenceTable


class KvAllocator(abc.ABC):
    """Gives blocks to sequences and takes them back.

    Attributes:
        preemptions: how many there were since the start.
        prefixes: blocks that are computed already.
    """

    def __init__(self, table: SequenceTable, policy: WorkerPolicy, prefixes: PrefixCache) -> None:
        self.preemptions = 0
        self.prefixes = prefixes
        self._table = table
        self._pool = table.pool
        self._policy = policy
        grows = policy.reserve is Reserve.ON_DEMAND
        self._watermark_blocks = math.ceil(policy.watermark * self._pool.num_blocks) if grows else 0

    # --- newcomers ----------------------------------------------------------------------------------------------------

    def reservation_tokens(self, kv_tokens: int, max_new_tokens: int) -> int:
        """Return for how many tokens a reservation takes blocks, of `kv_tokens` at most, `max_new_tokens` of them new."""
        ahead = self._policy.reserved_new_tokens
        return kv_tokens if ahead is None else kv_tokens - max_new_tokens + min(max_new_tokens, ahead)

    def reservation_refusal(self, kv_tokens: int, max_new_tokens: int, now: float) -> str | None:
        """Say why there is no room for a reservation now, or return `None`."""
        pool = self._pool
        if reason := pool.never_fits(kv_tokens):
            return reason
        asked, kept = pool.blocks_for(self.reservation_tokens(kv_tokens, max_new_tokens)), self.kept_blocks()
        if asked + kept > pool.free_blocks:
            return f"{asked} blocks asked, {pool.free_blocks} free" + (f", {kept} of them kept" if kept else "")
        return None

    def kept_blocks(self) -> int:
        """Count the free blocks that a newcomer must leave: for those that wait here, and for those that grow."""
        waiting = [sequence for sequence in self._table if not sequence.block_ids and sequence.waits_for_blocks]
        return sum(map(self._entry_blocks, waiting)) + self._room_to_grow()

    def blocks_for_newcomers(self) -> int:
        """Count the blocks that a newcomer may have, but for the kept ones."""
        return self._pool.free_blocks

    # --- those that are here ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def start_round(self, candidates: list[Sequence], now: float) -> None:
        """Begin to give blocks for the next iteration.

        Args:
            candidates: who may take part, in the order in which they are to run.
            now: Unix time.
        """

    @abc.abstractmethod
    def can_admit(self, sequence: Sequence, reused: tuple[int, ...]) -> bool:
        """Tell whether a sequence has blocks, or can have those for its known tokens, `reused` the first of them."""

    @abc.abstractmethod
    def grow(self, sequence: Sequence, now: float) -> bool:
        """See to it that a sequence has blocks for all its known tokens; tell whether it has."""

    def end_round(self) -> None:  # noqa: B027 - nothing is to be done, by default
        """See to what comes later, once the next iteration is made."""

    def is_settled(self, candidates: list[Sequence]) -> bool:
        """Tell whether those that have no blocks in this round will have none in the next, with nothing new."""
        return False

    def admit(self, sequence: Sequence, reused: tuple[int, ...]) -> None:
        """Let a prompt, or the next part of one, be computed in its blocks; ask `can_admit` first."""
        if not sequence.block_ids:
            self._table.allocate(sequence, self._entry_tokens(sequence), reused)
        if reused:
            sequence.entered_blocks = len(reused)
            sequence.computed_tokens = len(reused) * self._pool.block_size

    def all_can_decode(self, candidates: list[Sequence], max_num_seqs: int) -> bool:
        """Tell whether all of these decode, and nobody stands back: there are rows, and those that need a block get one."""
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
        """Tokens for which a sequence has blocks from its start on."""
        ever = self._policy.reserve is Reserve.MAX_TOKENS or sequence.preemptions >= self._policy.max_preemptions
        return sequence.known_tokens + (sequence.remaining_tokens_here if ever else 0)

    def _entry_blocks(self, sequence: Sequence) -> int:
        return self._pool.blocks_for(self._entry_tokens(sequence))

    def _room_to_grow(self) -> int:
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
