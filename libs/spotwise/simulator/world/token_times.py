"""Times of each request's tokens: each at its iteration's end, with the gap since the previous one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotwise.core.costs.batching import Batch
from spotwise.simulator.world.observation import Observer

#: The one token id of all prompts and outputs.
TOKEN_ID = 0


@dataclass(slots=True)
class Progress:
    """A request's progress, on whatever machine; `last_token_s` is when the last token was made."""

    prompt_tokens: int
    output_tokens: int = 0
    last_token_s: float = 0.0


class TokenTimes:
    """The sequences of one machine, and their running order."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._progress: dict[str, Progress] = {}
        self._first_s = self._last_s = 0.0
        self._iterations = 0

    def enter(self, sequence_id: str, progress: Progress) -> None:
        """Track a sequence."""
        self._progress[sequence_id] = progress

    def drop(self, sequence_id: str) -> None:
        """Stop tracking a sequence; not while an order has a row of it."""
        self._progress.pop(sequence_id, None)

    def iterations_ended(self, batch: Batch, ends_s: Sequence[float]) -> None:
        """Record some iterations of the running order; if several, each makes a token for each of its rows."""
        if not self._iterations:
            self._first_s, gaps_s = ends_s[0], []
        else:
            gaps_s = [ends_s[0] - self._last_s]
        gaps_s += [later_s - end_s for end_s, later_s in pairwise(ends_s)]
        if gaps_s:
            self._observer.tokens_spaced(gaps_s, len(batch.rows))
        self._iterations += len(ends_s)
        self._last_s = ends_s[-1]

    def order_ended(self, batch: Batch) -> list[str]:
        """Record the ended order's effect on its sequences, report the gaps before its first tokens, and return the sequences
        with a new token, in row order."""
        first_s, last_s, iterations = self._first_s, self._last_s, self._iterations
        self._iterations = 0
        progress_of = self._progress
        made = []
        since_s, alike = math.nan, 0
        for sequence_id, first_position, num_tokens, _ in batch.rows:
            progress = progress_of[sequence_id]
            output_tokens = progress.output_tokens
            # a single iteration may compute a chunk of a prompt, which yields no token
            if iterations == 1 and first_position + num_tokens != progress.prompt_tokens + output_tokens:
                continue
            made.append(sequence_id)
            if output_tokens:
                if progress.last_token_s != since_s:
                    if alike:
                        self._observer.tokens_spaced((first_s - since_s,), alike)
                    since_s, alike = progress.last_token_s, 0
                alike += 1
            progress.output_tokens = output_tokens + iterations
            progress.last_token_s = last_s
        if alike:
            self._observer.tokens_spaced((first_s - since_s,), alike)
        return made
