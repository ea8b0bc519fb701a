"""Tracks the acting scheduler and lost token batches from heartbeats.

Law: of the terms heard of, the highest acts; a scheduler without one stands by, and its loss concerns no request.
Requests that wait for an earlier one, or for any, are submitted again when a later term shows itself: it does not know them.

Law: a worker numbers its batches to this incarnation of the gateway from 1; its heartbeats carry how many it has sent.
Links are FIFO, so a number that is skipped is lost.
A batch is lost too if a heartbeat counted it `overdue_s` ago: heartbeats and batches may overtake each other.
A worker whose number restarts at 1 has forgotten this gateway.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.members import Member, MemberKind
from spotwise.core.messages.mesh import TokenBatch


class ActiveScheduler:
    """The latest term of a scheduler that was heard of; `None` before one, and where schedulers have no terms."""

    def __init__(self) -> None:
        self.term: int | None = None

    def reported(self, member: Member) -> bool:
        """Handle a heartbeat; tell whether it shows a later term."""
        if member.kind is not MemberKind.CLUSTER_SCHEDULER or member.term is None:
            return False
        if self.term is not None and member.term <= self.term:
            return False
        self.term = member.term
        return True

    def may_be(self, member: Member) -> bool:
        """Tell whether a member's loss may leave requests without a scheduler."""
        return member.kind is MemberKind.CLUSTER_SCHEDULER and (self.term is None or member.term == self.term)


#: A worker silent for so long is forgotten; if it returns, its requests are computed again at worst.
FORGET_AFTER_S = 600.0


@dataclass(slots=True)
class _Sender:
    """One incarnation of a worker: its newest batch `received` here, and the larger number `counted` by a heartbeat that first
    arrived at `counted_s`; `None` where no batch is missing.
    """

    incarnation: int
    seen_s: float
    received: int = 0
    counted: int = 0
    counted_s: float | None = None


class ReceivedBatches:
    """Counts every worker's batches; one that a heartbeat has counted may be under way for `overdue_s`."""

    def __init__(self, gateway_id: str, overdue_s: float) -> None:
        self._gateway_id = gateway_id
        self._overdue_s = overdue_s
        self._senders: dict[str, _Sender] = {}

    def received(self, batch: TokenBatch, now: float) -> bool:
        """Count a batch; tell whether earlier ones are lost."""
        if batch.number is None:
            return False
        sender = self._sender(batch.worker_id, batch.incarnation, now)
        if sender is None:
            return False
        if batch.number == 1:
            sender.received = 0
        is_gap = batch.number > sender.received + 1
        sender.received = max(sender.received, batch.number)
        if sender.counted <= sender.received:
            sender.counted_s = None
        return is_gap

    def reported(self, member: Member, incarnation: int, now: float) -> None:
        """Read from a worker's heartbeat how many batches it has sent to `incarnation` of this gateway."""
        for streams in member.load.gateways if member.load is not None else ():
            if (streams.gateway_id, streams.incarnation) != (self._gateway_id, incarnation):
                continue
            sender = self._sender(member.id, member.incarnation, now)
            if sender is not None and streams.batches_sent > sender.received and sender.counted_s is None:
                sender.counted, sender.counted_s = streams.batches_sent, now

    def was_away(self, seconds: float) -> None:
        """Extend the time of overdue batches by a time in which the gateway was cut off."""
        for sender in self._senders.values():
            if sender.counted_s is not None:
                sender.counted_s += seconds

    def overdue(self, now: float) -> list[tuple[str, float]]:
        """Return the workers whose last batches are lost, and since when a heartbeat has counted those."""
        lost = []
        for worker_id, sender in list(self._senders.items()):
            if sender.counted_s is not None and now - sender.counted_s > self._overdue_s:
                lost.append((worker_id, sender.counted_s))
                sender.received, sender.counted_s = max(sender.received, sender.counted), None
            elif now - sender.seen_s > FORGET_AFTER_S:
                del self._senders[worker_id]
        return lost

    def _sender(self, worker_id: str, incarnation: int, now: float) -> _Sender | None:
        """Return the newest incarnation's record; `None` for a message of an earlier one."""
        sender = self._senders.get(worker_id)
        if sender is None or sender.incarnation < incarnation:
            sender = self._senders[worker_id] = _Sender(incarnation, now)
        elif sender.incarnation > incarnation:
            return None
        sender.seen_s = now
        return sender
