"""What a spot watcher and a fleet's keeper publish."""

from __future__ import annotations

from spotwise.core.messages.fleet import FleetReported
from spotwise.core.messages.mesh import InterruptionReported
from spotwise.core.messages.worker import Drain
from spotwise.mesh.ports.ports import BusMessage, MessageBus
from spotwise.wire import subjects
from spotwise.wire.codec import decode


class Published:
    """Drains, interruptions and reports of the fleet, in the order in which they were published."""

    def __init__(self) -> None:
        self.drains: list[Drain] = []
        self.interruptions: list[InterruptionReported] = []
        self.reports: list[FleetReported] = []

    async def listen(self, bus: MessageBus) -> None:
        for subject in (subjects.FLEET, subjects.NOTICES, subjects.INTERRUPTIONS):
            await bus.subscribe(subject, self._hear)

    async def _hear(self, raw: BusMessage) -> None:
        message = decode(raw.payload)
        if isinstance(message, Drain):
            self.drains.append(message)
        elif isinstance(message, InterruptionReported):
            self.interruptions.append(message)
        elif isinstance(message, FleetReported):
            self.reports.append(message)
