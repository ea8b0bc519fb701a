"""Blocks that are only counted are as many as those with names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.kv.blocks import BlockPool, KvBlocksError
from spotwise.core.kv.counted_blocks import CountedBlockPool

OWNERS = st.sampled_from("abcd")
STEPS = st.lists(
    st.tuples(st.sampled_from(["allocate", "extend"]), OWNERS, st.integers(0, 80)) | st.tuples(st.just("free"), OWNERS),
    max_size=60,
)


def outcome(act: Callable[..., tuple[int, ...] | int], *arguments: str | int) -> int | str:
    """How many blocks the answer is, or why there is none."""
    try:
        answer = act(*arguments)
    except KvBlocksError:
        return "refused"
    return answer if isinstance(answer, int) else len(answer)


@given(STEPS, st.integers(1, 20), st.integers(0, 80), st.integers(0, 5), st.lists(OWNERS, unique=True))
def test_counts_and_answers_are_those_of_the_pool_with_names(
    steps: list[tuple[str, str, int] | tuple[str, str]], blocks: int, tokens: int, spare: int, given_up: list[str]
) -> None:
    """After any sequence of allocations and releases both pools have the same counts and answers."""
    named, counted = BlockPool(blocks, 4), CountedBlockPool(blocks, 4)
    for name, *arguments in steps:
        outcomes = [outcome(getattr(pool, name), *arguments) for pool in (named, counted)]
        assert outcomes[0] == outcomes[1]
        assert (counted.free_blocks, counted.used_blocks, counted.owners) == (
            named.free_blocks,
            named.used_blocks,
            named.owners,
        )
    for owner in "abcd":
        assert len(counted.owned_by(owner)) == len(named.owned_by(owner))
        assert counted.can_extend(owner, tokens) == named.can_extend(owner, tokens)
    assert counted.can_allocate(tokens, (), spare, given_up) == named.can_allocate(tokens, (), spare, given_up)
    assert counted.never_fits(tokens) == named.never_fits(tokens)


def test_nothing_is_found_by_its_content() -> None:
    pool = CountedBlockPool(4, 4)
    pool.allocate("a", 9)
    pool.remember("a", 0, b"first")
    assert pool.find([b"first"]) == ()
    assert pool.cached_blocks == 0


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 1), (1, 0)])
def test_a_pool_of_nothing_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CountedBlockPool(num_blocks, block_size)
