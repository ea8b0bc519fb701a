"""Laws of prompts that begin alike, in random worlds with prefix caching."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.world.observation import Arrival, CompletedRequest, PromptBlocks
from spotwise.simulator.world.settings import WorldSettings
from tests.unit.simulator.world import worlds

#: Tokens of a trace's block, and of a worker's.
BLOCK, KV_BLOCK = 32, 16


@st.composite
def prompts(draw: st.DrawFn, *, alike: bool) -> list[Arrival]:
    arrivals = []
    for number, at_s in enumerate(sorted(draw(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=20)))):
        tokens = draw(st.integers(1, 150))
        blocks = -(-tokens // BLOCK)
        names = st.integers(0, 1) if alike else st.integers(8 * number, 8 * number + 7)
        hashes = tuple(draw(st.lists(names, min_size=blocks, max_size=blocks)))
        arrivals.append(Arrival(at_s, tokens, draw(st.integers(1, 40)), PromptBlocks(hashes, BLOCK)))
    return arrivals


POLICIES = st.builds(
    WorkerPolicy,
    st.builds(BatchLimits, max_num_seqs=st.sampled_from([2, 8]), max_num_batched_tokens=st.sampled_from([None, 24])),
    prefix_caching=st.just(True),
    watermark=st.sampled_from([0.0, 0.1]),
    preempt_after_s=st.sampled_from([0.0, 0.3]),
)
SETTINGS = st.builds(
    worlds.settings,
    POLICIES,
    pools=st.sampled_from([PoolPolicy(), PoolPolicy(prefix_spans=0), PoolPolicy(prefix_spans=3)]),
    control_latency_s=st.sampled_from([0.0, 0.001]),
)
CLUSTERS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)).filter(
    lambda counts: counts[1] + counts[2] > 0
)


def served(
    counts: tuple[int, int, int], arrivals: list[Arrival], chosen: WorldSettings, kv_tokens: int
) -> list[CompletedRequest]:
    kind = worlds.machine_type(kv_tokens=kv_tokens, link_bytes_per_s=1e6)
    _, diary = worlds.serve(worlds.machines(*counts, kind=kind), arrivals, chosen)
    assert not diary.failed
    return diary.completed


@given(CLUSTERS, prompts(alike=True), SETTINGS, st.sampled_from([256, 4096]))
@settings(deadline=None)
def test_no_more_is_found_than_was_computed_before(
    counts: tuple[int, int, int], arrivals: list[Arrival], chosen: WorldSettings, kv_tokens: int
) -> None:
    """Whole blocks, never the last token, and no longer than what an earlier prompt has in common."""
    completed = served(counts, arrivals, chosen, kv_tokens)
    assert len(completed) == len(arrivals)
    event(f"found: {any(request.cached_tokens for request in completed)}")
    for request in completed:
        own = request.arrival
        assert request.cached_tokens % KV_BLOCK == 0
        assert request.cached_tokens < own.prompt_tokens
        shared = max((_common_tokens(own, other) for other in arrivals if other is not own), default=0)
        assert request.cached_tokens <= shared


@given(CLUSTERS, prompts(alike=True), SETTINGS)
@settings(deadline=None)
def test_orders_of_many_iterations_find_the_same(
    counts: tuple[int, int, int], arrivals: list[Arrival], chosen: WorldSettings
) -> None:
    """One order of many iterations and an order each give every request the same times and cached tokens, with memory for all:
    of counted tokens no block is kept."""
    many, single = (served(counts, arrivals, replace(chosen, counted_steps=steps), 8192) for steps in (64, 1))
    assert many == single


@given(CLUSTERS, prompts(alike=False), SETTINGS)
@settings(deadline=None)
def test_a_cache_that_finds_nothing_costs_nothing(
    counts: tuple[int, int, int], arrivals: list[Arrival], chosen: WorldSettings
) -> None:
    """With memory for all, prompts that have nothing in common are served as without a cache."""
    uncached = replace(chosen, policy=replace(chosen.policy, prefix_caching=False))
    assert served(counts, arrivals, chosen, 8192) == served(counts, arrivals, uncached, 8192)


def _common_tokens(one: Arrival, other: Arrival) -> int:
    assert one.blocks is not None
    assert other.blocks is not None
    common = 0
    for mine, theirs in zip(one.blocks.hashes, other.blocks.hashes, strict=False):
        if mine != theirs:
            break
        common += BLOCK
    return min(common, one.prompt_tokens, other.prompt_tokens)
