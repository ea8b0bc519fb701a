"""An order of several iterations is what as many single orders would be, whatever happens meanwhile."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.kv.counted_blocks import CountedBlockPool
from spotwise.core.messages import mesh as m
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from tests.property.timeline import Arrival, Timeline

ARRIVALS = st.builds(
    Arrival,
    st.sampled_from(["hand_off", "decode", "decode", "in_place", "queued"]),
    prompt=st.integers(1, 20),
    new=st.integers(1, 40),
    alike=st.integers(0, 2),
    load_ticks=st.integers(0, 9),
    then_ticks=st.integers(0, 30),
    cancel_ticks=st.none() | st.none() | st.integers(0, 200),
)
#: Ticks since the step before, and what happens then.
SCRIPTS = st.lists(
    st.tuples(st.integers(0, 60), ARRIVALS | st.sampled_from(["tick", "renew", "stop early"])), max_size=14
)
POLICIES = st.builds(
    WorkerPolicy,
    st.builds(BatchLimits, st.integers(1, 6), st.integers(8, 30), st.none() | st.integers(6, 16)),
    st.sampled_from([Reserve.ON_DEMAND, Reserve.ON_DEMAND, Reserve.MAX_TOKENS]),
    watermark=st.sampled_from([0.0, 0.01, 0.2]),
    max_preemptions=st.integers(1, 3),
    prefix_caching=st.booleans(),
    prompts_first=st.booleans(),
    preempt_after_s=st.sampled_from([0.0, 1.0, 5.0]),
    max_stall_s=st.none() | st.just(1.0),
)


def pausing(policy: WorkerPolicy) -> WorkerPolicy:
    """Return the policy with decodes that pause, which is for whole prompts."""
    limits = replace(policy.limits, max_num_batched_tokens=None, decodes_pause=True)
    return replace(policy, limits=limits, max_stall_s=None)


def played(
    script: list[tuple[int, Arrival | str]], blocks: int, policy: WorkerPolicy, pool_of: type[BlockPool] = BlockPool
) -> Timeline:
    """A timeline that has run to its end."""
    timeline = Timeline(blocks, policy, pool_of)
    tick = 0
    for number, (gap, step) in enumerate(script):
        tick += gap
        if isinstance(step, Arrival):
            timeline.at(tick, partial(timeline.arrive, f"r{number}", step))
        elif step == "stop early":
            timeline.at(tick, timeline.stop_early)
        else:
            timeline.at(tick, partial(timeline.feed, m.Tick() if step == "tick" else m.RenewLeases((("r0", 1),))))
    timeline.run(until=100_000)
    return timeline


@settings(max_examples=300)
@given(
    SCRIPTS,
    st.integers(15, 24),
    POLICIES | POLICIES.map(pausing),
    st.sampled_from([2, 3, 7, 1000]),
    st.sampled_from([BlockPool, CountedBlockPool]),
)
def test_counted_runs_decide_what_single_iterations_decide(
    script: list[tuple[int, Arrival | str]],
    blocks: int,
    policy: WorkerPolicy,
    counted_steps: int,
    pool_of: type[BlockPool],
) -> None:
    """The same rows at the same iterations, the same tables, the same messages at the same times, the same free blocks."""
    single = played(script, blocks, policy, pool_of)
    counted = played(script, blocks, replace(policy, counted_steps=counted_steps), pool_of)
    event(f"preemptions: {min(single.role.load().preemptions, 3)}")
    assert counted.iterations == single.iterations
    assert counted.role.iterations == single.role.iterations == len(single.iterations)
    for number, tables in counted.tables.items():
        assert tables == single.tables[number]
    assert counted.commands == single.commands
    assert counted.free == single.free
    assert counted.orders <= single.orders
    assert counted.live == single.live == {}
    assert counted.pool.free_blocks == blocks


def test_a_long_run_is_few_orders() -> None:
    """However many tokens: one for the prompt, one for the rest of a sequence alone."""
    script: list[tuple[int, Arrival | str]] = [(0, Arrival("in_place", 20, 4000, 0, 0, 0, None))]
    timeline = played(script, 2000, WorkerPolicy(counted_steps=100_000))
    assert len(timeline.iterations) == 4000
    assert timeline.orders == 2
