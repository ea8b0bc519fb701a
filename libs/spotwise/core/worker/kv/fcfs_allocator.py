"""Allocates KV blocks first come, first served.

Law: a growing sequence that lacks a block preempts the last arrival behind it (`victims.py`).
A prompt that has waited `preempt_after_s` for its first blocks preempts decodes that it outranks, if they suffice.
A sequence preempted `max_preemptions` times waits for all blocks that it may ever need, and is not preempted again.
Free blocks that waiting sequences need are kept from newcomers; where nothing is held, nothing is kept.
What would not fit the empty cache alone is refused when ordered.
Source: PagedAttention (Kwon et al., SOSP 2023), section 4.5; prompts before decodes, with ageing and a bound, Splitwise (Patel
et al., ISCA 2024), section 4.3. With `reserve=max_tokens` no sequence grows and none is preempted (Orca, section 4.1).
"""

from __future__ import annotations

from spotwise.core.worker.kv.allocator import KvAllocator
from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.kv.victims import Victims
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable


class FcfsKvAllocator(KvAllocator):
    """Allocates blocks in order of arrival."""

    def __init__(self, table: SequenceTable, policy: WorkerPolicy, prefixes: PrefixCache) -> None:
        super().__init__(table, policy, prefixes)
        self._is_short = False
        self._victims = Victims(table, policy)

    def begin_step(self, candidates: list[Sequence], now: float) -> None:
        """Begin to allocate for the next iteration; the first prompt without blocks may preempt for its own."""
        self._is_short = False
        if not self._policy.prompts_take_blocks:
            return
        first = next((place for place, sequence in enumerate(candidates) if sequence.is_new_prompt), None)
        if first is None:
            return
        has_row = sum(bool(sequence.block_ids) for sequence in candidates[:first]) < self._policy.limits.max_num_seqs
        waited_s = now - candidates[first].arrived_s
        if has_row and waited_s >= self._policy.preempt_after_s:
            self._preempt_for(candidates[first], candidates[:first], waited_s, now)

    def _preempt_for(self, prompt: Sequence, ahead: list[Sequence], waited_s: float, now: float) -> None:
        """Preempt for a prompt and allocate its blocks, unless enough are free beside what sequences ahead lack."""
        lacking = [max(0, self._entry_blocks(sequence) - len(sequence.block_ids)) for sequence in ahead]
        spare = self._growth_blocks()
        claimed = sum(lacking) + (0 if all(sequence.block_ids for sequence in ahead) else spare)
        kept = min(claimed, self._pool.free_blocks)  # what preempting frees is the prompt's
        tokens, reused = self._entry_tokens(prompt), self.prefixes.reusable_blocks(prompt)

        def is_enough(given_up: list[str]) -> bool:
            return self._pool.can_allocate(tokens, reused, kept + (spare if prompt.decodes_here else 0), given_up)

        if is_enough([]):
            return
        victims = self._victims.of_prompt(waited_s, now, is_enough)
        for victim in victims:
            self._preempt(victim, now)
        if victims:
            self._table.allocate(prompt, tokens, reused)

    def can_admit(self, sequence: Sequence, reused: tuple[int, ...]) -> bool:
        """Tell whether a sequence has or can get its blocks; if not, no later one gets first blocks in this step."""
        if sequence.block_ids:
            return True
        spare = self._growth_blocks() if sequence.decodes_here else 0
        if not self._pool.can_allocate(self._entry_tokens(sequence), reused, spare):
            self._is_short = True
        return not self._is_short

    def grow(self, sequence: Sequence, now: float) -> bool:
        """Allocate what a sequence lacks for its known tokens; tell whether it lacks nothing now."""
        if sequence.known_tokens <= self._pool.block_size * len(sequence.block_ids):
            return True
        while not self._pool.can_extend(sequence.sequence_id, sequence.known_tokens):
            self._is_short = True
            victim = self._victims.of_growth(sequence)
            if victim is None:
                return False
            self._preempt(victim, now)
        self._table.extend(sequence, sequence.known_tokens)
        return True
