"""KV hand-offs of a machine, overlapped with prefill layer by layer under `Overlap`: all layers' bytes but the last may be sent
as they are computed, the last layer's when the iteration ends (Splitwise, section 4.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spotwise.core.costs.batching import BatchRow
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import sequence_id
from spotwise.core.worker import commands as c
from spotwise.simulator.world.network import Link, LinkTransfer
from spotwise.simulator.world.settings import Overlap
from spotwise.simulator.world.surroundings import Surroundings


@dataclass(slots=True)
class _Push:
    """A hand-off, from the first byte that may be sent."""

    target_id: str
    transfer: LinkTransfer
    begun_s: float = 0.0
    committed_s: float = 0.0
    offered_bytes: float = 0.0
    command: c.PushKv | None = None


class HandOffs:
    """The hand-offs of one machine; `receive` handles the machine's events, and `sent` counts hand-offs that arrived. An
    `overlap` of `None` is the world's."""

    def __init__(
        self, send_link: Link, receive: Callable[[Any], None], around: Surroundings, overlap: Overlap | None = None
    ) -> None:
        self.sent = 0
        self._overlap = overlap or around.settings.overlap
        self._send_link = send_link
        self._receive = receive
        self._around = around
        self._queue = around.queue
        self._pushes: dict[str, _Push] = {}

    def part_started(self, row: BatchRow, seconds: float) -> None:
        """Send a prompt's chunk while it is computed in `seconds`, if it is large enough."""
        push = self._pushes.get(row.sequence_id)
        crossover_tokens = self._overlap.crossover_tokens
        if push is not None and crossover_tokens is not None and row.num_tokens >= crossover_tokens:
            layers = self._overlap.layers or self._around.settings.model.layers
            done_tokens = row.first_position + row.num_tokens * (layers - 1) / layers
            self._queue.at(self._queue.now + seconds / layers, self._offer_early, (push, done_tokens))

    def drop(self, sequence_id: str) -> None:
        """Cancel a sequence's hand-off."""
        push = self._pushes.pop(sequence_id, None)
        if push is not None:
            self._around.network.call_off(push.transfer)

    def ordered(self, order: m.StartPrefill) -> None:
        """Record the destination of a prompt's KV."""
        target = self._around.machines[order.target.worker_id]
        id_ = sequence_id(order.choice_id, order.epoch)
        self._pushes[id_] = _Push(
            order.target.worker_id, LinkTransfer(id_, self._send_link, target.receive_link, self._sent)
        )

    def abort(self, command: h.AbortPush) -> None:
        """Cancel a push in transit, and report it."""
        id_ = sequence_id(command.choice_id, command.epoch)
        if id_ in self._pushes:
            self.drop(id_)
            failed = h.HandoffFailed(command.choice_id, command.epoch, "called off")
            self._queue.at(self._queue.now, self._receive, failed)

    def _offer_early(self, offer: tuple[_Push, float]) -> None:
        push, tokens = offer
        if push.command is None:
            self._offer(push, tokens, is_last=False)

    def push(self, command: c.PushKv) -> None:
        """Send the rest of a computed prompt's KV, and report its arrival to both ends."""
        push = self._pushes[sequence_id(command.handoff.choice_id, command.handoff.epoch)]
        push.command, push.committed_s = command, self._queue.now
        self._offer(push, command.handoff.num_tokens, is_last=True)

    def _offer(self, push: _Push, tokens: float, *, is_last: bool) -> None:
        """Offer the link the KV of a prompt's first `tokens` tokens, less what it already has."""
        if not push.offered_bytes:
            push.begun_s = self._queue.now
        more_bytes = tokens * self._around.settings.model.kv_token_bytes - push.offered_bytes
        push.offered_bytes += more_bytes
        self._around.network.add(push.transfer, more_bytes, is_last=is_last)

    def _sent(self, transfer: LinkTransfer) -> None:
        arrival_s = self._queue.now + transfer.latency_s
        self._queue.at(arrival_s, self._delivered, self._pushes[transfer.label])

    def _delivered(self, push: _Push) -> None:
        assert push.command is not None
        handoff, now = push.command.handoff, self._queue.now
        if self._pushes.pop(sequence_id(handoff.choice_id, handoff.epoch), None) is not push:
            return  # cancelled while its last bytes were in transit
        kv_bytes, transfer_s = int(push.offered_bytes), now - push.begun_s
        target = self._around.machines[push.target_id]
        if target.has_left:
            self._receive(h.HandoffFailed(handoff.choice_id, handoff.epoch, "its token worker has left"))
            return
        self.sent += 1
        target.receive(c.KvArrived(handoff, kv_bytes, transfer_s, "simulated"))
        visible_s = now - push.committed_s
        delivered = h.HandoffDelivered(
            handoff.choice_id, handoff.epoch, kv_bytes, transfer_s, "simulated", visible_s=visible_s
        )
        self._queue.at(now + push.transfer.latency_s, self._receive, delivered)
