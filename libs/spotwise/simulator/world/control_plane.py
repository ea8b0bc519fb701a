"""Messages between the members of a simulated mesh.

Law: a message takes `latency_s`, from whomever to whomever; none is lost, and of two messages the one sent first arrives
first. The live mesh keeps order between two members only, and may lose messages; the property tests of the mesh do that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwise.core.messages import Message
from spotwise.simulator.world.events import EventQueue


class ControlPlane:
    """Carries messages to inboxes."""

    def __init__(self, queue: EventQueue, latency_s: float) -> None:
        self._queue = queue
        self._latency_s = latency_s
        self._inboxes: dict[str, Callable[[Any], None]] = {}

    def open_inbox(self, member_id: str, receive: Callable[[Any], None]) -> None:
        """Let `receive(message)` be called with what is sent to `member_id`."""
        self._inboxes[member_id] = receive

    def send(self, recipient_id: str, message: Message) -> None:
        """Send a message.

        Raises:
            KeyError: there is no such member.
        """
        self._queue.at(self._queue.now + self._latency_s, self._inboxes[recipient_id], message)
