"""Transfers in a simulated cluster: KV between machines, KV between a machine and its host, and control messages.

A machine has one link each way, shared equally by its transfers; a transfer has the smaller
of its two shares (the rest is not redistributed). Latency follows the last byte. With `private_bytes_per_s` every transfer
has its own rate, as in Splitwise's published simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spotwise.core.messages.mesh import Message
from spotwise.core.worker import commands as c
from spotwise.simulator.world.events import EventQueue

#: Less than this is a rounding error of rate x time.
_NOTHING_BYTES = 1e-3


@dataclass(slots=True, eq=False)
class Link:
    """One direction of one machine's connection.

    Attributes:
        latency_s: after a transfer's last byte; the longer one of its two links counts.
        transfers: in order of their start.
        carried_bytes: bytes of transfers that ended or were cancelled.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    transfers: dict[LinkTransfer, None] = field(default_factory=dict)
    carried_bytes: float = 0.0


@dataclass(slots=True, eq=False)
class LinkTransfer:
    """Bytes of one sequence, in transit or waiting for more.

    Attributes:
        label: its owner's name for it.
        left_bytes: not sent yet, as of `settled_s`.
        rate_bytes_per_s: since then.
        offered_bytes: given to it since it was last put on its links.
        on_sent: called when the last byte of a closed transfer has been sent.
        is_closed: nothing more will be added.
    """

    label: str
    sender: Link
    receiver: Link
    on_sent: Callable[[LinkTransfer], None]
    left_bytes: float = 0.0
    rate_bytes_per_s: float = 0.0
    offered_bytes: float = 0.0
    settled_s: float = 0.0
    is_closed: bool = False
    due_s: float | None = None  #: time of its next check; events at other times are stale

    @property
    def latency_s(self) -> float:
        """Seconds from its last byte to its arrival."""
        return max(self.sender.latency_s, self.receiver.latency_s)

    @property
    def is_moving(self) -> bool:
        """Whether it uses a share of its links."""
        return self in self.sender.transfers


class Network:
    """Transfers that share links.

    Args:
        queue: the clock.
        private_bytes_per_s: a rate that each transfer has for itself, whatever its links carry; `None` shares them.
    """

    def __init__(self, queue: EventQueue, private_bytes_per_s: float | None = None) -> None:
        self._queue = queue
        self._private_bytes_per_s = private_bytes_per_s

    def add(self, transfer: LinkTransfer, num_bytes: float, *, is_last: bool) -> None:
        """Give a transfer bytes to send; `is_last` closes it."""
        transfer.is_closed = is_last
        transfer.offered_bytes += num_bytes
        if transfer.is_moving:
            self._settle(transfer)
            transfer.left_bytes += num_bytes
            self._plan(transfer)
        elif num_bytes > 0:
            transfer.left_bytes = num_bytes
            transfer.settled_s = self._queue.now
            transfer.sender.transfers[transfer] = transfer.receiver.transfers[transfer] = None
            self._share_anew(transfer)
        elif is_last:
            transfer.on_sent(transfer)

    def call_off(self, transfer: LinkTransfer) -> None:
        """Cancel a transfer; `on_sent` is not called."""
        transfer.is_closed = False
        if transfer.is_moving:
            self._settle(transfer)
            self._take_off(transfer)

    def _take_off(self, transfer: LinkTransfer) -> None:
        del transfer.sender.transfers[transfer], transfer.receiver.transfers[transfer]
        sent = transfer.offered_bytes - transfer.left_bytes
        transfer.sender.carried_bytes += sent
        transfer.receiver.carried_bytes += sent
        transfer.offered_bytes = transfer.left_bytes
        transfer.rate_bytes_per_s, transfer.due_s = 0.0, None
        self._share_anew(transfer)

    def _share_anew(self, changed: LinkTransfer) -> None:
        """Settle sent bytes, then set the rates of all transfers on the links of one that started or ended."""
        if self._private_bytes_per_s is not None:
            if changed.is_moving:
                self._go_at(changed, self._private_bytes_per_s)
            return
        for transfer in changed.sender.transfers:
            self._set_rate(transfer)
        for transfer in changed.receiver.transfers:
            if transfer.sender is not changed.sender:
                self._set_rate(transfer)

    def _set_rate(self, transfer: LinkTransfer) -> None:
        sender, receiver = transfer.sender, transfer.receiver
        rate = min(sender.bytes_per_s / len(sender.transfers), receiver.bytes_per_s / len(receiver.transfers))
        if rate != transfer.rate_bytes_per_s:
            self._go_at(transfer, rate)

    def _go_at(self, transfer: LinkTransfer, bytes_per_s: float) -> None:
        self._settle(transfer)
        transfer.rate_bytes_per_s = bytes_per_s
        self._plan(transfer)

    def _settle(self, transfer: LinkTransfer) -> None:
        now = self._queue.now
        sent = (now - transfer.settled_s) * transfer.rate_bytes_per_s
        transfer.left_bytes = max(0.0, transfer.left_bytes - sent)
        transfer.settled_s = now

    def _plan(self, transfer: LinkTransfer) -> None:
        """Schedule a check for the time of the last byte; a check that comes too early schedules the next one."""
        due_s = transfer.settled_s + transfer.left_bytes / transfer.rate_bytes_per_s
        if transfer.due_s is None or due_s < transfer.due_s:
            transfer.due_s = due_s
            self._queue.at(due_s, self._look, (transfer, due_s))

    def _look(self, planned: tuple[LinkTransfer, float]) -> None:
        transfer, due_s = planned
        if transfer.due_s != due_s:
            return  # rescheduled to an earlier time, or over
        transfer.due_s = None
        self._settle(transfer)
        # what is left may take less time than the clock can tell apart
        if transfer.left_bytes > _NOTHING_BYTES and self._moves_the_clock(transfer):
            self._plan(transfer)
            return
        transfer.left_bytes = 0.0
        self._take_off(transfer)
        if transfer.is_closed:
            transfer.on_sent(transfer)

    def _moves_the_clock(self, transfer: LinkTransfer) -> bool:
        return self._queue.now + transfer.left_bytes / transfer.rate_bytes_per_s > self._queue.now


class HostLink:
    """KV copies between one machine and its host's memory: one queue each way (FastServe, section 4.2).

    Attributes:
        out_bytes, in_bytes: swapped out and in.

    Args:
        bytes_per_s: each way.
        block_bytes: bytes of a block of KV.
        queue: the clock.
        receive: handles the machine's events.
    """

    def __init__(self, bytes_per_s: float, block_bytes: int, queue: EventQueue, receive: Callable[[Any], None]) -> None:
        self.out_bytes = self.in_bytes = 0
        self._bytes_per_s = bytes_per_s
        self._block_bytes = block_bytes
        self._queue = queue
        self._receive = receive
        self._out_free_s = self._in_free_s = 0.0

    def swap_out(self, command: c.SwapOut) -> None:
        """Copy to the host."""
        num_bytes = len(command.block_ids) * self._block_bytes
        self.out_bytes += num_bytes
        self._out_free_s = self._copied_s(self._out_free_s, num_bytes)
        self._queue.at(self._out_free_s, self._receive, c.Swapped(command.sequence_id))

    def swap_in(self, command: c.SwapIn) -> None:
        """Copy back."""
        num_bytes = len(command.block_ids) * self._block_bytes
        self.in_bytes += num_bytes
        self._in_free_s = self._copied_s(self._in_free_s, num_bytes)
        self._queue.at(self._in_free_s, self._receive, c.Swapped(command.sequence_id))

    def _copied_s(self, free_s: float, num_bytes: int) -> float:
        return max(free_s, self._queue.now) + num_bytes / self._bytes_per_s


class ControlPlane:
    """Carries messages to inboxes, in the order in which they were sent: each takes the same time, and none is lost while its
    recipient is a member."""

    def __init__(self, queue: EventQueue, latency_s: float) -> None:
        self._queue = queue
        self._latency_s = latency_s
        self._inboxes: dict[str, Callable[[Any], None]] = {}
        self._ignored: dict[str, frozenset[type]] = {}

    def open_inbox(
        self, member_id: str, receive: Callable[[Any], None], ignored: frozenset[type] = frozenset()
    ) -> None:
        """Call `receive(message)` with each message to `member_id` but those of `ignored` types."""
        self._inboxes[member_id] = receive
        if ignored:
            self._ignored[member_id] = ignored

    def close_inbox(self, member_id: str) -> None:
        """Drop further messages to a member that has left."""
        self._inboxes[member_id] = lambda message: None

    def send(self, recipient_id: str, message: Message) -> None:
        """Send a message; raises KeyError if the recipient never was a member."""
        ignored = self._ignored.get(recipient_id)
        if ignored is None or type(message) not in ignored:
            self._queue.in_turn(self._queue.now + self._latency_s, self._inboxes[recipient_id], message)
