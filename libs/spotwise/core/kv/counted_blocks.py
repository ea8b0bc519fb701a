"""KV blocks that are only counted, for engines that keep nothing in them.

Law: answers are those of `BlockPool`, but for which blocks: every entry of a block table is 0, and no content is found again.
Costs depend neither on the number of blocks nor on an owner's share, so large simulated machines are cheap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

from spotwise.core.kv.blocks import BlockPool, KvBlocksError


@lru_cache(maxsize=1 << 14)
def _table(blocks: int) -> tuple[int, ...]:
    return (0,) * blocks


class CountedBlockPool(BlockPool):
    """A pool that counts each owner's blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("num_blocks and block_size must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._count: dict[str, int] = {}
        self._free_count = num_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks without an owner."""
        return self._free_count

    @property
    def cached_blocks(self) -> int:
        """None: no content is found again."""
        return 0

    @property
    def owners(self) -> int:
        """Owners of at least one block."""
        return len(self._count)

    def can_allocate(
        self, tokens: int, reused: tuple[int, ...] = (), spare: int = 0, given_up: Collection[str] = ()
    ) -> bool:
        """Tell whether free blocks and those of `given_up` hold `tokens` tokens, with `spare` blocks left."""
        free = self._free_count + sum(self._count.get(owner, 0) for owner in given_up)
        return self.blocks_for(tokens) + spare <= free

    def needed(self, tokens: int, reused: tuple[int, ...] = ()) -> int:
        """Count the free blocks that `tokens` tokens take."""
        return self.blocks_for(tokens)

    def freed_blocks(self, owners: Collection[str]) -> int:
        """Count the blocks of these owners."""
        return sum([self._count.get(owner, 0) for owner in owners])

    def can_extend(self, owner: str, tokens: int) -> bool:
        """Tell whether the owner's blocks and the free ones hold `tokens` tokens."""
        return self.blocks_for(tokens) - self._count.get(owner, 0) <= self._free_count

    def owned_by(self, owner: str) -> tuple[int, ...]:
        """Return a table of the owner's length; empty where it owns nothing."""
        return _table(self._count.get(owner, 0))

    def find(self, contents: Iterable[bytes]) -> tuple[int, ...]:
        """Find nothing."""
        return ()

    def allocate(self, owner: str, tokens: int, reused: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Allocate blocks for `tokens` tokens; `reused` is empty here."""
        if owner in self._count:
            raise KvBlocksError(f"{owner} owns blocks already")
        return self._give(owner, self.blocks_for(tokens))

    def extend(self, owner: str, tokens: int) -> tuple[int, ...]:
        """Allocate what the owner lacks for `tokens` tokens."""
        if owner not in self._count:
            raise KvBlocksError(f"{owner} owns no blocks")
        return self._give(owner, max(0, self.blocks_for(tokens) - self._count[owner]))

    def _give(self, owner: str, blocks: int) -> tuple[int, ...]:
        if blocks > self._free_count:
            raise KvBlocksError(f"{blocks} blocks needed, {self._free_count} free")
        self._free_count -= blocks
        owned = self._count[owner] = self._count.get(owner, 0) + blocks
        return _table(owned)

    def remember(self, owner: str, index: int, content: bytes) -> None:
        """Remember nothing."""

    def free(self, owner: str) -> int:
        """Free all blocks of `owner` and return how many they were."""
        if owner not in self._count:
            raise KvBlocksError(f"{owner} owns no blocks")
        blocks = self._count.pop(owner)
        self._free_count += blocks
        return blocks
