"""Allocates KV blocks first come, first served, and chooses which sequences are preempted for which.

Law: a growing sequence preempts the last arrival behind it.
A prompt preempts, as few as suffice, decodes of lower rank, the lowest first; of equals the last arrival.
Ranks: a prompt's is its wait times `PROMPT_WEIGHT`; a decode's is its age here times (1 + its preemptions).
A victim decodes here, is in no iteration and was preempted fewer than `max_preemptions` times.
The first arrival that runs here is never a prompt's victim; nor, where prompts come first, is a prompt that is being computed.
Source: prompts first on a mixed machine, Splitwise (Patel et al., ISCA 2024), section 4.3.

Law: a growing sequence that lacks a block preempts the last arrival behind it.
A prompt that has waited `preempt_after_s` for its first blocks preempts decodes that it outranks, if they suffice.
A sequence preempted `max_preemptions` times waits for all blocks that it may ever need, and is not preempted again.
Free blocks that waiting sequences need are kept from newcomers; where nothing is held, nothing is kept.
A sequence that would not fit the empty cache alone is refused when ordered.

Source: PagedAttention (Kwon et al., SOSP 2023), section 4.5; prompts before decodes, with ageing and a bound, Splitwise (Patel
et al., ISCA 2024), section 4.3. With `reserve=max_tokens` no sequence grows and none is preempted (Orca, section 4.1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from spotwise.core.worker.kv.allocator import KvAllocator
from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable

#: Seconds of a decode's age that weigh as much as one of a prompt's wait: a decode shows its client progress, and ten seconds
#: of decoding are an answer of common length.
PROMPT_WEIGHT = 10.0


class Victims:
    """Chooses victims."""

    def __init__(self, table: SequenceTable, policy: WorkerPolicy) -> None:
        self._table = table
        self._policy = policy

    def of_growth(self, needy: Sequence) -> Sequence | None:
        """Return the last arrival behind `needy` that may lose its blocks."""
        for sequence in reversed(self._table):
            if sequence is needy:
                return None
            if self._may_lose(sequence):
                return sequence
        raise AssertionError("a sequence that needs blocks is held")

    def of_prompt(self, waited_s: float, now: float, suffices: Callable[[list[str]], bool]) -> list[Sequence]:
        """Return a prompt's victims; none where all together do not suffice. `suffices` takes the ids of candidates."""
        prompt_rank = PROMPT_WEIGHT * waited_s
        ranked = [
            (rank, -place, sequence)
            for place, sequence in enumerate(self._all_but_the_top())
            if self._may_lose(sequence) and (rank := decode_rank(sequence, now)) < prompt_rank
        ]
        ranked.sort(key=lambda entry: entry[:2])
        in_order = [sequence for _, _, sequence in ranked]
        enough = bisect_left(range(len(in_order)), True, key=lambda last: suffices(_ids(in_order[: last + 1])))
        return [] if enough == len(in_order) else _needed(in_order[: enough + 1], suffices)

    def _all_but_the_top(self) -> list[Sequence]:
        return [sequence for sequence in self._table if sequence.is_preemptible][1:]

    def _may_lose(self, sequence: Sequence) -> bool:
        return (
            sequence.is_preemptible
            and sequence.preemptions < self._policy.max_preemptions
            and not sequence.in_iteration
            and not (self._policy.prompts_take_blocks and _is_being_computed(sequence))
        )


def decode_rank(sequence: Sequence, now: float) -> float:
    """Return a decode's rank in seconds."""
    return (now - sequence.arrived_s) * (1 + sequence.preemptions)


def _is_being_computed(sequence: Sequence) -> bool:
    return sequence.in_prompt_phase or not sequence.is_decoding


def _needed(chosen: list[Sequence], suffices: Callable[[list[str]], bool]) -> list[Sequence]:
    """Leave out, the highest rank first, victims that the others make unnecessary."""
    needed = chosen
    for sequence in reversed(chosen):
        others = [victim for victim in needed if victim is not sequence]
        if suffices(_ids(others)):
            needed = others
    return needed


def _ids(sequences: list[Sequence]) -> list[str]:
    return [sequence.sequence_id for sequence in sequences]


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
