"""Which sequence gets KV blocks where sequences run in the order of their arrival, and which one loses its own.

Law: blocks are given on demand, and a sequence that runs out of them takes them from one that came later: that one is
preempted, which frees its blocks, and computed again from its known tokens when there is room. A prompt that waits too long for
its first blocks takes them from sequences that decode (`victims.py` says when, and from whom). Five rules keep sequences from
waiting for one another in a circle:

1. what would not fit the empty cache alone is refused when it is ordered;
2. a strict order of victims: of a growing sequence, the last arrival behind it; of a prompt, who ranks below it, and never the
   first arrival that runs here; equals never preempt one another, nobody takes from itself;
3. nothing is kept of a victim but its tokens, so that a preemption needs no room of its own;
4. after `max_preemptions` a sequence waits until all blocks that it may ever need are free at once, and is no victim any more;
5. a hand-off's blocks are reserved before its prompt is computed, the block of its first token included, under a lease.

Why that ends: the first of the sequences that run here is nobody's victim. It either grows, or waits for holders that need
no more blocks (full reservations, pushes, prompts whose blocks are all there) or that become victims of it or end in a
bounded time (reservations, by their lease). So the first always ends, and then the next one is the first.

Why nobody waits for ever: newcomers leave what waits here its blocks, and are not let in where those are not free. A prompt
that preempts takes what its victims had, and of the free blocks only those that nobody ahead of it waits for; so while
somebody waits, those that hold blocks do not become more, the first of them ends again and again, and what it leaves is
kept. What waits for nothing but blocks is of three kinds, in order of arrival: prompts, which have none before they begin;
preempted sequences; and those that grow. Reservations wait for KV, not for blocks: they have theirs.

Source: on-demand blocks and preemption by recomputation, PagedAttention (Kwon et al., SOSP 2023), section 4.5; prompts before
decodes, with ageing and a bound, Splitwise (Patel et al., ISCA 2024), section 4.3; with `reserve=max_tokens` nobody grows and
nobody is preempted (Orca, section 4.1).

Invariants: a victim has been preempted fewer than `max_preemptions` times; one that takes part in an iteration is never a
victim; where nothing is held, nothing is kept from a newcomer.
"""

from __future__ import annotations

from spotwise.core.request import RequestState
from spotwise.core.worker.kv_allocator import KvAllocator
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.prefix_cache import PrefixCache
from spotwise.core.worker.sequence import Sequence
from spotwise.core.worker.sequence_table import SequenceTable
from spotwise.core.worker.victims import Victims


class FcfsKvAllocator(KvAllocator):
    """Gives blocks first come, first served."""

    def __init__(self, table: SequenceTable, policy: WorkerPolicy, prefixes: PrefixCache) -> None:
        super().__init__(table, policy, prefixes)
        self._is_short = False
        self._preemptions_before = 0
        self._victims = Victims(table, policy)

    def start_round(self, candidates: list[Sequence], now: float) -> None:
        """Begin to give blocks for the next iteration, to the first prompt that waits for its first ones before anybody else.

        Args:
            candidates: who may take part, in order of arrival.
            now: Unix time.
        """
        self._is_short = False
        self._preemptions_before = self.preemptions
        if not self._a_prompt_may_preempt(candidates):
            return
        first = next(place for place, sequence in enumerate(candidates) if _is_new_prompt(sequence))
        has_row = sum(bool(sequence.block_ids) for sequence in candidates[:first]) < self._policy.limits.max_num_seqs
        waited_s = now - candidates[first].arrived_s
        if has_row and waited_s >= self._policy.preempt_after_s:
            self._make_room(candidates[first], candidates[:first], waited_s, now)

    def is_settled(self, candidates: list[Sequence]) -> bool:
        """Tell whether those that have no blocks in this round will have none in the next, with nothing new.

        No prompt among them preempts once it has waited long enough, and nobody finds the room that a preemption just left.
        """
        return self.preemptions == self._preemptions_before and not self._a_prompt_may_preempt(candidates)

    def _a_prompt_may_preempt(self, candidates: list[Sequence]) -> bool:
        """Tell whether one of these is a prompt that takes blocks once it has waited long enough, if it finds them."""
        return self._policy.prompts_take_blocks and any(map(_is_new_prompt, candidates))

    def _make_room(self, prompt: Sequence, ahead: list[Sequence], waited_s: float, now: float) -> None:
        """Preempt for a prompt and give it its blocks, unless it has room beside what those ahead of it wait for."""
        lacking = [max(0, self._entry_blocks(sequence) - len(sequence.block_ids)) for sequence in ahead]
        spare = self._room_to_grow()
        claimed = sum(lacking) + (0 if all(sequence.block_ids for sequence in ahead) else spare)
        kept = min(claimed, self._pool.free_blocks)  # what comes free by preempting is the prompt's
        tokens, reused = self._entry_tokens(prompt), self.prefixes.reusable_blocks(prompt)

        def has_room(given_up: list[str]) -> bool:
            return self._pool.can_allocate(tokens, reused, kept + (spare if prompt.decodes_here else 0), given_up)

        if has_room([]):
            return
        victims = self._victims.of_prompt(waited_s, now, has_room)
        for victim in victims:
            self._preempt(victim, now)
        if victims:
            self._table.allocate(prompt, tokens, reused)

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

    def grow(self, sequence: Sequence, now: float) -> bool:
        """See to it that a sequence has blocks for all its known tokens; tell whether it has."""
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


def _is_new_prompt(sequence: Sequence) -> bool:
    """Tell whether a sequence waits for its first blocks."""
    return not sequence.block_ids and sequence.state is RequestState.WAITING
