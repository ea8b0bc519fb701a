"""Messages between the members of a simulated mesh: each takes the same time; none is lost while its recipient is a member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwise.core.messages.mesh import Message
from spotwise.simulator.world.events import EventQueue


class ControlPlane:
    """Carries messages to inboxes, in the order in which they were sent."""

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
