"""Who owns which KV block.

Law: the KV cache is cut into blocks of `block_size` tokens; a sequence owns whole blocks, listed in its block table (paged
KV cache, as PagedAttention has it). Blocks are given lowest number first, so that tables tend to be contiguous runs.

Invariants: every block is free or owned by exactly one owner; `free_blocks + sum of owned == num_blocks` always; giving back
what is not owned raises.
"""

from __future__ import annotations

import heapq


class KvBlocksError(RuntimeError):
    """Block accounting was misused: a bug in the caller."""


class BlockPool:
    """Accounting of one worker's KV blocks; it moves no bytes."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("num_blocks and block_size must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks))
        self._owned: dict[str, tuple[int, ...]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks that somebody owns."""
        return self.num_blocks - len(self._free)

    @property
    def owners(self) -> int:
        """How many owners hold blocks."""
        return len(self._owned)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens of KV fill."""
        return -(-tokens // self.block_size)

    def can_allocate(self, tokens: int) -> bool:
        """Tell whether blocks for `tokens` tokens are free now."""
        return self.blocks_for(tokens) <= len(self._free)

    def could_ever_fit(self, tokens: int) -> bool:
        """Tell whether an empty pool would hold `tokens` tokens."""
        return self.blocks_for(tokens) <= self.num_blocks

    def allocate(self, owner: str, tokens: int) -> tuple[int, ...]:
        """Give `owner` blocks for `tokens` tokens and return their ids.

        Raises:
            KvBlocksError: not enough are free (ask `can_allocate` first), or the owner has blocks already.
        """
        needed = self.blocks_for(tokens)
        if owner in self._owned:
            raise KvBlocksError(f"{owner} owns blocks already")
        if needed > len(self._free):
            raise KvBlocksError(f"{needed} blocks asked, {len(self._free)} free")
        block_ids = tuple(heapq.heappop(self._free) for _ in range(needed))
        self._owned[owner] = block_ids
        return block_ids

    def owned_by(self, owner: str) -> tuple[int, ...]:
        """Return the owner's block table; empty where it owns nothing."""
        return self._owned.get(owner, ())

    def free(self, owner: str) -> int:
        """Take all blocks of `owner` back and return how many they were.

        Raises:
            KvBlocksError: the owner holds nothing.
        """
        try:
            block_ids = self._owned.pop(owner)
        except KeyError:
            raise KvBlocksError(f"{owner} owns no blocks") from None
        for block_id in block_ids:
            heapq.heappush(self._free, block_id)
        return len(block_ids)
