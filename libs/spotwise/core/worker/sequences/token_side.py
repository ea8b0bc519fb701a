"""Reservations and their leases, KV that arrives, and announcements of sequences that moved here.

Law: the gateway and the scheduler of a sequence that moved here are told, every `REPEAT_S` until the gateway acknowledges it;
also after the sequence has ended, for its last tokens wait there for this message. The worker does not leave before that.
A gateway that is silent for `SILENT_AFTER_S` is given up: it will submit another attempt, or is gone.

Law: blocks are reserved before the prompt starts or the sequence moves, under a lease that the sender renews.
An expired lease ends the attempt as retryable, so a dead sender holds no blocks; one that moved continues at its source.
KV is accepted only into a live reservation of the same epoch; for KV of another numerics class none is made where the policy
refuses crossings.
Source: joint assignment of both machines, Splitwise, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import Crossing, is_crossing, refusal_of_classes
from spotwise.core.requests.record import KvShare, KvTarget, sequence_id
from spotwise.core.requests.request import RequestEvent, RequestState
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.allocator import KvAllocator
from spotwise.core.worker.scheduling.policy import NewSequence
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable

REPEAT_S = 0.4
SILENT_AFTER_S = 20.0


@dataclass(slots=True)
class _Announcement:
    report: m.RequestMoved
    stream: m.StreamRef
    scheduler_id: str
    since_s: float
    sent_s: float


class Arrivals:
    """The announcements that are not acknowledged."""

    def __init__(self, table: SequenceTable) -> None:
        self._table = table
        self._open: dict[str, _Announcement] = {}

    def __len__(self) -> int:
        return len(self._open)

    def announce(self, sequence: Sequence, token_ids: tuple[int, ...], now: float) -> None:
        """Tell gateway and scheduler of a sequence that arrived with these tokens of its attempt."""
        is_mixed = sequence.has_foreign_kv and not sequence.source_class
        report = m.RequestMoved(
            choice_id=sequence.choice_id,
            epoch=sequence.epoch,
            attempt_id=sequence.stream.attempt_id,
            worker_id=self._table.worker_id,
            source_id=sequence.source_id,
            hop=sequence.hop,
            first_index=sequence.output_tokens - (0 if is_mixed else len(token_ids)),
            token_ids=() if is_mixed else token_ids,
            source_class=sequence.source_class,
        )
        sequence.announced = True
        announcement = _Announcement(report, sequence.stream, sequence.scheduler_id, now, now)
        self._open[sequence.sequence_id] = announcement
        self._send(announcement)

    def acknowledged(self, answer: m.MoveAcknowledged) -> None:
        """Stop repeating it."""
        key = sequence_id(answer.choice_id, answer.epoch)
        announcement = self._open.get(key)
        if announcement is not None and answer.hop >= announcement.report.hop:
            del self._open[key]

    def fence(self, choice_id: str, epoch: int) -> None:
        """Forget announcements of ended attempts."""
        for key, announcement in list(self._open.items()):
            report = announcement.report
            if report.choice_id == choice_id and report.epoch <= epoch:
                del self._open[key]

    def tick(self, now: float) -> None:
        """Repeat what is not acknowledged."""
        for key, announcement in list(self._open.items()):
            if now - announcement.since_s > SILENT_AFTER_S:
                del self._open[key]
            elif now - announcement.sent_s >= REPEAT_S:
                announcement.sent_s = now
                self._send(announcement)

    def was_away(self, seconds: float) -> None:
        """Extend the gateways' time by one in which none could be heard."""
        for announcement in self._open.values():
            announcement.since_s += seconds

    def _send(self, announcement: _Announcement) -> None:
        self._table.emit(m.to_gateway(announcement.stream, announcement.report))
        if announcement.scheduler_id:
            self._table.emit(m.Send(announcement.scheduler_id, announcement.report))


#: Lengths of a lease before its first renewal: the prompt worker's order may be slow to reach it.
FIRST_TERM = 2


class TokenSide:
    """Handles `ReserveKv`, `RenewLeases`, `KvArrived` and the expiry of leases."""

    def __init__(
        self,
        table: SequenceTable,
        allocator: KvAllocator,
        arrivals: Arrivals,
        incarnation: int,
        address: str,
        crossing: Crossing = Crossing.COUNT,
    ) -> None:
        self._table = table
        self._arrivals = arrivals
        self._allocator = allocator
        self._incarnation = incarnation
        self._address = address
        self._crossing = crossing
        self.shares: tuple[KvShare, ...] = ()  #: processes that keep the KV, where it is not this one alone

    def reserve_kv(self, order: m.ReserveKv, now: float, *, closed: str | None) -> None:
        """Reserve blocks, or refuse with the reason; `closed` is why none are reserved at present."""
        table = self._table
        asker_id = order.source_id or order.scheduler_id
        if refusal := closed or self._refusal(order, now):
            answer = m.KvRefused(order.choice_id, order.epoch, order.assignment, table.worker_id, refusal)
            table.emit(m.Send(asker_id, answer))
            return
        table.fence(order.choice_id, order.epoch - 1)
        sequence = table.add(order.choice_id, order.epoch, order.stream, RequestState.WAITING_FOR_KV, now)
        sequence.scheduler_id, sequence.source_id, sequence.hop = order.scheduler_id, order.source_id, order.hop
        sequence.kv_tokens, sequence.max_new_tokens_here = order.kv_tokens, order.max_new_tokens
        sequence.lease_s, sequence.lease_expires_s = order.lease_s, now + FIRST_TERM * order.lease_s
        table.allocate(sequence, self._allocator.reservation_tokens(order.kv_tokens, order.max_new_tokens))
        table.emit(h.ExpectKv(order.choice_id, order.epoch, sequence.block_ids))
        target = KvTarget(table.worker_id, self._incarnation, self._address, sequence.block_ids, self.shares)
        table.emit(m.Send(asker_id, m.KvReserved(order.choice_id, order.epoch, order.assignment, target)))
        table.load_record(sequence)

    def _refusal(self, order: m.ReserveKv, now: float) -> str | None:
        if sequence_id(order.choice_id, order.epoch) in self._table:
            return "reserved already"
        if foreign := refusal_of_classes(self._crossing, (order.numerics_class,), self._table.numerics_class):
            return foreign
        if self._table.is_loading(order.choice_id, order.epoch):
            return "an earlier reservation is still being undone"
        if self._allocator.reservation_tokens(order.kv_tokens, order.max_new_tokens) < 1:
            return "it is for no token"  # without blocks there would be nothing to hold, and to free
        newcomer = NewSequence(order.priority, order.tenant)
        return self._allocator.reservation_refusal(order.kv_tokens, order.max_new_tokens, now, newcomer)

    def renew_leases(self, order: m.RenewLeases, now: float) -> None:
        """Extend reservations that their prompt workers still need."""
        for choice_id, epoch in order.leases:
            sequence = self._table.get(choice_id, epoch)
            if sequence is not None and sequence.lease_expires_s is not None:
                sequence.lease_expires_s = now + sequence.lease_s

    def was_away(self, seconds: float) -> None:
        """Extend all leases by a time in which no renewal could be received."""
        for sequence in self._table:
            if sequence.lease_expires_s is not None:
                sequence.lease_expires_s += seconds

    def expire_leases(self, now: float) -> None:
        """Fail reservations whose leases have expired."""
        for sequence in list(self._table):
            expires_s = sequence.lease_expires_s
            if expires_s is not None and expires_s <= now and not sequence.pending_free:
                self._table.fail(sequence, "the prompt worker went silent", now, retryable=True)

    def kv_arrived(self, event: c.KvArrived, now: float) -> None:
        """Take a handed-off sequence into the token phase."""
        sequence = self._table.get(event.handoff.choice_id, event.handoff.epoch)
        if sequence is None or sequence.state is not RequestState.WAITING_FOR_KV:
            return  # it ended while its last bytes were on the way
        sequence.advance(RequestEvent.KV_ARRIVED)
        sequence.lease_expires_s = None
        token_ids = event.handoff.token_ids
        sequence.computed_tokens = event.handoff.num_tokens
        sequence.known_tokens = event.handoff.num_tokens + 1
        sequence.output_tokens += len(token_ids)
        sequence.max_new_tokens_here = sequence.kv_tokens - sequence.known_tokens
        sequence.handed_token_ids = token_ids
        sequence.arrived_level = event.handoff.level
        source_class, is_mixed = event.handoff.numerics_class, event.handoff.has_foreign_kv
        sequence.source_class = "" if is_mixed else source_class
        sequence.has_foreign_kv = is_mixed or is_crossing(source_class, self._table.numerics_class)
        sequence.started_s = now
        self._table.record(
            sequence,
            "kv_received",
            now,
            kv_bytes=event.kv_bytes,
            transfer_s=event.transfer_s,
            transport=event.transport,
            reserved_s=now - sequence.arrived_s,
        )
        self.pass_tokens(sequence, now)

    def pass_tokens(self, sequence: Sequence, now: float) -> None:
        """Append the tokens of other workers at the engine, once it knows the sequence; announce one that moved here."""
        token_ids = sequence.handed_token_ids
        if not token_ids or sequence.stop is None:
            return
        for token_id in token_ids:
            self._table.emit(c.AppendToken(sequence.sequence_id, token_id))
        sequence.token_ids.extend(token_ids)
        sequence.handed_token_ids = ()
        self._allocator.prefixes.enter_computed(sequence)
        if sequence.source_id:
            self._arrivals.announce(sequence, token_ids, now)
