"""The sequences that an engine holds."""

from __future__ import annotations

from spotwise.core.costs.batching import BatchRow
from spotwise.core.requests.record import RequestRecord
from spotwise.engine.forward.adapters import Adapters
from spotwise.engine.forward.sequences import EngineSequence, require_valid
from spotwise.engine.sampling.grammars import Grammars


class HeldSequences:
    """Sequences by id, each one that the engine can compute.

    Args:
        context_length: tokens that a sequence may have.
        vocab_size: token ids are below it.
        adapters: adapters that they may name.
        grammars: follow the grammars of the sequences; `None`: sequences that have one are refused.
        gives_embeddings: the model has a head, whose input is pooled.
    """

    def __init__(
        self,
        context_length: int,
        vocab_size: int,
        adapters: Adapters,
        grammars: Grammars | None,
        *,
        gives_embeddings: bool,
    ) -> None:
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._adapters = adapters
        self._grammars = grammars
        self._gives_embeddings = gives_embeddings
        self._by_id: dict[str, EngineSequence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, record: RequestRecord) -> EngineSequence:
        """Add a sequence; see `Engine.add_sequence`."""
        if record.sequence_id in self._by_id:
            raise ValueError(f"sequence {record.sequence_id} is here already")
        require_valid(record, self._context_length, self._vocab_size)
        if record.sampling.grammar and self._grammars is None:
            raise ValueError(f"sequence {record.sequence_id} has a grammar")
        if record.sampling.pooling is not None and not self._gives_embeddings:
            raise ValueError(
                f"sequence {record.sequence_id} has an embedding, and the model has no head to read it from"
            )
        sequence = EngineSequence(record, self._adapters.of(record.adapter))
        self._by_id[record.sequence_id] = sequence
        return sequence

    def append(self, sequence_id: str, token_id: int) -> None:
        """Add an output token; see `Engine.append_token`."""
        if not 0 <= token_id < self._vocab_size:
            raise ValueError(f"token id {token_id} is outside 0..{self._vocab_size - 1}")
        self._of(sequence_id).append(token_id)

    def drop(self, sequence_id: str) -> None:
        """Forget a sequence; idempotent."""
        self._by_id.pop(sequence_id, None)

    def clear(self) -> None:
        """Forget all."""
        self._by_id.clear()

    def checked(self, row: BatchRow, block_size: int) -> EngineSequence:
        """Return a row's sequence; raises `ValueError` where it has no such tokens, or the row not the blocks for them."""
        sequence = self._of(row.sequence_id)
        sequence.check_row(row, block_size)
        return sequence

    def _of(self, sequence_id: str) -> EngineSequence:
        try:
            return self._by_id[sequence_id]
        except KeyError:
            raise ValueError(f"sequence {sequence_id} is not here") from None
