"""Finds computed blocks that a sequence need not compute again (automatic prefix caching).

Law: a full block's content is a hash of its tokens, of the block before it, and, first of all, of the model's name and the
sequence's salt (`prefixes.py`): sequences of different salts share no block, on the device, the host or by a move.
A prompt begins with the blocks that are found; its last token is always computed, for its logits.
A block becomes findable once all its positions are computed or received; reused blocks are not written.
Prompts with log-probabilities are computed whole; tokens that were only counted have no hash.
Source: automatic prefix caching as in vLLM. Blocks that decodes fill are kept too: an answer is part of the next turn's prompt.

KV that depends on another numerics class (`messages/numerics.py`) is findable for no other sequence.
"""

from __future__ import annotations

import hashlib
from array import array

from spotwise.core.requests.prefixes import root_hash
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable


class PrefixCache:
    """Finds and enters full blocks."""

    def __init__(self, table: SequenceTable, *, enabled: bool) -> None:
        self._table = table
        self.is_enabled = enabled

    def reusable_blocks(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the cached blocks with which a sequence without computed tokens begins."""
        if not self.is_enabled or sequence.computed_tokens > 0 or not sequence.may_reuse:
            return ()
        if sequence.block_ids:  # allocated already: blocks cached since are not among them
            return sequence.block_ids[: sequence.reused_blocks]
        return self._table.pool.find(self._reusable_contents(sequence))

    def fetchable_blocks(self, sequence: Sequence, reusable: int) -> tuple[int, ...]:
        """Return host blocks that continue the first `reusable` blocks of a sequence without blocks."""
        host = self._table.host
        if host is None or not self.is_enabled or sequence.block_ids or not sequence.may_reuse or sequence.swap_failed:
            return ()
        return host.find(self._reusable_contents(sequence)[reusable:])

    def enter_computed(self, sequence: Sequence) -> None:
        """Make the full blocks of a sequence with a record findable."""
        if not self.is_enabled:
            return
        full = self._full_blocks(sequence)
        if full > sequence.entered_blocks:
            contents = self._contents(sequence, full)
            for index in range(sequence.entered_blocks, full):
                self._table.pool.remember(sequence.sequence_id, index, contents[index])
            sequence.entered_blocks = full

    def forget(self) -> None:
        """Forget all blocks: their KV is lost."""
        for pool in (self._table.pool, self._table.host):
            if pool is not None:
                pool.forget_contents()

    def full_contents(self, sequence: Sequence) -> list[bytes]:
        """Return the hashes of a sequence's computed full blocks; none when disabled."""
        return self._contents(sequence, self._full_blocks(sequence)) if self.is_enabled else []

    def enter_fetched(self, sequence: Sequence, first: int, last: int) -> None:
        """Make a sequence's fetched blocks, from `first` up to `last` (excluded), findable."""
        contents = self._contents(sequence, last)
        for index in range(first, last):
            self._table.pool.remember(sequence.sequence_id, index, contents[index])

    def _reusable_contents(self, sequence: Sequence) -> list[bytes]:
        size = self._table.pool.block_size
        return self._contents(sequence, min(sequence.known_tokens - 1, len(sequence.token_ids)) // size)

    def _full_blocks(self, sequence: Sequence) -> int:
        if sequence.has_foreign_kv:
            return 0
        return min(sequence.computed_tokens, len(sequence.token_ids)) // self._table.pool.block_size

    def _contents(self, sequence: Sequence, blocks: int) -> list[bytes]:
        size, hashes = self._table.pool.block_size, sequence.block_hashes
        while len(hashes) < blocks:
            first = len(hashes) * size
            parent = hashes[-1] if hashes else root_hash(sequence.model, sequence.prefix_salt)
            tokens = array("q", sequence.token_ids[first : first + size])
            hashes.append(hashlib.sha256(parent + tokens.tobytes()).digest())
        return hashes[:blocks]
