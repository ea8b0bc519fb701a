"""The block tables that devices know, so that a step names only what is new in them."""

from __future__ import annotations

from spotwise.core.costs.batching import Batch
from spotwise.core.messages.groups import StepRow


class BlockTables:
    """By sequence, the table of its last row."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}

    def rows(self, batch: Batch) -> tuple[StepRow, ...]:
        """Return a batch's rows as changes of what is known, and note them."""
        return tuple(
            StepRow(row.sequence_id, row.first_position, row.num_tokens, *self._change(row.sequence_id, row.block_ids))
            for row in batch.rows
        )

    def blocks(self, sequence_id: str) -> tuple[int, ...]:
        """Return a sequence's table; empty where it has had no row."""
        return self._known.get(sequence_id, ())

    def drop(self, sequence_id: str) -> None:
        """Forget a sequence; idempotent."""
        self._known.pop(sequence_id, None)

    def clear(self) -> None:
        """Forget all sequences."""
        self._known.clear()

    def _change(self, sequence_id: str, block_ids: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        known = self._known.get(sequence_id, ())
        if known == block_ids:
            return len(known), ()
        self._known[sequence_id] = block_ids
        if known == block_ids[: len(known)]:
            return len(known), block_ids[len(known) :]
        return 0, block_ids
