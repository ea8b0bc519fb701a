"""Which token batches of a worker never came.

Law: a worker numbers its batches to this incarnation of the gateway from 1, and its heartbeats say how many it has sent.
Links are first in, first out, so a number that is passed over is lost. The last ones are lost when a heartbeat has counted
them for `overdue_s` and they have not come; heartbeats and batches may overtake each other. A worker whose number is 1 again
has forgotten this gateway and begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages import Member, TokenBatch

#: A worker that was not heard for so long is forgotten; if it comes back, its requests are computed again at worst.
FORGET_AFTER_S = 600.0


@dataclass(slots=True)
class _Sender:
    """One incarnation of a worker.

    Attributes:
        received: the number of its newest batch here.
        counted, counted_s: more than that, as a heartbeat said, and when one first did; `None` where nothing is missing.
        heard_s: when it was last heard.
    """

    incarnation: int
    heard_s: float
    received: int = 0
    counted: int = 0
    counted_s: float | None = None


class ReceivedBatches:
    """Counts every worker's batches.

    Args:
        gateway_id: of whose heartbeats' counts are read.
        overdue_s: how long a batch that a heartbeat has counted may be on its way.
    """

    def __init__(self, gateway_id: str, overdue_s: float) -> None:
        self._gateway_id = gateway_id
        self._overdue_s = overdue_s
        self._senders: dict[str, _Sender] = {}

    def received(self, batch: TokenBatch, now: float) -> bool:
        """Count a batch; tell whether one or more before it are lost."""
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
        """Give what is overdue so much longer: nothing could come."""
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
            elif now - sender.heard_s > FORGET_AFTER_S:
                del self._senders[worker_id]
        return lost

    def _sender(self, worker_id: str, incarnation: int, now: float) -> _Sender | None:
        """Return the newest incarnation's count; `None` for a word of an earlier one."""
        sender = self._senders.get(worker_id)
        if sender is None or sender.incarnation < incarnation:
            sender = self._senders[worker_id] = _Sender(incarnation, now)
        elif sender.incarnation > incarnation:
            return None
        sender.heard_s = now
        return sender
