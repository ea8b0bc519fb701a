"""Which sequence gets KV blocks, and which one loses its own.

Law: blocks are given on demand, and a sequence that runs out of them takes them from one that came later: that one is
preempted, which frees its blocks, and computed again from its known tokens when there is room. Five rules keep sequences from
waiting for one another in a circle:

1. what would not fit the empty cache alone is refused at its reservation;
2. victims are taken from the last arrival on, and only from behind who needs the block: the first is never a victim, nobody
   takes from itself;
3. nothing is kept of a victim but its tokens, so that a preemption needs no room of its own;
4. after `max_preemptions` a sequence waits until all blocks that it may ever need are free at once, and is no victim any more;
5. a hand-off's blocks are reserved before its prompt is computed, the block of its first token included, under a lease.

Why that ends: the first of the sequences that hold blocks either grows, or waits for holders that need no more blocks (full
reservations, pushes) or that become victims of it or end in a bounded time (reservations, by their lease). Newcomers leave
what waits here its blocks, so they cannot keep it waiting.

Source: on-demand blocks and preemption by recomputation, PagedAttention (Kwon et al., SOSP 2023), section 4.5; with
`reserve=max_tokens` nobody grows and nobody is preempted (Orca, section 4.1).

Invariants: a victim has been preempted fewer than `max_preemptions` times; one that takes part in an iteration is never a
victim; where nothing is held, nothing is kept from a newcomer.
"""

from __future__ import annotations

import math

from spotwise.core.request import RequestEvent
from spotwise.core.worker.holdings import Holdings
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.prefix_cache import PrefixCache
from spotwise.core.worker.sequence import Sequence


class Memory:
    """Gives blocks to sequences and takes them back.

    Attributes:
        preemptions: how many there were since the start.
        prefixes: blocks that are computed already.
    """

    def __init__(self, holdings: Holdings, policy: WorkerPolicy) -> None:
        self.preemptions = 0
        self.prefixes = PrefixCache(holdings, enabled=policy.prefix_caching)
        self._holdings = holdings
        self._pool = holdings.pool
        self._policy = policy
        grows = policy.reserve is Reserve.ON_DEMAND
        self._watermark_blocks = math.ceil(policy.watermark * self._pool.num_blocks) if grows else 0
        self._is_short = False

    # --- newcomers ----------------------------------------------------------------------------------------------------

    def reservation_tokens(self, kv_tokens: int, owed_tokens: int) -> int:
        """Return for how many tokens a reservation takes blocks, of `kv_tokens` at most, `owed_tokens` of them new."""
        ahead = self._policy.reserved_new_tokens
        return kv_tokens if ahead is None else kv_tokens - owed_tokens + min(owed_tokens, ahead)

    def reservation_refusal(self, kv_tokens: int, owed_tokens: int) -> str | None:
        """Say why there is no room for a reservation now, or return `None`."""
        pool = self._pool
        if not pool.could_ever_fit(kv_tokens):
            return f"{pool.blocks_for(kv_tokens)} blocks may be needed, there are {pool.num_blocks}"
        asked, kept = pool.blocks_for(self.reservation_tokens(kv_tokens, owed_tokens)), self.kept_blocks()
        if asked + kept > pool.free_blocks:
            return f"{asked} blocks asked, {pool.free_blocks} free" + (f", {kept} of them kept" if kept else "")
        return None

    def kept_blocks(self) -> int:
        """Count the free blocks that a newcomer must leave: for those that wait here, and for those that grow."""
        waiting = sum(self._entry_blocks(sequence) for sequence in self._holdings if sequence.waits_for_blocks)
        return waiting + self._room_to_grow()

    # --- those that are here ------------------------------------------------------------------------------------------

    def start_round(self) -> None:
        """Begin to give blocks for the next iteration, in order of arrival."""
        self._is_short = False

    def can_admit(self, sequence: Sequence, reused: tuple[int, ...]) -> bool:
        """Tell whether a sequence has blocks, or can have those for its known tokens, `reused` the first of them.

        Where it cannot, no later one without blocks gets any in this round.
        """
        if sequence.block_ids:
            return True
        spare = self._room_to_grow() if sequence.decodes_here else 0
        if not self._pool.can_allocate(self._entry_tokens(sequence), reused, spare):
            self._is_short = True
        return not self._is_short

    def admit(self, sequence: Sequence, reused: tuple[int, ...]) -> None:
        """Let a prompt, or the next part of one, be computed in its blocks; ask `can_admit` first."""
        if not sequence.block_ids:
            self._holdings.allocate(sequence, self._entry_tokens(sequence), reused)
        elif reused:
            self._holdings.reuse(sequence, reused)
        if reused:
            sequence.entered_blocks = len(reused)
            sequence.computed_tokens = len(reused) * self._pool.block_size

    def grow(self, sequence: Sequence, now: float) -> bool:
        """See to it that a sequence has blocks for all its known tokens; tell whether it has."""
        if self._pool.blocks_for(sequence.known_tokens) <= len(sequence.block_ids):
            return True
        while not self._pool.can_extend(sequence.sequence_id, sequence.known_tokens):
            self._is_short = True
            victim = self._victim(sequence)
            if victim is None:
                return False
            self._preempt(victim, now)
        self._holdings.extend(sequence, sequence.known_tokens)
        return True

    def _entry_tokens(self, sequence: Sequence) -> int:
        """Tokens for which a sequence has blocks from its start on."""
        ever = sequence.preemptions >= self._policy.max_preemptions
        return sequence.known_tokens + (sequence.tokens_to_come if ever else 0)

    def _entry_blocks(self, sequence: Sequence) -> int:
        return self._pool.blocks_for(self._entry_tokens(sequence))

    def _room_to_grow(self) -> int:
        return self._watermark_blocks if self._pool.used_blocks else 0

    def _victim(self, needy: Sequence) -> Sequence | None:
        """Return the last arrival behind `needy` that may lose its blocks."""
        for sequence in reversed(self._holdings):
            if sequence is needy:
                return None
            may_lose = sequence.is_preemptible and sequence.preemptions < self._policy.max_preemptions
            if may_lose and not self._holdings.in_iteration(sequence):
                return sequence
        raise AssertionError("who needs blocks is held")

    def _preempt(self, victim: Sequence, now: float) -> None:
        self.preemptions += 1
        victim.preemptions += 1
        victim.advance(RequestEvent.PREEMPTED)
        self._holdings.record(
            victim, "preempted", now, computed_tokens=victim.computed_tokens, preemptions=victim.preemptions
        )
        victim.computed_tokens = victim.entered_blocks = 0
        self._holdings.take_blocks(victim)
