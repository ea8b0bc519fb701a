"""An engine that computes nothing.

Law: a row that reaches the end of its sequence's known tokens gets one token more, as from any engine; which token it is,
nobody asks. Source: what a row means is `BatchRow`'s.

Invariants: a sequence has its prompt's tokens and those that it was given, and no others.
"""

from __future__ import annotations

from spotwise.core.batching import Batch
from spotwise.core.record import RequestRecord
from spotwise.core.sampling import SampledToken

#: The one token of all prompts and answers.
TOKEN_ID = 0


class SyntheticEngine:
    """Counts the tokens of its sequences."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._tokens: dict[str, SampledToken] = {}  #: one for each sequence is enough: they are all alike

    def load(self, record: RequestRecord) -> None:
        """Take a sequence in."""
        id_ = record.sequence_id
        self._known[id_] = len(record.prompt_token_ids) + len(record.output_token_ids)
        self._tokens[id_] = SampledToken(id_, TOKEN_ID)

    def append(self, sequence_id: str) -> None:
        """Note a token that was sampled elsewhere."""
        self._known[sequence_id] += 1

    def drop(self, sequence_id: str) -> None:
        """Forget a sequence."""
        self._known.pop(sequence_id, None)
        self._tokens.pop(sequence_id, None)

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        """Run an iteration and return its tokens, in order of rows."""
        known = self._known
        sampled = []
        for row in batch.rows:
            id_ = row.sequence_id
            if row.first_position + row.num_tokens == known[id_]:
                known[id_] += 1
                sampled.append(self._tokens[id_])
        return tuple(sampled)
