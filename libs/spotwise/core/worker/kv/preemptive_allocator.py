"""Allocates KV blocks in an order of sequences that may change with every iteration, or with KV that is swapped.

Law: a scheduling policy orders once per step; expected runs (ENST) are estimated at most once, and only when needed.
Source: FastServe (Wu et al., 2023), section 4.2.

Law: a sequence that finds no free block claims the next ones before any sequence behind it.
Sequences behind it that have run since their last allocation give up blocks, the last to run (ENST) first.
Victims are swapped out or, where `when_full` has it so or the host is full, recomputed; none is where all do not suffice.
A sequence recomputed `max_preemptions` times gets blocks for all that it may ever need, and keeps them.
For a refused reservation, sequences that yield to its newcomer free blocks for `RESERVATION_RETRY_S`.
Free blocks that a sequence lacks are kept from newcomers that it comes before.

Source: FastServe (Wu et al., 2023), section 4.2; blocks on demand, PagedAttention (Kwon et al., SOSP 2023), section 4.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spotwise.core.kv.swap import WhenFull
from spotwise.core.requests.request import RequestState
from spotwise.core.worker.kv.allocator import KvAllocator
from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.kv.swaps import Swaps
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.scheduling.policy import NewSequence, SchedulingPolicy
from spotwise.core.worker.sequences.sequence import KvPlace, Sequence
from spotwise.core.worker.sequences.table import SequenceTable


class SchedulingStep:
    """One order, as the scheduling policy made it at Unix time `now`."""

    def __init__(self, order: SchedulingPolicy, sequences: list[Sequence], now: float) -> None:
        self.sequences = sequences
        self.now = now
        self._order = order
        self._places: dict[str, int] = {}
        self._next_runs_s: list[float] = []

    def comes_before(self, sequence: Sequence, newcomer: NewSequence | None) -> bool:
        """Tell whether it comes before this newcomer, or where none is given before any."""
        return self._order.comes_before(sequence, newcomer, self.now)

    def yields_to(self, sequence: Sequence, newcomer: NewSequence | None = None) -> bool:
        """Tell whether this newcomer, or some one, is expected to come before it."""
        return self._order.yields_to(sequence, newcomer, self.now)

    def behind(self, sequence: Sequence) -> list[Sequence]:
        """Return the sequences after it."""
        return self.sequences[self._place_of(sequence) + 1 :]

    def last_to_run(
        self, idle: Iterable[Sequence], blocks_of: Callable[[Sequence], int], lacking: int
    ) -> tuple[list[Sequence], int]:
        """Return the last to run that together free the lacking blocks, or all, and how many they free.

        Of equals the last in `idle` comes first; sequences that free nothing, since all their blocks are shared, are skipped.
        """
        chosen: list[Sequence] = []
        freed = 0
        for _, sequence in sorted(
            enumerate(idle), key=lambda entry: (self._next_run_s(entry[1]), entry[0]), reverse=True
        ):
            if freed >= lacking:
                break
            if blocks := blocks_of(sequence):
                chosen.append(sequence)
                freed += blocks
        return chosen, freed

    def first_to_run(
        self, away: Iterable[Sequence], blocks_of: Callable[[Sequence], int], spare: int
    ) -> list[Sequence]:
        """Return the first to run whose KV fits into so many blocks, up to the first that does not fit."""
        chosen: list[Sequence] = []
        for sequence in sorted(away, key=self._next_run_s):
            spare -= blocks_of(sequence)
            if spare < 0:
                break
            chosen.append(sequence)
        return chosen

    def _next_run_s(self, sequence: Sequence) -> float:
        if not self._next_runs_s:
            self._next_runs_s = self._order.next_runs_s(self.sequences, self.now)
        return self._next_runs_s[self._place_of(sequence)]

    def _place_of(self, sequence: Sequence) -> int:
        if not self._places:
            self._places = {each.sequence_id: place for place, each in enumerate(self.sequences)}
        return self._places[sequence.sequence_id]


#: Seconds for which blocks are freed for a refused reservation: the scheduler retries with a heartbeat, if at all.
RESERVATION_RETRY_S = 1.0
#: Weight of the newest newcomer in the average of their blocks.
_NEWEST = 0.1
#: Batches of sequences whose KV is swapped in before their turn.
_BATCHES_AHEAD = 2


class PreemptiveKvAllocator(KvAllocator):
    """Allocates blocks in scheduling order; `swaps` is `None` where KV is not swapped."""

    def __init__(
        self,
        table: SequenceTable,
        policy: WorkerPolicy,
        prefixes: PrefixCache,
        order: SchedulingPolicy,
        swaps: Swaps | None,
    ) -> None:
        super().__init__(table, policy, prefixes)
        self._order = order
        self._swaps = swaps
        self._when_full = policy.swap.when_full
        self._step = SchedulingStep(order, [], 0.0)
        self._claimed_blocks = 0
        self._lacking_blocks: list[tuple[Sequence, int]] = []
        self._is_closed = False
        self._slot_blocks = 0.0
        self._requested_blocks, self._requested_until_s = 0, 0.0
        self._requester: NewSequence | None = None

    def reservation_refusal(self, kv_tokens: int, max_new_tokens: int, now: float, newcomer: NewSequence) -> str | None:
        """Return why a reservation finds no blocks now, and begin to free some; `None` where it does."""
        refusal = super().reservation_refusal(kv_tokens, max_new_tokens, now, newcomer)
        blocks = self._pool.blocks_for(self.reservation_tokens(kv_tokens, max_new_tokens))
        if refusal is None:
            self._requested_blocks = 0
            self._note_newcomer(blocks)
        elif self._pool.never_fits(kv_tokens) is None:
            self._requested_blocks, self._requested_until_s = blocks, now + RESERVATION_RETRY_S
            self._requester = newcomer
        return refusal

    def kept_blocks(self, newcomer: NewSequence | None = None) -> int:
        """Count the free blocks kept from newcomers; with swapping, claimed ones and what sequences that come first lack."""
        if self._swaps is None:
            return super().kept_blocks(newcomer)
        kept = sum(blocks for sequence, blocks in self._lacking_blocks if self._step.comes_before(sequence, newcomer))
        return min(self._claimed_blocks + kept, self._pool.free_blocks)

    def blocks_for_newcomers(self) -> int:
        """Count the free blocks, and those of sequences that could be swapped out for a newcomer."""
        free = self._pool.free_blocks
        if self._swaps is None:
            return free
        idle = sum(
            len(sequence.block_ids)
            for sequence in self._table
            if _has_had_its_turn(sequence) and (not sequence.in_iteration or self._step.yields_to(sequence))
        )
        return min(free + min(idle, self._swaps.free_blocks) + self._swaps.leaving_blocks, self._pool.num_blocks)

    def _note_if_new(self, sequence: Sequence) -> None:
        if sequence.state is RequestState.WAITING:
            self._note_newcomer(len(sequence.block_ids))

    def _note_newcomer(self, blocks: int) -> None:
        self._slot_blocks += (_NEWEST if self._slot_blocks else 1.0) * (blocks - self._slot_blocks)

    def begin_step(self, candidates: list[Sequence], now: float) -> None:
        """Begin to allocate for the next iteration, to `candidates` in scheduling order."""
        self._step = SchedulingStep(self._order, candidates, now)
        self._claimed_blocks, self._lacking_blocks, self._is_closed = 0, [], False
        if self._requested_blocks and now >= self._requested_until_s:
            self._requested_blocks = 0
        if self._requested_blocks and self._swaps is not None:
            self._swap_out_for_reservation()

    def all_can_decode(self, candidates: list[Sequence], max_num_seqs: int) -> bool:
        """Tell whether all of these decode and find a row and blocks; if so, allocate these."""
        if any(sequence.kv_place is not KvPlace.DEVICE for sequence in candidates):
            return False
        return super().all_can_decode(candidates, max_num_seqs)

    def can_admit(self, sequence: Sequence, reused: tuple[int, ...]) -> bool:
        """Tell whether a sequence has blocks, or can get those for its known tokens, `reused` the first of them."""
        if not self._is_on_device(sequence):
            return False
        if sequence.block_ids:
            return True
        tokens = self._entry_tokens(sequence)
        if self._is_closed or not self._has_free_blocks(sequence, lambda: self._pool.needed(tokens, reused)):
            return False
        if fetched := self.prefixes.fetchable_blocks(sequence, len(reused)):
            assert self._swaps is not None  # blocks are on the host
            self._swaps.fetch(sequence, tokens, reused, fetched, self._step.now)
            self._note_if_new(sequence)
        return not fetched

    def admit(self, sequence: Sequence, reused: tuple[int, ...]) -> None:
        """Allocate for a prompt, or the next part of one, that is about to be computed; check `can_admit` first."""
        is_new = not sequence.block_ids
        super().admit(sequence, reused)
        if is_new:
            self._note_if_new(sequence)

    def grow(self, sequence: Sequence, now: float) -> bool:
        """Allocate what a sequence lacks for its known tokens; tell whether it lacks nothing now."""
        if not self._is_on_device(sequence):
            return False
        lacking = self._pool.blocks_for(sequence.known_tokens) - len(sequence.block_ids)
        if lacking <= 0:
            return True
        if not self._has_free_blocks(sequence, lambda: lacking):
            return False
        self._table.extend(sequence, sequence.known_tokens)
        return True

    def bring_back(self, sequence: Sequence, now: float) -> bool:
        """Swap a sequence in, whose KV is on the host, where its blocks are free now; tell whether it returns.

        Nothing is preempted for it, and no claim of another sequence kept: it is about to leave.
        """
        if self._swaps is None or self._blocks_to_return(sequence) > self._pool.free_blocks:
            return False
        self._swaps.come_back(sequence, self._entry_tokens(sequence), now)
        return True

    def _is_on_device(self, sequence: Sequence) -> bool:
        """Tell whether a sequence's KV is on the device; if not, swap it in where blocks are free."""
        if sequence.kv_place is KvPlace.HOST:
            assert self._swaps is not None  # KV is on the host
            if self._has_free_blocks(sequence, lambda: self._blocks_to_return(sequence)):
                self._swaps.come_back(sequence, self._entry_tokens(sequence), self._step.now)
        return sequence.kv_place is KvPlace.DEVICE

    def _has_free_blocks(self, sequence: Sequence, needed: Callable[[], int]) -> bool:
        """Tell whether a sequence finds its blocks free; if not, claim the next ones and have others freed."""
        pool = self._pool
        promised = self._requested_blocks if self._step.yields_to(sequence, self._requester) else 0
        while (blocks := needed()) > pool.free_blocks - self._claimed_blocks - promised:
            preemptions = self.preemptions
            if not self._free_blocks_for(sequence, blocks + promised):
                self._is_closed = True
                self._lacking_blocks.append((sequence, blocks))
                return False
            if self.preemptions == preemptions:  # blocks come free when swaps end
                self._claimed_blocks += blocks
                return False
        return True

    def _free_blocks_for(self, sequence: Sequence, blocks: int) -> bool:
        """Preempt sequences behind it for what it lacks; tell whether its blocks are free now, or when they are swapped out."""
        lacking = self._lacking(blocks)
        if lacking <= 0:
            return True
        if self._when_full is WhenFull.DEFER and sequence.state is RequestState.WAITING:
            return False
        behind = [other for other in self._step.behind(sequence) if self._may_give_up(other)]
        return self._take_from(behind, lacking)

    def _take_from(self, idle: list[Sequence], lacking: int) -> bool:
        """Take so many blocks from the last to run of these, if all together have as many; tell whether they have."""
        leaving, blocks = self._step.last_to_run(idle, self._blocks_freed_by, lacking)
        if blocks < lacking:
            return False
        for sequence in leaving:
            self._give_up(sequence)
        return True

    def _lacking(self, blocks: int) -> int:
        return blocks + self._claimed_blocks - self._pool.free_blocks - self._leaving_blocks()

    def _swap_out_for_reservation(self) -> None:
        """Swap out sequences that yield to newcomers, though they would run now; a reservation has no place in the order."""
        lacking = self._lacking(self._requested_blocks)
        if lacking > 0:
            requester = self._requester
            yielding = [s for s in self._step.sequences if self._step.yields_to(s, requester) and self._may_leave(s)]
            self._take_from(yielding, lacking)

    def end_step(self) -> None:
        """Swap sequences outside the batch, ahead of need."""
        if self._swaps is None:
            return
        spare_blocks = self._requested_blocks
        is_proactive = self._when_full is WhenFull.PROACTIVE
        if is_proactive:
            queues = [s.queue_state.queue for s in self._step.sequences if s.queue_state is not None]
            spare_blocks += round(self._policy.swap.slots_to_keep(queues) * self._slot_blocks)
        spare = -self._lacking(spare_blocks)
        if spare < 0:
            idle = [sequence for sequence in self._step.sequences if self._may_leave(sequence)]
            for sequence in self._step.last_to_run(idle, self._blocks_freed_by, -spare)[0]:
                if self._swaps.can_swap_out(sequence):
                    self._swaps.leave(sequence, self._step.now)
        elif is_proactive:
            self._bring_back_within(min(spare, self._pool.free_blocks - self._claimed_blocks - self._requested_blocks))

    def _bring_back_within(self, spare_blocks: int) -> None:
        assert self._swaps is not None
        soon = self._step.sequences[: _BATCHES_AHEAD * self._policy.limits.max_num_seqs]
        away = [sequence for sequence in soon if sequence.kv_place is KvPlace.HOST]
        for sequence in self._step.first_to_run(away, self._blocks_to_return, spare_blocks):
            self._swaps.come_back(sequence, self._entry_tokens(sequence), self._step.now)

    def _may_give_up(self, sequence: Sequence) -> bool:
        return self._may_leave(sequence) or (_is_idle(sequence) and sequence.preemptions < self._policy.max_preemptions)

    def _may_leave(self, sequence: Sequence) -> bool:
        return _is_idle(sequence) and self._swaps is not None and self._swaps.can_swap_out(sequence)

    def _give_up(self, sequence: Sequence) -> None:
        if self._swaps is not None and self._swaps.can_swap_out(sequence):
            self._swaps.leave(sequence, self._step.now)
        elif sequence.preemptions < self._policy.max_preemptions:
            self._preempt(sequence, self._step.now)

    def _blocks_freed_by(self, sequence: Sequence) -> int:
        return self._pool.freed_blocks([sequence.sequence_id])

    def _blocks_to_return(self, sequence: Sequence) -> int:
        assert self._swaps is not None  # KV is on the host
        return self._pool.needed(self._entry_tokens(sequence), self._swaps.found_on_device(sequence))

    def _leaving_blocks(self) -> int:
        return 0 if self._swaps is None else self._swaps.leaving_blocks


def _is_idle(sequence: Sequence) -> bool:
    return _has_had_its_turn(sequence) and not sequence.in_iteration


def _has_had_its_turn(sequence: Sequence) -> bool:
    return (
        sequence.is_preemptible
        and sequence.kv_place is KvPlace.DEVICE
        and sequence.has_run
        and bool(sequence.block_ids)
    )
