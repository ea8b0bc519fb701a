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
        if owner in self._owned:
            raise KvBlocksError(f"{owner} owns blocks already")
        self._owned[owner] = self._take(self.blocks_for(tokens))
        return self._owned[owner]

    def can_extend(self, owner: str, tokens: int) -> bool:
        """Tell whether the owner's blocks, and those that are free now, hold `tokens` tokens."""
        return self.blocks_for(tokens) - len(self.owned_by(owner)) <= self.free_blocks

    def extend(self, owner: str, tokens: int) -> tuple[int, ...]:
        """Give an owner the blocks that it lacks for `tokens` tokens, and return its block table.

        Raises:
            KvBlocksError: not enough are free (ask `can_extend` first), or the owner has none yet.
        """
        if owner not in self._owned:
            raise KvBlocksError(f"{owner} owns no blocks")
        missing = self.blocks_for(tokens) - len(self._owned[owner])
        if missing > 0:
            self._owned[owner] += self._take(missing)
        return self._owned[owner]

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

    def _take(self, needed: int) -> tuple[int, ...]:
        if needed > len(self._free):
            raise KvBlocksError(f"{needed} blocks asked, {len(self._free)} free")
        return tuple(heapq.heappop(self._free) for _ in range(needed))
