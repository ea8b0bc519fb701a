"""Which sequence gets KV blocks where the order of those that run changes all the time.

Law: sequences get blocks in the order in which they are to run (`discipline.py`), and whoever finds none claims those that come
free, before anybody behind it. Room is made behind it: of those that it comes before and that have run since they got their
blocks, whoever is to run last gives them up, to the host's memory or, where `when_full` says so or the host is full, to be
computed again (`kv_swap.py` says which way is which). Where all of them together are not enough, nobody gives up anything, and
newcomers behind it wait. A newcomer whose reservation was refused has no place in the order: for a second, those that let
newcomers pass make room for it and take none. Why nobody waits for ever:

1. what would not fit the empty cache alone is refused when it is ordered;
2. whoever gets blocks gets them for all that is known of it, and loses them only after it has run, so every turn on the device
   brings it further, whatever the order does meanwhile;
3. a move to the host loses nothing; who was computed again `max_preemptions` times comes back with blocks for all that it may
   ever need, and is not computed again any more.

So some sequence always runs, or waits for a move or for a reservation with a lease; and all that run end.

Source: FastServe (Wu et al., 2023), section 4.2; blocks on demand, PagedAttention (Kwon et al., SOSP 2023), section 4.5.

Invariants: a victim comes behind whom it makes room for, or lets newcomers pass; it is in no iteration, and has run since it
got its blocks; nobody takes blocks that somebody before it claims.
"""

from __future__ import annotations

from collections.abc import Callable

from spotwise.core.kv_swap import WhenFull
from spotwise.core.request import RequestState
from spotwise.core.worker.kv_allocator import KvAllocator
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.prefix_cache import PrefixCache
from spotwise.core.worker.scheduling_policy import SchedulingPolicy
from spotwise.core.worker.scheduling_step import SchedulingStep
from spotwise.core.worker.sequence import KvPlace, Sequence
from spotwise.core.worker.sequence_table import SequenceTable
from spotwise.core.worker.swaps import Swaps

#: For how long room is made for a reservation that was refused: the scheduler asks again with a heartbeat, if at all.
_ASKED_FOR_S = 1.0
#: Weight of the newest in what newcomers take.
_NEWEST = 0.1
#: KV comes back before its turn of so many sequences, of those that a batch has room for.
_BATCHES_AHEAD = 2


class PreemptiveKvAllocator(KvAllocator):
    """Gives blocks in the order of a discipline.

    Args:
        table: the sequences.
        policy: what happens where there are no blocks.
        prefixes: of the device.
        order: of the discipline.
        swaps: to the host's memory; `None` where there is none.
    """

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
        self._claimed_blocks = self._kept_blocks = 0
        self._is_closed = False
        self._slot_blocks = 0.0
        self._asked_blocks, self._asked_until_s = 0, 0.0

    # --- newcomers ----------------------------------------------------------------------------------------------------

    def reservation_refusal(self, kv_tokens: int, max_new_tokens: int, now: float) -> str | None:
        """Say why there is no room for a reservation now, and make some, or return `None`."""
        refusal = super().reservation_refusal(kv_tokens, max_new_tokens, now)
        blocks = self._pool.blocks_for(self.reservation_tokens(kv_tokens, max_new_tokens))
        if refusal is None:
            self._asked_blocks = 0
            self._note_newcomer(blocks)
        elif self._pool.never_fits(kv_tokens) is None:
            self._asked_blocks, self._asked_until_s = blocks, now + _ASKED_FOR_S
        return refusal

    def kept_blocks(self) -> int:
        """Count the free blocks that a newcomer must leave.

        Where KV is swapped, those that are claimed just now, and what others lack whose turn comes before any newcomer's.
        """
        if self._swaps is None:
            return super().kept_blocks()
        return min(self._claimed_blocks + self._kept_blocks, self._pool.free_blocks)

    def blocks_for_newcomers(self) -> int:
        """Count the free blocks, and those that would come free if all that are idle or let newcomers pass went to the host."""
        free = self._pool.free_blocks
        if self._swaps is None:
            return free
        idle = sum(
            len(sequence.block_ids)
            for sequence in self._table
            if _has_had_its_turn(sequence) and (not sequence.in_iteration or self._step.yields_to_newcomers(sequence))
        )
        return min(free + min(idle, self._swaps.free_blocks) + self._swaps.leaving_blocks, self._pool.num_blocks)

    def _note_if_new(self, sequence: Sequence) -> None:
        if sequence.state is RequestState.WAITING:
            self._note_newcomer(len(sequence.block_ids))

    def _note_newcomer(self, blocks: int) -> None:
        self._slot_blocks += (_NEWEST if self._slot_blocks else 1.0) * (blocks - self._slot_blocks)

    # --- one round ----------------------------------------------------------------------------------------------------

    def start_round(self, candidates: list[Sequence], now: float) -> None:
        """Begin to give blocks for the next iteration.

        Args:
            candidates: who may take part, in the order in which they are to run.
            now: Unix time.
        """
        self._step = SchedulingStep(self._order, candidates, now)
        self._claimed_blocks, self._kept_blocks, self._is_closed = 0, 0, False
        if self._asked_blocks and now >= self._asked_until_s:
            self._asked_blocks = 0
        if self._asked_blocks and self._swaps is not None:
            self._make_room_for_asked()

    def all_can_decode(self, candidates: list[Sequence], max_num_seqs: int) -> bool:
        """Tell whether all of these decode and nobody stands back; see `KvAllocator`."""
        if any(sequence.kv_place is not KvPlace.DEVICE for sequence in candidates):
            return False
        return super().all_can_decode(candidates, max_num_seqs)

    def can_admit(self, sequence: Sequence, reused: tuple[int, ...]) -> bool:
        """Tell whether a sequence has blocks, or can have those for its known tokens, `reused` the first of them."""
        if not self._is_here(sequence):
            return False
        if sequence.block_ids:
            return True
        tokens = self._entry_tokens(sequence)
        if self._is_closed or not self._has_room(sequence, lambda: self._pool.needed(tokens, reused)):
            return False
        if fetched := self.prefixes.fetchable_blocks(sequence, len(reused)):
            assert self._swaps is not None  # else nothing would be on the host
            self._swaps.fetch(sequence, tokens, reused, fetched, self._step.now)
            self._note_if_new(sequence)
        return not fetched

    def admit(self, sequence: Sequence, reused: tuple[int, ...]) -> None:
        """Let a prompt, or the next part of one, be computed in its blocks; ask `can_admit` first."""
        is_new = not sequence.block_ids
        super().admit(sequence, reused)
        if is_new:
            self._note_if_new(sequence)

    def grow(self, sequence: Sequence, now: float) -> bool:
        """See to it that a sequence has blocks for all its known tokens; tell whether it has."""
        if not self._is_here(sequence):
            return False
        lacking = self._pool.blocks_for(sequence.known_tokens) - len(sequence.block_ids)
        if lacking <= 0:
            return True
        if not self._has_room(sequence, lambda: lacking):
            return False
        self._table.extend(sequence, sequence.known_tokens)
        return True

    def _is_here(self, sequence: Sequence) -> bool:
        """Tell whether a sequence's KV is on the device; where it is on the host, let it come back if it finds room."""
        if sequence.kv_place is KvPlace.HOST:
            assert self._swaps is not None  # else nobody would be away
            if self._has_room(sequence, lambda: self._blocks_to_return(sequence)):
                self._swaps.come_back(sequence, self._entry_tokens(sequence), self._step.now)
        return sequence.kv_place is KvPlace.DEVICE

    def _has_room(self, sequence: Sequence, needed: Callable[[], int]) -> bool:
        """Tell whether as many blocks are free for a sequence as it needs; where they are not, claim them and see to it."""
        pool = self._pool
        promised = self._asked_blocks if self._step.yields_to_newcomers(sequence) else 0
        while (blocks := needed()) > pool.free_blocks - self._claimed_blocks - promised:
            preemptions = self.preemptions
            if not self._make_room(sequence, blocks + promised):
                self._is_closed = True
                if self._step.outranks_newcomers(sequence):
                    self._kept_blocks += blocks
                return False
            if self.preemptions == preemptions:  # what comes free is on its way
                self._claimed_blocks += blocks
                return False
        return True

    def _make_room(self, sequence: Sequence, blocks: int) -> bool:
        """Let those behind a sequence give up as much as it lacks; tell whether it finds room, now or when they have moved."""
        lacking = self._lacking(blocks)
        if lacking <= 0:
            return True
        if self._when_full is WhenFull.DEFER and sequence.state is RequestState.WAITING:
            return False
        behind = [other for other in self._step.behind(sequence) if self._may_give_up(other)]
        return self._let_go(behind, lacking)

    def _let_go(self, idle: list[Sequence], lacking: int) -> bool:
        """Let the last to run of these give so many blocks up, if all together have as many; tell whether they have."""
        leaving, blocks = self._step.last_to_run(idle, self._blocks_freed_by, lacking)
        if blocks < lacking:
            return False
        for sequence in leaving:
            self._give_up(sequence)
        return True

    def _lacking(self, blocks: int) -> int:
        """Count the blocks that neither are free nor come free, of so many and of those that are claimed."""
        return blocks + self._claimed_blocks - self._pool.free_blocks - self._leaving_blocks()

    def _make_room_for_asked(self) -> None:
        """Let those go that let a newcomer pass; it is not here and has no place in the order.

        They would run just now: where batches are wide enough for all, nobody is idle between them.
        """
        lacking = self._lacking(self._asked_blocks)
        if lacking > 0:
            yielding = [s for s in self._step.sequences if self._step.yields_to_newcomers(s) and self._may_go(s)]
            self._let_go(yielding, lacking)

    # --- between rounds -----------------------------------------------------------------------------------------------

    def end_round(self) -> None:
        """Swap ahead of need, once the batch is made: those that are not in it."""
        if self._swaps is None:
            return
        wanted = self._asked_blocks
        is_proactive = self._when_full is WhenFull.PROACTIVE
        if is_proactive:
            queues = [s.queue_state.queue for s in self._step.sequences if s.queue_state is not None]
            wanted += round(self._policy.swap.slots_to_keep(queues) * self._slot_blocks)
        spare = -self._lacking(wanted)
        if spare < 0:
            idle = [sequence for sequence in self._step.sequences if self._may_go(sequence)]
            for sequence in self._step.last_to_run(idle, self._blocks_freed_by, -spare)[0]:
                if self._swaps.has_room_for(sequence):
                    self._swaps.leave(sequence, self._step.now)
        elif is_proactive:
            self._bring_back_within(min(spare, self._pool.free_blocks - self._claimed_blocks - self._asked_blocks))

    def _bring_back_within(self, spare_blocks: int) -> None:
        assert self._swaps is not None
        soon = self._step.sequences[: _BATCHES_AHEAD * self._policy.limits.max_num_seqs]
        away = [sequence for sequence in soon if sequence.kv_place is KvPlace.HOST]
        for sequence in self._step.first_to_run(away, self._blocks_to_return, spare_blocks):
            self._swaps.come_back(sequence, self._entry_tokens(sequence), self._step.now)

    # --- whose blocks -------------------------------------------------------------------------------------------------

    def _may_give_up(self, sequence: Sequence) -> bool:
        """Tell whether a sequence can go to the host, or be computed again."""
        return self._may_go(sequence) or (_is_idle(sequence) and sequence.preemptions < self._policy.max_preemptions)

    def _may_go(self, sequence: Sequence) -> bool:
        """Tell whether a sequence can go to the host."""
        return _is_idle(sequence) and self._swaps is not None and self._swaps.has_room_for(sequence)

    def _give_up(self, sequence: Sequence) -> None:
        if self._swaps is not None and self._swaps.has_room_for(sequence):
            self._swaps.leave(sequence, self._step.now)
        elif sequence.preemptions < self._policy.max_preemptions:
            self._preempt(sequence, self._step.now)

    def _blocks_freed_by(self, sequence: Sequence) -> int:
        return self._pool.freed_blocks([sequence.sequence_id])

    def _blocks_to_return(self, sequence: Sequence) -> int:
        assert self._swaps is not None  # else nobody would be away
        return self._pool.needed(self._entry_tokens(sequence), self._swaps.found_on_device(sequence))

    def _leaving_blocks(self) -> int:
        return 0 if self._swaps is None else self._swaps.leaving_blocks


def _is_idle(sequence: Sequence) -> bool:
    """Tell whether a sequence has blocks that nothing uses just now, and has had its turn with them."""
    return _has_had_its_turn(sequence) and not sequence.in_iteration


def _has_had_its_turn(sequence: Sequence) -> bool:
    return (
        sequence.is_preemptible
        and sequence.kv_place is KvPlace.DEVICE
        and sequence.has_run
        and bool(sequence.block_ids)
    )
