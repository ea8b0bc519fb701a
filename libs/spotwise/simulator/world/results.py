"""What a simulated world reports of its machines at its end; requests and iterations are reported as they happen."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.members import Pool


@dataclass(frozen=True, slots=True)
class MachineResult:
    """One machine's part, from the start to the end of the world.

    Attributes:
        machine_id: its id.
        home_pool: the pool that it belonged to at the end.
        sent: KV hand-offs that it made.
        sent_bytes: of these, and of hand-offs that were called off, as far as they got.
        preemptions: sequences that lost their blocks.
        peak_kv_tokens: for which there were blocks when an iteration began, of the device and of the host, at most.
        swapped_out_bytes, swapped_in_bytes: KV that was copied to the host, and back.
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
    """What is known when nothing happens any more.

    Attributes:
        ended_s: simulated time at which the last request ended.
        completed, failed: requests.
        machines: in order of id.
    """

    ended_s: float
    completed: int
    failed: int
    machines: tuple[MachineResult, ...]
