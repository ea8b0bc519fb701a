"""Counted blocks answer like blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.kv_blocks import BlockPool, KvBlocksError
from spotwise.simulator.block_counts import BlockCounts

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "extend", "free", "can_allocate", "can_extend"]),
        st.sampled_from("abcd"),
        st.integers(min_value=1, max_value=60),
    ),
    max_size=60,
)


def answer(pool: BlockPool, step: tuple[str, str, int]) -> object:
    """What a pool says to one step."""
    name, owner, tokens = step
    try:
        if name == "free":
            return pool.free(owner)
        if name == "can_allocate":
            return pool.can_allocate(tokens, spare=2)
        if name == "can_extend":
            return pool.can_extend(owner, tokens)
        return len(getattr(pool, name)(owner, tokens))
    except KvBlocksError:
        return "refused"


@given(STEPS)
def test_every_question_and_action_has_the_same_answer_as_with_a_block_pool(steps: list[tuple[str, str, int]]) -> None:
    """In whatever order they come."""
    counted, real = BlockCounts(10, 4), BlockPool(10, 4)
    for step in steps:
        assert answer(counted, step) == answer(real, step)
        for number in ("free_blocks", "used_blocks", "owners", "cached_blocks"):
            assert getattr(counted, number) == getattr(real, number)
        for owner in "abcd":
            assert len(counted.owned_by(owner)) == len(real.owned_by(owner))
