"""The protocol of scheduling policies, which order a worker's sequences, and policies that order by a key.

Law: before each iteration all runnable sequences are ordered; the first that have blocks and rows run.
The order depends on the sequences, what they were served, and when; equals keep their order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol

from spotwise.core.worker.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that arrives, and whose record is not here yet."""

    priority: int = 0
    tenant: str = ""


class SchedulingPolicy(Protocol):
    """Orders the sequences of a worker."""

    def order(self, candidates: list[Sequence], now: float) -> list[Sequence]:
        """Return the candidates, given in order of arrival, in the order in which they are to run."""

    def ran(self, members: Rows[tuple[Sequence, int]], now: float) -> None:
        """Note that an iteration computed so many tokens of each member; `computed_tokens` counts them already."""

    def next_runs_s(self, ordered: Rows[Sequence], now: float) -> list[float]:
        """Return in how many seconds each of all runnable sequences, in their order, is expected to run."""

    def comes_before(self, sequence: Sequence, newcomer: NewSequence | None, now: float) -> bool:
        """Tell whether a runnable sequence is sure to come before this newcomer; `None`: before any that arrives now."""

    def yields_to(self, sequence: Sequence, newcomer: NewSequence | None, now: float) -> bool:
        """Tell whether this newcomer is expected to come before it; `None`: one of its own priority and tenant."""


class KeyedPolicy:
    """Orders by a key, the lowest first; by arrival where there is none."""

    def __init__(self, key: Callable[[Sequence], int] | None = None) -> None:
        self._key = key

    def order(self, candidates: list[Sequence], now: float) -> list[Sequence]:
        """Return the candidates by the key; equals by arrival."""
        return candidates if self._key is None else sorted(candidates, key=self._key)

    def ran(self, members: Rows[tuple[Sequence, int]], now: float) -> None:
        """Ignore it: a key depends on the sequence alone."""

    def next_runs_s(self, ordered: Rows[Sequence], now: float) -> list[float]:
        """Return each sequence's place in the order, to compare by."""
        return [float(place) for place in range(len(ordered))]

    def comes_before(self, sequence: Sequence, newcomer: NewSequence | None, now: float) -> bool:
        """Tell whether arrival decides; a newcomer's key is unknown."""
        return self._key is None

    def yields_to(self, sequence: Sequence, newcomer: NewSequence | None, now: float) -> bool:
        """Return no: a newcomer's key is unknown."""
        return False


def by_priority(sequence: Sequence) -> int:
    """Return the client's priority number."""
    return sequence.priority


def by_tokens_left(sequence: Sequence) -> int:
    """Return the tokens that are still to be computed; of the answer's, only an oracle's record knows."""
    return sequence.uncomputed_tokens + sequence.remaining_tokens
