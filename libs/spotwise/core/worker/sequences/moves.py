"""Moves of running sequences to other workers, with their KV.

Law: a moving sequence decodes while its full blocks are copied (pre-copy); then it parks, and the tail and its tokens follow.
It is kept, parked, until its gateway takes tokens from the target. Where the hand-off fails, or nothing is heard of the gateway
for `ACKNOWLEDGED_WITHIN_S`, it continues here: two holders compute the same tokens, of which the gateway delivers one.
A move that is refused or fails costs the sequence nothing but the pause. No room is waited for, here or at the target.
Every step ends: by an answer, by an iteration that ends or fails, or by a bound after which the sequence continues here.

A sequence whose KV is on the host has it swapped in first, where blocks are free for it. A reservation is cancelled only while
the target cannot have the sequence, of this move or of one whose end was not reported.

Source: SpotServe, section 4.2 (migration of the KV cache); pre-copy as in live migration (Clark et al., NSDI 2005, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.membership.term import TermFence
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason, RequestEvent
from spotwise.core.worker.kv.allocator import KvAllocator
from spotwise.core.worker.sequences.move import MoveEvent, MoveStep, SequenceMove
from spotwise.core.worker.sequences.prompt_side import PromptSide
from spotwise.core.worker.sequences.sequence import KvPlace, Sequence
from spotwise.core.worker.sequences.table import SequenceTable

#: Length of a reservation's lease.
LEASE_S = 3.0
#: Tokens that a sequence may decode here after its reservation was made, at most: then it parks.
TOKENS_AHEAD = 64
#: Why a move ends where a step of it lasts too long.
_TOO_LONG = {
    MoveStep.RETURNING: "its KV did not come back from the host in time",
    MoveStep.RESERVING: "the target did not answer",
    MoveStep.COPYING: "its KV was not copied in time",
    MoveStep.PARKING: "the iteration that it was in did not end in time",
}
#: Steps in which the transport reads the sequence's blocks.
_COPIES = (MoveStep.COPYING, MoveStep.PARKING)


class MoveSide:
    """Handles `MoveRequest`, and what follows from it on the source."""

    def __init__(self, table: SequenceTable, prompt_side: PromptSide, allocator: KvAllocator) -> None:
        self._table = table
        self._prompt_side = prompt_side
        self._allocator = allocator
        self._planner_terms = TermFence()

    def refuses(self, term: int) -> bool:
        """Tell whether an order of that planner's term comes too late."""
        return self._planner_terms.refuses(term)

    def survey(self, order: m.SurveyWorker, step_s: float | None) -> None:
        """Report what decodes here, or will: for a plan of who goes where before this worker leaves."""
        surveyed = tuple(
            m.SurveyedSequence(
                sequence.choice_id,
                sequence.epoch,
                0 if _why_it_cannot_move(sequence) else sequence.computed_tokens,
                sequence.known_tokens,
                sequence.remaining_tokens_here,
                "" if sequence.move is None else sequence.move.order.target_id,
            )
            for sequence in self._table
            if sequence.decodes_here and not sequence.pending_free
        )
        answer = m.WorkerSurveyed(self._table.worker_id, order.number, step_s, surveyed)
        self._table.emit(m.Send(order.sender_id, answer))

    def give_back(self, order: m.GiveBackRequest, now: float) -> None:
        """End a sequence that is to be computed again elsewhere."""
        sequence = self._table.get(order.choice_id, order.epoch)
        if self.refuses(order.term) or sequence is None or sequence.may_be_elsewhere:
            return
        self._table.record(sequence, "given_back", now, reason=order.reason, tokens=sequence.known_tokens)
        self._table.fail(sequence, order.reason, now, retryable=True)

    def move_request(self, order: m.MoveRequest, now: float) -> None:
        """Ask the target for blocks, or bring KV back from the host first; refuse where the sequence cannot move now."""
        sequence = self._table.get(order.choice_id, order.epoch)
        refusal = "it does not run here" if sequence is None else self._refusal(sequence, order)
        if sequence is None or refusal is not None:
            self._report(order, m.MoveOutcome.REFUSED, refusal or "")
            return
        if sequence.kv_place is not KvPlace.HOST:
            sequence.move = SequenceMove(order, now)
            self._ask_for_blocks(sequence, sequence.move, now)
        elif self._allocator.bring_back(sequence, now):
            sequence.move = SequenceMove(order, now)
        else:
            self._report(
                order, m.MoveOutcome.REFUSED, "its KV is on the host, and the device has no free blocks for it"
            )

    def swap_ended(self, sequence_id: str, now: float) -> None:
        """Ask the target for blocks, where a sequence's KV came back for its move."""
        sequence = self._table.by_id(sequence_id)
        if sequence is None or sequence.move is None or sequence.move.step is not MoveStep.RETURNING:
            return
        if sequence.block_ids:
            self._ask_for_blocks(sequence, sequence.move, now)
        else:
            reason = "its KV was lost on the way from the host"
            self._abandon(sequence, m.MoveOutcome.REFUSED, reason, now)

    def _ask_for_blocks(self, sequence: Sequence, move: SequenceMove, now: float) -> None:
        move.note(MoveEvent.ASKED, now)
        sequence.lease_s = LEASE_S
        move.hop = sequence.hops_asked = max(sequence.hop, sequence.hops_asked) + 1
        order, left = move.order, sequence.remaining_tokens_here
        reservation = m.ReserveKv(
            choice_id=order.choice_id,
            epoch=order.epoch,
            stream=sequence.stream,
            scheduler_id=sequence.scheduler_id,
            assignment=0,
            kv_tokens=sequence.known_tokens + left,
            max_new_tokens=left - min(left, TOKENS_AHEAD),
            lease_s=LEASE_S,
            source_id=self._table.worker_id,
            hop=move.hop,
            priority=sequence.priority,
            tenant=sequence.tenant,
            numerics_class=self._table.numerics_class,
        )
        self._table.emit(m.Send(order.target_id, reservation))

    def _refusal(self, sequence: Sequence, order: m.MoveRequest) -> str | None:
        if self.refuses(order.term):
            return f"the planner's term {order.term} is over"
        if order.target_id == self._table.worker_id:
            return "it is there already"
        if sequence.move is not None:
            return f"it is on its way to {sequence.move.order.target_id}"
        return _why_it_cannot_move(sequence)

    def kv_reserved(self, report: m.KvReserved, now: float) -> None:
        """Copy the full blocks, while the sequence decodes on."""
        target = report.target
        sequence = self._answered(report.choice_id, report.epoch, target.worker_id)
        if sequence is None or sequence.move is None:
            return  # too late, or a repetition: the reservation ends with its lease
        sequence.move.reservation = target
        sequence.move.note(MoveEvent.GRANTED, now)
        reason = _why_it_cannot_move(sequence)
        if sequence.kv_place is KvPlace.HOST:
            reason = "its KV was swapped out meanwhile"
        if reason is not None:
            self._abandon(sequence, m.MoveOutcome.REFUSED, reason, now)
            return
        sequence.move.tokens_copied = sequence.computed_tokens
        sequence.push_in_flight = True
        written = sequence.computed_tokens
        blocks = sequence.block_ids[: self._table.pool.blocks_for(written)]
        push = h.OpenPush(sequence.choice_id, sequence.epoch, target, blocks, None, written, sequence.move.hop)
        self._table.emit(push)

    def kv_refused(self, report: m.KvRefused, now: float) -> None:
        """The target has no room: the sequence goes on here."""
        sequence = self._answered(report.choice_id, report.epoch, report.worker_id)
        if sequence is not None:
            self._abandon(sequence, m.MoveOutcome.REFUSED, report.reason, now)

    def _answered(self, choice_id: str, epoch: int, worker_id: str) -> Sequence | None:
        sequence = self._table.get(choice_id, epoch)
        if sequence is None or sequence.move is None or sequence.move.step is not MoveStep.RESERVING:
            return None
        return sequence if sequence.move.order.target_id == worker_id else None

    def copied(self, event: h.PushCaughtUp, now: float) -> None:
        """Park the sequence: what it computed meanwhile is the tail."""
        sequence = self._table.get(event.choice_id, event.epoch)
        if sequence is None or sequence.move is None or sequence.move.step is not MoveStep.COPYING:
            return
        if event.number != sequence.move.hop:
            return  # of an earlier push, to a target that failed
        sequence.move.note(MoveEvent.PARKED, now)
        if not sequence.in_iteration:
            self._hand_over(sequence, now)

    def token_sampled(self, sequence: Sequence, now: float) -> None:
        """Go on with a move after an iteration: a parked sequence is handed over, one that fills its reservation parks."""
        move = sequence.move
        if move is None or move.reservation is None or move.step not in (MoveStep.COPYING, MoveStep.PARKING):
            return
        if move.step is MoveStep.COPYING:
            if self._table.pool.blocks_for(sequence.known_tokens) <= len(move.reservation.block_ids):
                return
            move.note(MoveEvent.PARKED, now)
        self._hand_over(sequence, now)

    def iteration_failed(self, members: Iterable[Sequence], now: float) -> None:
        """Hand over what parked while it was in the iteration: nothing was computed, and it joins no further one."""
        for sequence in members:
            move = sequence.move
            if move is not None and move.step is MoveStep.PARKING and not sequence.pending_free:
                self._hand_over(sequence, now)

    def _hand_over(self, sequence: Sequence, now: float) -> None:
        assert sequence.move is not None
        sequence.move.note(MoveEvent.COMMITTED, now)
        sequence.advance(RequestEvent.HANDOFF_STARTED)
        blocks = sequence.block_ids[: self._table.pool.blocks_for(sequence.computed_tokens)]
        self._table.emit(h.CommitPush(self._prompt_side.handoff_of(sequence, sequence.attempt_token_ids), blocks))

    def delivered(self, sequence: Sequence, event: h.HandoffDelivered, now: float) -> None:
        """The target has it: wait for the gateway's word."""
        move = sequence.move
        assert move is not None and move.reservation is not None
        parked_s, copied_s = move.since_s(MoveStep.PARKING), move.since_s(MoveStep.COPYING)
        self._table.record(
            sequence,
            "moved",
            now,
            token_worker=move.reservation.worker_id,
            tokens=sequence.computed_tokens,
            copied_before=move.tokens_copied,
            kv_bytes=event.kv_bytes,
            transfer_s=now - move.began_s,
            pause_s=now - parked_s,
            transport=event.transport,
        )
        copy_s = parked_s - copied_s + event.visible_s
        self._delivered(sequence, move, now, sequence.computed_tokens, copy_s, now - parked_s)

    def _delivered(
        self,
        sequence: Sequence,
        move: SequenceMove,
        now: float,
        tokens: int = 0,
        copy_s: float = 0.0,
        pause_s: float = 0.0,
    ) -> None:
        """Report a move; what it took is not known where the transport's answer was lost."""
        move.note(MoveEvent.DELIVERED, now)
        self._report(move.order, m.MoveOutcome.MOVED, tokens=tokens, copy_s=copy_s, pause_s=pause_s)
        if move.is_acknowledged:
            self._table.end(sequence, FinishReason.ABORT)

    def failed(self, sequence: Sequence, reason: str, now: float) -> None:
        """Go on here, unless the target has it all the same: its answer was lost, and the gateway's was not."""
        if sequence.move is not None and sequence.move.is_acknowledged:
            self._delivered(sequence, sequence.move, now)
            return
        if sequence.move is not None and sequence.move.step is MoveStep.HANDING_OVER:
            sequence.advance(RequestEvent.HANDOFF_ABANDONED)
        why = sequence.move.why_aborted if sequence.move is not None else ""
        self._abandon(sequence, m.MoveOutcome.FAILED, why or reason, now)

    def acknowledged(self, answer: m.MoveAcknowledged, now: float) -> None:
        """Drop the sequence: its gateway takes its tokens from another worker."""
        sequence = self._table.get(answer.choice_id, answer.epoch)
        if sequence is None or answer.worker_id == self._table.worker_id or answer.hop < sequence.hop:
            return
        move = sequence.move
        if move is not None and move.order.target_id == answer.worker_id:
            move.is_acknowledged = True
            if move.step is MoveStep.HANDING_OVER:
                return  # the transport's word is still on its way
        else:
            self._table.cancel_target(sequence)
        self._table.end(sequence, FinishReason.ABORT)

    def give_up(self, sequence: Sequence) -> None:
        """Drop a sequence that another worker has, or may have, without the gateway's word: this worker has to leave."""
        self._table.end(sequence, FinishReason.ABORT)

    def tick(self, now: float) -> None:
        """Abandon moves that no member answers."""
        for sequence in [each for each in self._table if each.move is not None and not each.pending_free]:
            move = sequence.move
            assert move is not None
            if not move.lasts_too_long(now):
                continue
            if move.step is MoveStep.DELIVERED:
                sequence.advance(RequestEvent.HANDOFF_ABANDONED)
                sequence.move = None  # the target may have it, or may be gone
            elif move.step in _COPIES:
                self._abort(sequence, move, _TOO_LONG[move.step], now)
            else:
                self._abandon(sequence, m.MoveOutcome.REFUSED, _TOO_LONG[move.step], now)

    def was_away(self, seconds: float) -> None:
        """Extend the time for answers by one in which none could be received."""
        for sequence in self._table:
            if sequence.move is not None:
                sequence.move.was_away(seconds)

    def _abort(self, sequence: Sequence, move: SequenceMove, reason: str, now: float) -> None:
        """Go on here; the move is over when the transport has let go of the blocks."""
        self._table.cancel_target(sequence)
        move.note(MoveEvent.ABORTED, now)
        move.why_aborted = reason
        self._table.emit(h.AbortPush(sequence.choice_id, sequence.epoch))

    def _abandon(self, sequence: Sequence, outcome: m.MoveOutcome, reason: str, now: float) -> None:
        move = sequence.move
        assert move is not None
        self._table.cancel_target(sequence)
        self._table.record(sequence, "move_failed", now, token_worker=move.order.target_id, reason=reason)
        sequence.move = None
        self._report(move.order, outcome, reason)

    def _report(
        self,
        order: m.MoveRequest,
        outcome: m.MoveOutcome,
        reason: str = "",
        tokens: int = 0,
        copy_s: float = 0.0,
        pause_s: float = 0.0,
    ) -> None:
        worker_id, target_id = self._table.worker_id, order.target_id
        ended = m.MoveEnded(
            order.choice_id, order.epoch, worker_id, target_id, outcome, reason, tokens, copy_s, pause_s
        )
        self._table.emit(m.Send(order.sender_id, ended))


def _why_it_cannot_move(sequence: Sequence) -> str | None:
    if not sequence.decodes_here or not sequence.is_runnable:
        return "it does not decode here"
    if sequence.is_swapping or (sequence.kv_place is KvPlace.DEVICE and not sequence.block_ids):
        return "its KV is not on the device"
    if not sequence.is_decoding or not sequence.attempt_token_ids:
        return "its prompt is not computed yet"
    return None
