"""Accounting of paged KV blocks, with automatic prefix caching.

Law: a sequence owns whole blocks of `block_size` tokens, listed in its block table; blocks are allocated lowest number first.
A full block whose content is known by a hash may be in several tables at once; it is not written any more.
A block that loses its last owner stays cached: free, found again by its content, and reused last, in LRU order.
Every block is free, cached or referenced; a content names one block at most.
Source: block tables, PagedAttention (Kwon et al., SOSP 2023); prefix caching as in vLLM (hash chains, reference counts, LRU).
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable


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
        self._cached: OrderedDict[int, None] = OrderedDict()  #: least recently used first
        self._references: Counter[int] = Counter()
        self._owned: dict[str, tuple[int, ...]] = {}
        self._content_of: dict[int, bytes] = {}
        self._block_with: dict[bytes, int] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks without an owner, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def used_blocks(self) -> int:
        """Blocks with an owner."""
        return self.num_blocks - self.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks without an owner that are still found by their content."""
        return len(self._cached)

    @property
    def owners(self) -> int:
        """Owners of at least one block."""
        return len(self._owned)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens of KV fill."""
        return -(-tokens // self.block_size)

    def never_fits(self, tokens: int) -> str | None:
        """Return why not even an empty pool holds `tokens` tokens; `None` where it does."""
        blocks = self.blocks_for(tokens)
        return f"{blocks} blocks may be needed, there are {self.num_blocks}" if blocks > self.num_blocks else None

    def can_allocate(
        self, tokens: int, reused: tuple[int, ...] = (), spare: int = 0, given_up: Collection[str] = ()
    ) -> bool:
        """Tell whether `reused`, free blocks and blocks that `given_up` owners would free hold `tokens`, `spare` left."""
        freed = self._freed_by(given_up) if given_up else ()
        taken = sum(block_id in self._cached or block_id in freed for block_id in reused)
        return self.blocks_for(tokens) - len(reused) + spare <= self.free_blocks + len(freed) - taken

    def needed(self, tokens: int, reused: tuple[int, ...] = ()) -> int:
        """Count the free blocks that `tokens` tokens take beside `reused`."""
        return self.blocks_for(tokens) - sum(block_id not in self._cached for block_id in reused)

    def freed_blocks(self, owners: Collection[str]) -> int:
        """Count the blocks that come free if these owners free theirs."""
        return len(self._freed_by(owners))

    def _freed_by(self, owners: Collection[str]) -> set[int]:
        released = Counter(block_id for owner in owners for block_id in self.owned_by(owner))
        return {block_id for block_id, times in released.items() if times == self._references[block_id]}

    def can_extend(self, owner: str, tokens: int) -> bool:
        """Tell whether the owner's blocks and the free ones hold `tokens` tokens."""
        return self.blocks_for(tokens) - len(self.owned_by(owner)) <= self.free_blocks

    def owned_by(self, owner: str) -> tuple[int, ...]:
        """Return the owner's block table; empty without blocks."""
        return self._owned.get(owner, ())

    def find(self, contents: Iterable[bytes]) -> tuple[int, ...]:
        """Return the blocks with these contents, up to the first content that is not found."""
        found: list[int] = []
        for content in contents:
            block_id = self._block_with.get(content)
            if block_id is None:
                break
            found.append(block_id)
        return tuple(found)

    def allocate(self, owner: str, tokens: int, reused: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Allocate blocks for `tokens` tokens, `reused` (from `find`) the first of them; return the block table.

        Raises:
            KvBlocksError: not enough are free (check `can_allocate` first), or the owner has blocks already.
        """
        if owner in self._owned:
            raise KvBlocksError(f"{owner} owns blocks already")
        if not self.can_allocate(tokens, reused):
            raise KvBlocksError(f"{self.blocks_for(tokens)} blocks needed, {self.free_blocks} free")
        self._share(reused)
        self._owned[owner] = reused + self._take(self.blocks_for(tokens) - len(reused))
        return self._owned[owner]

    def extend(self, owner: str, tokens: int) -> tuple[int, ...]:
        """Allocate what the owner lacks for `tokens` tokens; return its block table.

        Raises:
            KvBlocksError: not enough are free (check `can_extend` first), or the owner has none yet.
        """
        if owner not in self._owned:
            raise KvBlocksError(f"{owner} owns no blocks")
        if not self.can_extend(owner, tokens):
            raise KvBlocksError(f"{owner} lacks blocks for {tokens} tokens, {self.free_blocks} are free")
        missing = self.blocks_for(tokens) - len(self._owned[owner])
        if missing > 0:
            self._owned[owner] += self._take(missing)
        return self._owned[owner]

    def remember(self, owner: str, index: int, content: bytes) -> None:
        """Make a written, full block of the owner's table findable, unless another with the same content is.

        Raises:
            KvBlocksError: the block has another content already.
        """
        block_id = self._owned[owner][index]
        if self._content_of.get(block_id, content) != content:
            raise KvBlocksError(f"block {block_id} of {owner} holds something else already")
        if content not in self._block_with:
            self._content_of[block_id] = content
            self._block_with[content] = block_id

    def forget_contents(self) -> None:
        """Forget what all blocks hold: it is lost. Their owners keep them."""
        for block_id in self._cached:
            heapq.heappush(self._free, block_id)
        self._cached.clear()
        self._content_of.clear()
        self._block_with.clear()

    def free(self, owner: str) -> int:
        """Free all blocks of `owner` and return how many they were; `KvBlocksError` where it has none."""
        try:
            block_ids = self._owned.pop(owner)
        except KeyError:
            raise KvBlocksError(f"{owner} owns no blocks") from None
        self._let_go(block_ids)
        return len(block_ids)

    def _share(self, block_ids: tuple[int, ...]) -> None:
        for block_id in block_ids:
            self._cached.pop(block_id, None)
            self._references[block_id] += 1

    def _let_go(self, block_ids: tuple[int, ...]) -> None:
        """Drop one reference each; the last block is forgotten first, because it is of no use without those before it."""
        for block_id in reversed(block_ids):
            self._references[block_id] -= 1
            if self._references[block_id]:
                continue
            del self._references[block_id]
            if block_id in self._content_of:
                self._cached[block_id] = None
            else:
                heapq.heappush(self._free, block_id)

    def _take(self, needed: int) -> tuple[int, ...]:
        taken = [heapq.heappop(self._free) for _ in range(min(needed, len(self._free)))]
        while len(taken) < needed:
            block_id, _ = self._cached.popitem(last=False)
            del self._block_with[self._content_of.pop(block_id)]
            taken.append(block_id)
        for block_id in taken:
            self._references[block_id] = 1
        return tuple(taken)
