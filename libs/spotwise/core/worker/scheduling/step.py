"""The candidates of one iteration in scheduling order, and when each is expected to run.

Law: a scheduling policy orders once per step; expected runs (ENST) are estimated at most once, and only when needed.
Source: FastServe (Wu et al., 2023), section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spotwise.core.worker.scheduling.policy import NewSequence, SchedulingPolicy
from spotwise.core.worker.sequences.sequence import Sequence


class SchedulingStep:
    """One order, as the scheduling policy made it at Unix time `now`."""

    def __init__(self, order: SchedulingPolicy, sequences: list[Sequence], now: float) -> None:
        self.sequences = sequences
        self.now = now
        self._order = order
        self._places: dict[str, int] = {}
        self._next_runs_s: list[float] = []

    def comes_before(self, sequence: Sequence, newcomer: NewSequence | None) -> bool:
        """Tell whether it comes before this newcomer, or where none is given before any."""
        return self._order.comes_before(sequence, newcomer, self.now)

    def yields_to(self, sequence: Sequence, newcomer: NewSequence | None = None) -> bool:
        """Tell whether this newcomer, or some one, is expected to come before it."""
        return self._order.yields_to(sequence, newcomer, self.now)

    def behind(self, sequence: Sequence) -> list[Sequence]:
        """Return the sequences after it."""
        return self.sequences[self._place_of(sequence) + 1 :]

    def last_to_run(
        self, idle: Iterable[Sequence], blocks_of: Callable[[Sequence], int], lacking: int
    ) -> tuple[list[Sequence], int]:
        """Return the last to run that together free the lacking blocks, or all, and how many they free.

        Of equals the last in `idle` comes first; sequences that free nothing, since all their blocks are shared, are skipped.
        """
        chosen: list[Sequence] = []
        freed = 0
        for _, sequence in sorted(
            enumerate(idle), key=lambda entry: (self._next_run_s(entry[1]), entry[0]), reverse=True
        ):
            if freed >= lacking:
                break
            if blocks := blocks_of(sequence):
                chosen.append(sequence)
                freed += blocks
        return chosen, freed

    def first_to_run(
        self, away: Iterable[Sequence], blocks_of: Callable[[Sequence], int], spare: int
    ) -> list[Sequence]:
        """Return the first to run whose KV fits into so many blocks, up to the first that does not fit."""
        chosen: list[Sequence] = []
        for sequence in sorted(away, key=self._next_run_s):
            spare -= blocks_of(sequence)
            if spare < 0:
                break
            chosen.append(sequence)
        return chosen

    def _next_run_s(self, sequence: Sequence) -> float:
        if not self._next_runs_s:
            self._next_runs_s = self._order.next_runs_s(self.sequences, self.now)
        return self._next_runs_s[self._place_of(sequence)]

    def _place_of(self, sequence: Sequence) -> int:
        if not self._places:
            self._places = {each.sequence_id: place for place, each in enumerate(self.sequences)}
        return self._places[sequence.sequence_id]
