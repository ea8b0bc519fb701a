"""Block accounting never leaks, whatever is asked of it in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spotwise.core.kv_blocks import BlockPool, KvBlocksError

OWNERS = st.sampled_from("abcdefgh")


class BlockAccounting(RuleBasedStateMachine):
    """The pool beside the simplest account there is: a set of blocks for each owner."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(1, 1)
        self.owned: dict[str, tuple[int, ...]] = {}

    @initialize(num_blocks=st.integers(1, 24), block_size=st.integers(1, 5))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)

    @rule(owner=OWNERS, tokens=st.integers(0, 60))
    def allocate(self, owner: str, tokens: int) -> None:
        """An allocation succeeds exactly where the pool said it would and the owner has nothing."""
        if owner in self.owned or not self.pool.can_allocate(tokens):
            with pytest.raises(KvBlocksError):
                self.pool.allocate(owner, tokens)
            return
        blocks = self.pool.allocate(owner, tokens)
        assert len(blocks) * self.pool.block_size >= tokens > (len(blocks) - 1) * self.pool.block_size
        taken = {block for table in self.owned.values() for block in table}
        assert list(blocks) == [block for block in range(self.pool.num_blocks) if block not in taken][: len(blocks)]
        self.owned[owner] = blocks

    @rule(owner=OWNERS)
    def free(self, owner: str) -> None:
        """Whatever was given comes back, once."""
        if owner in self.owned:
            assert self.pool.free(owner) == len(self.owned.pop(owner))
        else:
            with pytest.raises(KvBlocksError):
                self.pool.free(owner)

    @precondition(lambda self: self.owned)
    @rule()
    def free_all(self) -> None:
        """An empty pool holds again all that it could ever fit."""
        for owner in list(self.owned):
            self.free(owner)
        assert self.pool.can_allocate(self.pool.num_blocks * self.pool.block_size)

    @invariant()
    def every_block_is_free_or_owned_once(self) -> None:
        tables = [self.pool.owned_by(owner) for owner in "abcdefgh"]
        blocks = [block for table in tables for block in table]
        assert len(blocks) == len(set(blocks))
        assert set(blocks) <= set(range(self.pool.num_blocks))
        assert self.pool.free_blocks + len(blocks) == self.pool.num_blocks
        assert self.pool.used_blocks == len(blocks)
        assert self.pool.owners == len(self.owned)
        assert {owner: self.pool.owned_by(owner) for owner in self.owned} == self.owned


TestBlockAccounting = BlockAccounting.TestCase
TestBlockAccounting.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
