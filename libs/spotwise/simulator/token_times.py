"""When each token of each request was made.

Law: a row that reaches the end of its sequence's known tokens brings one token more; it is as late as its iteration's end. The
time from one token of a request to its next is what a client sees between them, because messages to it all take as long.

Invariants: every token but a request's first is reported with its distance exactly once, whatever machines it was made on;
nothing grows with the number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.core.batching import Batch
from spotwise.simulator.observation import Observer


@dataclass(slots=True)
class Progress:
    """How far a request is, on whatever machine.

    Attributes:
        known_tokens: of its prompt, and those made so far.
        output_tokens: made so far.
        last_token_s: when the last one was made.
        longest_gap_s: between two of them.
    """

    known_tokens: int
    output_tokens: int = 0
    last_token_s: float = 0.0
    longest_gap_s: float = 0.0


class TokenTimes:
    """The sequences of one machine, and who hears of their tokens."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._progress: dict[str, Progress] = {}

    def enter(self, sequence_id: str, progress: Progress) -> None:
        """Follow a sequence here."""
        self._progress[sequence_id] = progress

    def drop(self, sequence_id: str) -> None:
        """Follow it here no more."""
        self._progress.pop(sequence_id, None)

    def iterations_ended(self, batch: Batch, ended_before: int, ends_s: Sequence[float]) -> list[str]:
        """Note the tokens of some iterations of an order, and report their distances.

        Args:
            batch: of the order; its rows are those of the first iteration.
            ended_before: iterations of the order that were noted before.
            ends_s: when each of those to be noted ended.

        Returns:
            Whose tokens they are, in order of rows.
        """
        steps, first_s, last_s = len(ends_s), ends_s[0], ends_s[-1]
        longest_s = max((later - earlier for earlier, later in zip(ends_s, ends_s[1:], strict=False)), default=0.0)
        made: list[str] = []
        gap_s, alike, progress_of = 0.0, 0, self._progress
        for row in batch.rows:
            id_ = row.sequence_id
            progress = progress_of[id_]
            if row.first_position + row.num_tokens + ended_before != progress.known_tokens:
                continue  # a part of a prompt that is not its last
            made.append(id_)
            if progress.output_tokens:
                own_s = first_s - progress.last_token_s
                if own_s != gap_s:
                    if alike:
                        self._observer.tokens_spaced(gap_s, alike)
                    gap_s, alike = own_s, 0
                alike += 1
                if own_s > progress.longest_gap_s:
                    progress.longest_gap_s = own_s
            if longest_s > progress.longest_gap_s:
                progress.longest_gap_s = longest_s
            progress.known_tokens += steps
            progress.output_tokens += steps
            progress.last_token_s = last_s
        if alike:
            self._observer.tokens_spaced(gap_s, alike)
        if made:
            for earlier, later in zip(ends_s, ends_s[1:], strict=False):
                self._observer.tokens_spaced(later - earlier, len(made))
        return made
