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

from spotwise.core.worker.holdings import Holdings
from spotwise.core.worker.sequence import Sequence


class PrefixCache:
    """Finds and enters full blocks of the sequences held."""

    def __init__(self, holdings: Holdings, *, enabled: bool) -> None:
        self._holdings = holdings
        self.is_enabled = enabled

    def reusable_blocks(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the blocks with which a sequence that has nothing computed may begin: found, or among its own by now."""
        if not self.is_enabled or sequence.computed_tokens > 0 or not sequence.may_reuse:
            return ()
        if sequence.block_ids:  # what others have computed since is not in them
            return sequence.block_ids[: sequence.reused_blocks]
        pool = self._holdings.pool
        most = min(sequence.known_tokens - 1, len(sequence.token_ids)) // pool.block_size
        return pool.find(self._contents(sequence, most))

    def enter_computed(self, sequence: Sequence) -> None:
        """Make the full blocks of a sequence, whose record is known, findable."""
        if not self.is_enabled:
            return
        pool = self._holdings.pool
        full = min(sequence.computed_tokens, len(sequence.token_ids)) // pool.block_size
        if full > sequence.entered_blocks:
            contents = self._contents(sequence, full)
            for index in range(sequence.entered_blocks, full):
                pool.remember(sequence.sequence_id, index, contents[index])
            sequence.entered_blocks = full

    def _contents(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """Return the hashes of a sequence's first blocks."""
        size, hashes = self._holdings.pool.block_size, sequence.block_hashes
        while len(hashes) < blocks:
            first = len(hashes) * size
            parent = hashes[-1] if hashes else hashlib.sha256(sequence.model.encode()).digest()
            tokens = array("q", sequence.token_ids[first : first + size])
            hashes.append(hashlib.sha256(parent + tokens.tobytes()).digest())
        return hashes[:blocks]
