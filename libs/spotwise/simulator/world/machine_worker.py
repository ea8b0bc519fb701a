"""The interface between a machine and its worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from spotwise.core.messages import mesh as m
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.costs.hardware import MachineType
from spotwise.simulator.world.hand_offs import HandOffs
from spotwise.simulator.world.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """A worker's totals, as in `MachineResult`."""

    preemptions: int
    peak_kv_tokens: int
    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0


class MachineWorker(Protocol):
    """A machine's worker: its role, and its engine in simulated time."""

    @property
    def state(self) -> m.MemberState:
        """Whether it takes new requests."""

    @property
    def is_running(self) -> bool:
        """Whether an iteration runs."""

    @property
    def waits(self) -> bool:
        """Whether it holds sequences, and nothing runs."""

    @property
    def boundary_s(self) -> float:
        """End of the running iteration; now, where none runs; settle first."""

    @property
    def free_blocks(self) -> int:
        """Blocks of the device without an owner."""

    @property
    def held_blocks(self) -> int:
        """Blocks with an owner, of the device and of the host."""

    def settle(self) -> None:
        """Count what has ended by now, before anything else happens."""

    def handle(self, event: Any) -> None:
        """Handle a message, or an event of the engine and links; settle first."""

    def load(self) -> m.WorkerLoad:
        """Count what it holds; settle first."""

    def totals(self) -> WorkerTotals:
        """Return its totals."""


class Host(Protocol):
    """What a worker tells its machine."""

    def receive(self, event: Any) -> None:
        """Receive an event of the engine."""

    def order_ended(self, *, has_news: bool) -> None:
        """Learn that an order is over, at its end."""

    def sequence_left(self) -> None:
        """Learn that a sequence left."""

    def take_home_pool(self, pool: m.Pool) -> None:
        """Report this pool from now on."""

    def go_stepwise(self, event: Any) -> None:
        """Let a role go on with the worker's work, and handle this event first."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a worker is: its machine, the policy that it follows, and what this one shares with others."""

    machine_id: str
    machine_type: MachineType
    policy: WorkerPolicy
    around: Surroundings
    hand_offs: HandOffs
    host: Host

    @property
    def kv_blocks(self) -> int:
        """KV blocks of the device."""
        settings = self.around.settings
        return self.machine_type.kv_tokens(settings.model, settings.memory_share) // settings.kv_block_size
