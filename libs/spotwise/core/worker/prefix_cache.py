"""Which computed blocks a sequence need not compute again.

Law: a full block is known by a hash of its tokens and of the hash of the block before it, begun with the model's name: the KV
of a position depends on those and on nothing else. A prompt begins with the blocks whose hashes are known, shared and not
copied; its last token is always computed, because the first new token is sampled from its logits. A prompt whose
log-probabilities are asked for is computed whole.

Source: automatic prefix caching as vLLM has it; the tokens of an answer are part of the next turn's prompt, so blocks that
decodes fill are kept too, and a preempted sequence finds its own again.

Invariants: a block is entered when all its positions are computed, and by who computed or received them; nothing is written
into a block that is reused, because writing goes on behind the last full block; tokens that were only counted have no hash.
"""

from __future__ import annotations

import hashlib
from array import array

from spotwise.core.worker.sequence import Sequence
from spotwise.core.worker.sequence_table import SequenceTable


class PrefixCache:
    """Finds and enters full blocks of the sequences held."""

    def __init__(self, table: SequenceTable, *, enabled: bool) -> None:
        self._table = table
        self.is_enabled = enabled

    def reusable_blocks(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the blocks with which a sequence that has nothing computed may begin: found, or among its own by now."""
        if not self.is_enabled or sequence.computed_tokens > 0 or not sequence.may_reuse:
            return ()
        if sequence.block_ids:  # what others have computed since is not in them
            return sequence.block_ids[: sequence.reused_blocks]
        return self._table.pool.find(self._reusable_contents(sequence))

    def fetchable_blocks(self, sequence: Sequence, reusable: int) -> tuple[int, ...]:
        """Return the host's blocks that go on where the first `reusable` blocks of a sequence that has none yet end."""
        host = self._table.host
        if host is None or not self.is_enabled or sequence.block_ids or not sequence.may_reuse or sequence.swap_failed:
            return ()
        return host.find(self._reusable_contents(sequence)[reusable:])

    def enter_computed(self, sequence: Sequence) -> None:
        """Make the full blocks of a sequence, whose record is known, findable."""
        if not self.is_enabled:
            return
        full = self._full_blocks(sequence)
        if full > sequence.entered_blocks:
            contents = self._contents(sequence, full)
            for index in range(sequence.entered_blocks, full):
                self._table.pool.remember(sequence.sequence_id, index, contents[index])
            sequence.entered_blocks = full

    def full_contents(self, sequence: Sequence) -> list[bytes]:
        """Return the hashes of the full blocks of a sequence's computed tokens; none where nothing is reused."""
        return self._contents(sequence, self._full_blocks(sequence)) if self.is_enabled else []

    def enter_fetched(self, sequence: Sequence, first: int, last: int) -> None:
        """Make blocks `first` to `last`, not included, of a sequence findable that were computed before it got them."""
        contents = self._contents(sequence, last)
        for index in range(first, last):
            self._table.pool.remember(sequence.sequence_id, index, contents[index])

    def _reusable_contents(self, sequence: Sequence) -> list[bytes]:
        """Return the hashes of the blocks that need no computing: all full ones, but for the last token's."""
        size = self._table.pool.block_size
        return self._contents(sequence, min(sequence.known_tokens - 1, len(sequence.token_ids)) // size)

    def _full_blocks(self, sequence: Sequence) -> int:
        return min(sequence.computed_tokens, len(sequence.token_ids)) // self._table.pool.block_size

    def _contents(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """Return the hashes of a sequence's first blocks."""
        size, hashes = self._table.pool.block_size, sequence.block_hashes
        while len(hashes) < blocks:
            first = len(hashes) * size
            parent = hashes[-1] if hashes else hashlib.sha256(sequence.model.encode()).digest()
            tokens = array("q", sequence.token_ids[first : first + size])
            hashes.append(hashlib.sha256(parent + tokens.tobytes()).digest())
        return hashes[:blocks]
