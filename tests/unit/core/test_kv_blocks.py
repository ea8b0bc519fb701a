"""Block accounting: who owns which block, and what misuse does."""

from __future__ import annotations

import pytest

from spotwise.core.kv_blocks import BlockPool, KvBlocksError


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 16)])
def test_a_pool_without_blocks_or_tokens_is_refused(num_blocks: int, block_size: int) -> None:
    """A pool that could hold nothing is a mistake in the settings."""
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(num_blocks, block_size)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (160, 10)])
def test_a_begun_block_counts_whole(tokens: int, blocks: int) -> None:
    """Tokens are rounded up to whole blocks."""
    assert BlockPool(10, 16).blocks_for(tokens) == blocks


def test_the_lowest_free_blocks_are_given_first() -> None:
    """Tables are runs of neighbours, and what came back first is used again first."""
    pool = BlockPool(8, 16)
    assert pool.allocate("a", 32) == (0, 1)
    assert pool.allocate("b", 33) == (2, 3, 4)
    assert pool.free("a") == 2
    assert pool.allocate("c", 48) == (0, 1, 5)
    assert pool.owned_by("b") == (2, 3, 4)
    assert (pool.free_blocks, pool.used_blocks, pool.owners) == (2, 6, 2)


def test_it_says_beforehand_what_fits_now_and_what_ever_will() -> None:
    """`can_allocate` looks at free blocks, `could_ever_fit` at all of them."""
    pool = BlockPool(4, 16)
    pool.allocate("a", 40)
    assert pool.can_allocate(16)
    assert not pool.can_allocate(17)
    assert pool.could_ever_fit(64)
    assert not pool.could_ever_fit(65)


def test_misuse_raises_and_changes_nothing() -> None:
    """A second allocation, one too large, and giving back what is not owned are bugs; the accounts stay."""
    pool = BlockPool(4, 16)
    pool.allocate("a", 32)
    with pytest.raises(KvBlocksError, match="a owns blocks already"):
        pool.allocate("a", 1)
    with pytest.raises(KvBlocksError, match="3 blocks asked, 2 free"):
        pool.allocate("b", 33)
    with pytest.raises(KvBlocksError, match="b owns no blocks"):
        pool.free("b")
    assert pool.owned_by("a") == (0, 1)
    assert pool.owned_by("b") == ()
    assert (pool.free_blocks, pool.owners) == (2, 1)
    pool.free("a")
    with pytest.raises(KvBlocksError, match="a owns no blocks"):
        pool.free("a")
    assert pool.free_blocks == 4
