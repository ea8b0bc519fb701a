"""Tests of block accounting: ownership of blocks, and errors of misuse."""

from __future__ import annotations

import pytest

from spotwise.core.kv.blocks import BlockPool, KvBlocksError


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 16)])
def test_a_pool_without_blocks_or_tokens_is_refused(num_blocks: int, block_size: int) -> None:
    """A pool that could hold nothing is a mistake in the settings."""
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(num_blocks, block_size)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (160, 10)])
def test_a_begun_block_counts_whole(tokens: int, blocks: int) -> None:
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


def test_it_tests_what_fits_now_and_what_ever_will() -> None:
    """`can_allocate` looks at free blocks, `never_fits` at all of them."""
    pool = BlockPool(4, 16)
    pool.allocate("a", 40)
    assert pool.can_allocate(16)
    assert not pool.can_allocate(17)
    assert pool.never_fits(64) is None
    assert pool.never_fits(65) == "5 blocks may be needed, there are 4"


def test_misuse_raises_and_changes_nothing() -> None:
    """A second allocation, one too large, and giving back what is not owned are bugs; the accounts stay."""
    pool = BlockPool(4, 16)
    pool.allocate("a", 32)
    with pytest.raises(KvBlocksError, match="a owns blocks already"):
        pool.allocate("a", 1)
    with pytest.raises(KvBlocksError, match="3 blocks needed, 2 free"):
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


def pool_with(contents: dict[str, tuple[bytes, ...]], num_blocks: int = 4) -> BlockPool:
    """Return a pool whose owners' first blocks have these contents."""
    pool = BlockPool(num_blocks, 16)
    for owner, known in contents.items():
        pool.allocate(owner, 16 * len(known))
        for index, content in enumerate(known):
            pool.remember(owner, index, content)
    return pool


def test_a_block_with_content_is_found_while_it_is_owned_and_after() -> None:
    """A freed block with content counts as free, and is found until another owner gets it."""
    pool = pool_with({"a": (b"1", b"12")})
    assert pool.find([b"1", b"12", b"123"]) == (0, 1)
    assert pool.find([b"2", b"1"]) == ()
    pool.free("a")
    assert (pool.free_blocks, pool.cached_blocks) == (4, 2)
    assert pool.allocate("b", 48, pool.find([b"1", b"12"])) == (0, 1, 2)
    assert (pool.free_blocks, pool.cached_blocks) == (1, 0)


def test_a_shared_block_is_free_when_its_last_owner_is_gone() -> None:
    pool = pool_with({"a": (b"1",)})
    pool.allocate("b", 32, pool.find([b"1"]))
    assert (pool.used_blocks, pool.owned_by("b")) == (2, (0, 1))
    pool.free("a")
    assert pool.used_blocks == 2
    pool.free("b")
    assert (pool.used_blocks, pool.cached_blocks) == (0, 1)


def test_blocks_without_content_are_given_away_first_then_the_least_recently_used() -> None:
    """Blocks without content are evicted first, then the least recently used; of a sequence the last block first."""
    pool = pool_with({"old": (b"1", b"12"), "new": (b"2",)})
    pool.free("old")
    pool.free("new")
    assert pool.allocate("x", 16) == (3,)
    assert pool.allocate("y", 16) == (1,)
    assert pool.find([b"1", b"12"]) == (0,)
    assert pool.allocate("z", 32) == (0, 2)
    assert pool.find([b"1"]) == pool.find([b"2"]) == ()


def test_cached_blocks_that_are_reused_are_no_room_for_others() -> None:
    """Two of the four free blocks are what is reused, so two are left for the rest."""
    pool = pool_with({"a": (b"1", b"12")})
    pool.free("a")
    reused = pool.find([b"1", b"12"])
    assert pool.can_allocate(64, reused)
    assert not pool.can_allocate(65, reused)
    assert not pool.can_allocate(64, reused, spare=1)


def test_blocks_that_would_come_free_and_are_reused_are_no_room_for_others() -> None:
    """One block is free; the two that `a` would give up are what is reused."""
    pool = pool_with({"a": (b"1", b"12"), "b": (b"2",)})
    reused = pool.find([b"1", b"12"])
    assert pool.can_allocate(48, reused, given_up=["a"])
    assert not pool.can_allocate(49, reused, given_up=["a"])


def test_of_two_blocks_with_the_same_content_the_first_is_found() -> None:
    """The other one is an ordinary block; freed, it holds nothing."""
    pool = pool_with({"a": (b"1",), "b": (b"1",)})
    pool.free("b")
    assert (pool.find([b"1"]), pool.cached_blocks) == ((0,), 0)


def test_a_block_does_not_change_its_content() -> None:
    """The content of a block cannot be replaced, since other sequences may read it."""
    pool = pool_with({"a": (b"1",)})
    with pytest.raises(KvBlocksError, match="holds something else"):
        pool.remember("a", 0, b"2")


def test_growing_takes_what_is_missing_and_no_more() -> None:
    """`extend` takes no block while the last has free slots; without free blocks, or for an unknown owner, it raises."""
    pool = BlockPool(3, 16)
    pool.allocate("a", 10)
    assert pool.extend("a", 16) == (0,)
    assert pool.extend("a", 17) == (0, 1)
    assert not pool.can_extend("a", 49)
    with pytest.raises(KvBlocksError, match="a lacks blocks for 49 tokens, 1 are free"):
        pool.extend("a", 49)
    with pytest.raises(KvBlocksError, match="b owns no blocks"):
        pool.extend("b", 1)
