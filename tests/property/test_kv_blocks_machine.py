"""Block accounting never leaks and never confuses contents, for any operations in any order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spotwise.core.kv.blocks import BlockPool, KvBlocksError

OWNERS = st.sampled_from("abcdefgh")
#: Texts over two letters, so that many begin alike; a full block is known by all the text up to its end.
TEXTS = st.text("xy", max_size=40)


class BlockAccounting(RuleBasedStateMachine):
    """The pool beside the simplest account there is: a table and a text for each owner, and what is written in each block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(1, 1)
        self.owned: dict[str, tuple[int, ...]] = {}
        self.texts: dict[str, str] = {}
        self.written: dict[int, str] = {}

    @initialize(num_blocks=st.integers(1, 24), block_size=st.integers(1, 5))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)

    def contents(self, text: str) -> list[str]:
        """The texts that a text's full blocks are known by."""
        size = self.pool.block_size
        return [text[: end * size] for end in range(1, len(text) // size + 1)]

    def find(self, text: str) -> tuple[int, ...]:
        found = self.pool.find(content.encode() for content in self.contents(text))
        assert [self.written[block_id] for block_id in found] == self.contents(text)[: len(found)]
        return found

    def write(self, owner: str, first_block: int) -> None:
        """The owner's text is computed: all blocks from `first_block` on are written, the full ones made known."""
        table, text = self.owned[owner], self.texts[owner]
        for index, content in enumerate(self.contents(text)):
            if index >= first_block:
                self.written[table[index]] = content
                self.pool.remember(owner, index, content.encode())
        for block_id in table[max(first_block, len(self.contents(text))) :]:
            self.written.pop(block_id, None)

    @rule(owner=OWNERS, text=TEXTS, reuses=st.booleans(), spare=st.integers(0, 3))
    def allocate(self, owner: str, text: str, reuses: bool, spare: int) -> None:
        """An allocation succeeds exactly where the pool reported enough free blocks and the owner has none."""
        reused = self.find(text) if reuses else ()
        if owner in self.owned or not self.pool.can_allocate(len(text), reused):
            with pytest.raises(KvBlocksError):
                self.pool.allocate(owner, len(text), reused)
            return
        leaves_spare = self.pool.can_allocate(len(text), reused, spare)
        self.owned[owner] = blocks = self.pool.allocate(owner, len(text), reused)
        self.texts[owner] = text
        assert leaves_spare == (self.pool.free_blocks >= spare)
        assert len(blocks) == self.pool.blocks_for(len(text))
        assert blocks[: len(reused)] == reused
        self.write(owner, len(reused))

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), more=st.text("xy", max_size=8))
    def extend(self, data: st.DataObject, more: str) -> None:
        """A sequence grows by what it lacks; what it had stays where it was."""
        owner = data.draw(st.sampled_from(sorted(self.owned)))
        text = self.texts[owner] + more
        if not self.pool.can_extend(owner, len(text)):
            with pytest.raises(KvBlocksError):
                self.pool.extend(owner, len(text))
            return
        before, full = self.owned[owner], len(self.contents(self.texts[owner]))
        self.owned[owner], self.texts[owner] = self.pool.extend(owner, len(text)), text
        assert self.owned[owner][: len(before)] == before
        assert len(self.owned[owner]) == self.pool.blocks_for(len(text))
        self.write(owner, full)

    @rule(owner=OWNERS)
    def free(self, owner: str) -> None:
        """Whatever was given comes back, once."""
        if owner in self.owned:
            del self.texts[owner]
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
    def every_block_is_free_cached_or_referenced(self) -> None:
        references = Counter(block for table in self.owned.values() for block in table)
        assert set(references) <= set(range(self.pool.num_blocks))
        assert self.pool.used_blocks == len(references)
        assert self.pool.free_blocks == self.pool.num_blocks - len(references)
        assert 0 <= self.pool.cached_blocks <= self.pool.free_blocks
        assert self.pool.owners == len(self.owned)
        assert {owner: self.pool.owned_by(owner) for owner in self.owned} == self.owned

    @invariant()
    def no_block_is_shared_by_different_contents(self) -> None:
        """A table's full blocks hold its own text, and its begun block is its own."""
        for owner, text in self.texts.items():
            full = self.contents(text)
            assert [self.written.get(block_id) for block_id in self.owned[owner][: len(full)]] == full
            for block_id in self.owned[owner][len(full) :]:
                assert sum(block_id in table for table in self.owned.values()) == 1


TestBlockAccounting = BlockAccounting.TestCase
TestBlockAccounting.settings = settings(max_examples=120, stateful_step_count=40)
