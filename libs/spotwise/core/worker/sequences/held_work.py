"""Work that a worker's role takes over from an engine that has begun it: the simulator counts sequences without a role while
nothing is to be decided (`simulator/world/aggregate_worker.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass

from spotwise.core.costs.batching import Batch
from spotwise.core.worker.kv.push_policy import PushPolicy
from spotwise.core.worker.scheduling.chunked_prefill import ChunkedPrefillBudget
from spotwise.core.worker.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class WorkInFlight:
    """An iteration that runs: its sequences and their tokens; began at Unix time `began_s`. `is_noted`: the budget knows it."""

    members: list[tuple[Sequence, int]]
    batch: Batch
    began_s: float
    is_noted: bool


@dataclass(frozen=True, slots=True)
class HeldWork:
    """Snapshot of a worker's in-flight state.

    Attributes:
        sequences: in order of arrival, each with how many blocks it has.
        loading: ids of those whose record is being loaded.
        in_flight: one iteration, or none.
        budget, pushes: with what they have learned.
        assignments_seen: last assignment number by scheduler.
        preemptions: so far.
    """

    sequences: Listed[tuple[Sequence, int]]
    loading: Collection[str]
    in_flight: WorkInFlight | None
    budget: ChunkedPrefillBudget
    pushes: PushPolicy
    assignments_seen: Mapping[str, int]
    preemptions: int = 0
