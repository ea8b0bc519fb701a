"""Prompts that wait, and hand-offs of their KV.

Law: a prompt whose token phase is here is accepted or refused explicitly: no other worker would notice a lost order.
Another prompt's KV goes to the reservation in its order, whose lease is renewed meanwhile; once verified, it is released here.
A large prompt's push is opened before its first iteration and committed with its first token; at most one per sequence.
A failed hand-off ends the attempt; the gateway, which has every token so far, retries elsewhere.
Source: Splitwise, sections 4.2 and 4.3.
"""

from __future__ import annotations

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.hand_offs import PushMode
from spotwise.core.requests.record import KvHandoff, QueueLevel, sequence_id
from spotwise.core.requests.request import RequestEvent, RequestState
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.push_policy import PushPolicy
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable

#: Renewals within a lease's length, so that one lost message costs nothing.
RENEWALS_PER_LEASE = 3


class PromptSide:
    """Handles `StartPrefill`, the results of hand-offs, and the renewal of leases; `pushes` learns how KV is pushed."""

    def __init__(self, table: SequenceTable, policy: WorkerPolicy) -> None:
        self._table = table
        self.pushes = PushPolicy(policy.kv_push)
        self._queues = policy.mlfq
        self._renewed_s: dict[str, float] = {}

    def start_prefill(self, order: m.StartPrefill, now: float, *, closed: str | None) -> None:
        """Queue a prompt; one whose token phase is here is refused while the worker is `closed` for that reason."""
        if sequence_id(order.choice_id, order.epoch) in self._table:
            return  # delivered twice
        if order.target.worker_id == self._table.worker_id:
            self._serve_here(order, now, closed)
        else:
            self._compute_for_another(order, now)

    def _serve_here(self, order: m.StartPrefill, now: float, closed: str | None) -> None:
        table = self._table
        attempt = (order.choice_id, order.epoch, order.assignment, table.worker_id)
        if refusal := closed or self._refusal(order):
            table.emit(m.Send(order.scheduler_id, m.KvRefused(*attempt, refusal)))
            return
        sequence = self._add(order, now)
        sequence.max_new_tokens_here = order.max_new_tokens
        table.emit(m.Send(order.scheduler_id, m.PrefillAccepted(*attempt)))
        table.load_record(sequence)

    def _refusal(self, order: m.StartPrefill) -> str | None:
        if self._table.is_loading(order.choice_id, order.epoch):
            return "an earlier order is still being undone"
        return self._table.pool.never_fits(order.prompt_tokens + order.max_new_tokens)

    def _compute_for_another(self, order: m.StartPrefill, now: float) -> None:
        table = self._table
        if table.is_loading(order.choice_id, order.epoch):
            table.publish_failure(order.stream, 0, "an earlier order is still being undone", retryable=True)
            return
        sequence = self._add(order, now)
        sequence.target, sequence.lease_s = order.target, order.lease_s
        if table.pool.never_fits(order.prompt_tokens):
            table.fail(sequence, "the prompt does not fit the KV cache of its prompt worker", now, retryable=True)
        else:
            table.load_record(sequence)

    def _add(self, order: m.StartPrefill, now: float) -> Sequence:
        self._table.fence(order.choice_id, order.epoch - 1)
        sequence = self._table.add(order.choice_id, order.epoch, order.stream, RequestState.WAITING, now)
        sequence.known_tokens, sequence.prompt_ordered_here = order.prompt_tokens, True
        sequence.scheduler_id = order.scheduler_id
        return sequence

    def prefill_started(self, sequence: Sequence) -> None:
        """Open a layer-wise push for a prompt that is about to be computed, where that is cheaper."""
        if sequence.target is None:
            return
        tokens = sequence.known_tokens
        if self.pushes.choose(sequence.target.worker_id, tokens) is PushMode.LAYERWISE:
            sequence.push_in_flight = True
            written = sequence.computed_tokens
            push = h.OpenPush(
                sequence.choice_id, sequence.epoch, sequence.target, self._blocks_of(sequence, tokens), tokens, written
            )
            self._table.emit(push)

    def hand_off(self, sequence: Sequence, first_token_id: int) -> None:
        """Push a computed prompt's KV, or the rest of it, to its token worker."""
        assert sequence.target is not None
        sequence.advance(RequestEvent.HANDOFF_STARTED)
        handoff = self.handoff_of(sequence, (first_token_id,))
        if sequence.push_in_flight:
            self._table.emit(h.CommitPush(handoff))
            return
        sequence.push_in_flight = True
        blocks = self._blocks_of(sequence, sequence.computed_tokens)
        self._table.emit(c.PushKv(handoff, sequence.target, blocks))

    def handoff_of(self, sequence: Sequence, token_ids: tuple[int, ...]) -> KvHandoff:
        """Return what the receiver needs besides the KV; `token_ids` are the attempt's so far."""
        first, *later = token_ids
        level = self._level_of(sequence)
        return KvHandoff(
            sequence.choice_id,
            sequence.epoch,
            sequence.computed_tokens,
            first,
            level,
            tuple(later),
            self._table.numerics_class,
            sequence.has_foreign_kv,
        )

    def _level_of(self, sequence: Sequence) -> QueueLevel | None:
        """The queue level that moves with the sequence; `None` without queues."""
        if self._queues is None or sequence.queue_state is None:
            return None
        return self._queues.level_of(sequence.queue_state)

    def _blocks_of(self, sequence: Sequence, tokens: int) -> tuple[int, ...]:
        return sequence.block_ids[: self._table.pool.blocks_for(tokens)]

    def delivered(self, sequence: Sequence, event: h.HandoffDelivered, now: float) -> None:
        """Release a sequence whose KV the token worker has."""
        assert sequence.target is not None
        self.pushes.delivered(sequence.computed_tokens, event.kv_bytes, event.visible_s)
        self._table.record(
            sequence,
            "handed_off",
            now,
            token_worker=sequence.target.worker_id,
            kv_bytes=event.kv_bytes,
            transfer_s=event.transfer_s,
            visible_s=event.visible_s,
            mode=event.mode.value,
            transport=event.transport,
        )
        sequence.advance(RequestEvent.HANDOFF_DELIVERED)
        self._table.release(sequence)

    def pushes_measured(self, event: c.PushesMeasured, now: float) -> None:
        """Learn which push mode is cheaper to a worker."""
        self.pushes.measured(event.worker_id, event.costs)

    def failed(self, sequence: Sequence, reason: str, now: float) -> None:
        """Fail the attempt as retryable."""
        assert sequence.target is not None
        suspects = (self._table.worker_id, sequence.target.worker_id)
        self._table.fail(sequence, f"the KV hand-off failed: {reason}", now, retryable=True, suspects=suspects)

    def renew_leases(self, now: float) -> None:
        """Renew the leases of reservations in use, in one message a token worker."""
        by_target: dict[str, list[Sequence]] = {}
        for sequence in self._table:
            worker_id = sequence.reserved_at
            if worker_id is not None and not sequence.pending_free:
                by_target.setdefault(worker_id, []).append(sequence)
        renewed_s, self._renewed_s = self._renewed_s, {}
        for target_id, sequences in by_target.items():
            interval_s = min(sequence.lease_s for sequence in sequences) / RENEWALS_PER_LEASE
            last_s = renewed_s.get(target_id, 0.0)
            due = now - last_s >= interval_s
            self._renewed_s[target_id] = now if due else last_s
            if due:
                leases = tuple((sequence.choice_id, sequence.epoch) for sequence in sequences)
                self._table.emit(m.Send(target_id, m.RenewLeases(leases)))
