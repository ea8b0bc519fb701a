"""Totals of a simulated world's machines at its end; requests and iterations are reported as they end."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.members import Pool


@dataclass(frozen=True, slots=True)
class MachineResult:
    """Totals of one machine.

    Attributes:
        home_pool: at the end.
        sent: KV hand-offs that it made.
        sent_bytes: bytes of these, and the sent part of cancelled hand-offs.
        preemptions: sequences that lost their blocks.
        peak_kv_tokens: most tokens with blocks at an iteration's start, device and host.
        swapped_out_bytes, swapped_in_bytes: KV copied to the host, and back.
    """

    machine_id: str
    home_pool: Pool
    sent: int
    sent_bytes: float
    preemptions: int
    peak_kv_tokens: int
    swapped_out_bytes: int
    swapped_in_bytes: int


@dataclass(frozen=True, slots=True)
class WorldResult:
    """Totals of a world at its end.

    Attributes:
        ended_s: simulated end of the last request.
        machines: in order of id.
        moved, recomputed, restarted: requests of machines that left, as in `DepartureTotals`.
    """

    ended_s: float
    completed: int
    failed: int
    machines: tuple[MachineResult, ...]
    moved: int = 0
    recomputed: int = 0
    restarted: int = 0
