"""State shared by the machines of a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from spotwise.core.requests.record import RequestRecord
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.network import ControlPlane, Link, Network
from spotwise.simulator.world.observation import Observer
from spotwise.simulator.world.settings import WorldSettings
from spotwise.simulator.world.token_times import Progress


class RequestStore(Protocol):
    """The records of live requests."""

    def record(self, choice_id: str, epoch: int) -> RequestRecord | None:
        """Return an attempt's record, if it is still there."""

    def progress(self, choice_id: str) -> Progress:
        """Return the progress of a request with a record."""


class Neighbour(Protocol):
    """A machine's interface to its peers."""

    receive_link: Link
    has_left: bool

    def receive(self, event: Any) -> None:
        """Receive an event."""


@dataclass(slots=True)
class Surroundings:
    """State shared by all machines of a world; `machines` are by id, departed ones included."""

    queue: EventQueue
    network: Network
    control: ControlPlane
    store: RequestStore
    observer: Observer
    settings: WorldSettings
    scheduler_id: str
    machines: dict[str, Neighbour] = field(default_factory=dict)
