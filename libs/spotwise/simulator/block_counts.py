"""KV blocks that are counted and not told apart.

Law: the same questions get the same answers as from `BlockPool`, as long as no content is remembered: which block it is that
somebody owns matters to an engine and to nobody else. A simulated engine has no memory, so a block table here is as many
zeros as the owner has blocks, and giving or taking a thousand blocks is one subtraction.

Invariants: those of `BlockPool` that speak of numbers: free and owned blocks sum to all; giving back what is not owned raises.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.kv_blocks import BlockPool, KvBlocksError


class BlockCounts(BlockPool):
    """Accounting of a simulated worker's KV blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(1, block_size)
        if num_blocks < 1:
            raise ValueError("num_blocks must be at least 1")
        self.num_blocks = num_blocks
        self._unowned = num_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody owns."""
        return self._unowned

    def can_allocate(self, tokens: int, reused: tuple[int, ...] = (), spare: int = 0) -> bool:
        """Tell whether blocks that are free now hold `tokens` tokens, and `spare` blocks stay free."""
        return -(-tokens // self.block_size) + spare <= self._unowned

    def find(self, contents: Iterable[bytes]) -> tuple[int, ...]:
        """Find nothing: no content is remembered."""
        return ()

    def allocate(self, owner: str, tokens: int, reused: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Give `owner` blocks for `tokens` tokens.

        Raises:
            KvBlocksError: not enough are free, or the owner has blocks already.
        """
        if owner in self._owned:
            raise KvBlocksError(f"{owner} owns blocks already")
        return self._give(owner, self.blocks_for(tokens))

    def extend(self, owner: str, tokens: int) -> tuple[int, ...]:
        """Give an owner the blocks that it lacks for `tokens` tokens.

        Raises:
            KvBlocksError: not enough are free, or the owner has none yet.
        """
        if owner not in self._owned:
            raise KvBlocksError(f"{owner} owns no blocks")
        return self._give(owner, max(0, self.blocks_for(tokens) - len(self._owned[owner])))

    def reuse(self, owner: str, reused: tuple[int, ...]) -> tuple[int, ...]:
        """Refuse: nothing was found.

        Raises:
            KvBlocksError: always.
        """
        raise KvBlocksError(f"{owner} is to reuse blocks whose content nobody knows")

    def remember(self, owner: str, index: int, content: bytes) -> None:
        """Refuse: blocks that are not told apart hold nothing.

        Raises:
            KvBlocksError: always.
        """
        raise KvBlocksError("contents are not kept; turn prefix caching off")

    def free(self, owner: str) -> int:
        """Take all blocks of `owner` back and return how many they were.

        Raises:
            KvBlocksError: the owner holds nothing.
        """
        try:
            blocks = len(self._owned.pop(owner))
        except KeyError:
            raise KvBlocksError(f"{owner} owns no blocks") from None
        self._unowned += blocks
        return blocks

    def _give(self, owner: str, blocks: int) -> tuple[int, ...]:
        if blocks > self._unowned:
            raise KvBlocksError(f"{blocks} blocks asked, {self._unowned} free")
        self._unowned -= blocks
        table = self._owned[owner] = self._owned.get(owner, ()) + (0,) * blocks
        return table
