"""Meshes that become smaller: what was accepted is served to its end, by what is there or by what comes back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.messages.members import Pool
from tests.property.fake_worker import BLOCK_SIZE
from tests.property.test_mesh_world import MAX_NEW, MAX_PROMPT, MeshCase, meshes, settle

POOLS = st.sampled_from(
    [
        [Pool.MIXED],
        [Pool.MIXED, Pool.MIXED],
        [Pool.TOKEN, Pool.TOKEN, Pool.TOKEN],
        [Pool.MIXED, Pool.PROMPT, Pool.TOKEN],
        [Pool.TOKEN, Pool.MIXED, Pool.TOKEN, Pool.MIXED],
    ]
)
#: What holds any prompt and answer, and more than an open bound's request may have of it.
LARGE_BLOCKS, CONTEXT = 16, 100
#: What holds any prompt and a token, and not every answer.
SMALL_BLOCKS = st.integers(-(-(MAX_PROMPT + 1) // BLOCK_SIZE), (MAX_PROMPT + MAX_NEW) // BLOCK_SIZE - 1)


@settings(max_examples=100)
@given(
    meshes(1, 12, pools=POOLS),
    SMALL_BLOCKS,
    st.booleans(),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.lists(st.tuples(st.floats(0.0, 6.0), st.floats(0.05, 100.0)), max_size=2),
)
def test_a_mesh_that_shrinks_ends_no_stream(
    case: MeshCase, small: int, starts_small: bool, loss: float, losses: list[tuple[float, float]]
) -> None:
    """The largest worker dies and comes back, with messages lost meanwhile. Requests with a bound get every token. Those
    without one get what fits a worker that was there, or all of the context, and are never refused for their size.
    """
    case = replace(case, num_blocks=small)
    world, count = case.world(), case.count
    world.blocks_of["w0"] = LARGE_BLOCKS
    world.kill("w0")
    if starts_small:
        world.at(world.rng.uniform(1.0, 5.0), partial(world.start_if_away, "w0", case.pools[0]))
    else:
        world.start_worker("w0", case.pools[0])
    for number in range(0, count, 2):
        world.open_bounds[f"r{number}"] = CONTEXT
    world.lose(loss)
    for at_s, longest_s in losses:
        back_s = longest_s if len(case.pools) > 1 else min(longest_s, 0.8 * world.limits.max_unready_s)
        case.dies(world, 0, at_s, back_s)
    settle(world, count)
    for choice_id, ending in world.ended.items():
        prompt, delivered = len(world.prompts[choice_id]), len(world.delivered[choice_id])
        if choice_id not in world.open_bounds and ending == "never_fits":
            assert delivered == 0 and prompt + world.stops[choice_id].max_new_tokens > small * BLOCK_SIZE
            continue
        assert ending == "length"
        assert delivered == world.stops[choice_id].max_new_tokens
        if choice_id in world.open_bounds:
            assert prompt + delivered in (small * BLOCK_SIZE, LARGE_BLOCKS * BLOCK_SIZE)
            event("an open bound was resized" if world.attempts[choice_id] > 1 else "one attempt")
