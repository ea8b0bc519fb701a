"""The candidates of one iteration in scheduling order, and when each is expected to run.

Law: a scheduling policy orders once per step; expected runs (ENST) are estimated at most once, and only when needed.

Source: FastServe (Wu et al., 2023), section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spotwise.core.kv_swap import HeldKv, choose_to_leave, choose_to_return
from spotwise.core.worker.scheduling_policy import SchedulingPolicy
from spotwise.core.worker.sequence import Sequence


class SchedulingStep:
    """One order, as the scheduling policy made it at Unix time `now`."""

    def __init__(self, order: SchedulingPolicy, sequences: list[Sequence], now: float) -> None:
        self.sequences = sequences
        self.now = now
        self._order = order
        self._places: dict[str, int] = {}
        self._next_runs_s: list[float] = []

    def outranks_newcomers(self, sequence: Sequence) -> bool:
        """Tell whether it comes before any sequence that arrives now."""
        return self._order.outranks_newcomers(sequence, self.now)

    def yields_to_newcomers(self, sequence: Sequence) -> bool:
        """Tell whether a sequence that arrives now is expected to come before it."""
        return self._order.yields_to_newcomers(sequence, self.now)

    def behind(self, sequence: Sequence) -> list[Sequence]:
        """Return the sequences after it."""
        return self.sequences[self._place_of(sequence) + 1 :]

    def last_to_run(
        self, idle: Iterable[Sequence], blocks_of: Callable[[Sequence], int], lacking: int
    ) -> tuple[list[Sequence], int]:
        """Return the last to run that together free the lacking blocks, or all; and how many they free."""
        chosen = choose_to_leave(self._held(idle, blocks_of), lacking)
        return self._sequences_of(chosen), sum(held.blocks for held in chosen)

    def first_to_run(
        self, away: Iterable[Sequence], blocks_of: Callable[[Sequence], int], spare: int
    ) -> list[Sequence]:
        """Return the first to run whose KV fits into so many blocks."""
        return self._sequences_of(choose_to_return(self._held(away, blocks_of), spare))

    def _held(self, sequences: Iterable[Sequence], blocks_of: Callable[[Sequence], int]) -> list[HeldKv]:
        if not self._next_runs_s:
            self._next_runs_s = self._order.next_runs_s(self.sequences, self.now)
        return [
            HeldKv(sequence.sequence_id, blocks_of(sequence), self._next_runs_s[self._place_of(sequence)])
            for sequence in sequences
        ]

    def _sequences_of(self, chosen: list[HeldKv]) -> list[Sequence]:
        return [self.sequences[self._places[held.job_id]] for held in chosen]

    def _place_of(self, sequence: Sequence) -> int:
        if not self._places:
            self._places = {each.sequence_id: place for place, each in enumerate(self.sequences)}
        return self._places[sequence.sequence_id]
