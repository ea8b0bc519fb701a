"""A recorded run, simulated again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.benchmarks.recorded import RecordedCluster, arrivals_of, simulate_recorded
from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.policy import WorkerPolicy

PROFILE = CostProfile("tiny", LinearIterationCost(0.01, 0.001, 0.0, 0.002, 0.0), LinkCost(0.05, 1e6), 1000, 4096, 0.003)


def cluster(*home_pools: Pool, break_even: bool = False) -> RecordedCluster:
    """Workers of those home_pools."""
    return RecordedCluster(home_pools, 256, 16, WorkerPolicy(), PoolPolicy(break_even=break_even))


def test_one_worker_takes_the_time_of_its_profile_and_its_messages() -> None:
    """A prompt iteration, and so many decodes; beside that the messages on the way to the first token."""
    (times,) = simulate_recorded(cluster(Pool.MIXED), PROFILE, arrivals_of([(1e9, 100, 11)]))
    assert times.tpot_s == pytest.approx(0.012)
    assert 0.11 + 3 * 0.003 <= times.ttft_s <= 0.11 + 5 * 0.003 + 1e-9
    assert times.e2e_s == pytest.approx(times.ttft_s + 10 * 0.012)


def test_two_workers_hand_over_after_the_prompt() -> None:
    """The second token waits for the link: its latency and the blocks' bytes, nothing of which is hidden."""
    pair = cluster(Pool.PROMPT, Pool.TOKEN)
    (times,) = simulate_recorded(pair, PROFILE, arrivals_of([(5.0, 96, 2)]))
    assert times.ttft_s == pytest.approx(0.106 + 5 * 0.003)
    assert times.tpot_s == pytest.approx(0.05 + 96_000 / 1e6 + 0.012, abs=0.003)


def test_mixed_workers_need_no_link() -> None:
    """Mixed workers hand nothing over; those of two pools do, and need a measured link."""
    unlinked = replace(PROFILE, link=None)
    requests = arrivals_of([(5.0, 96, 2), (5.0, 96, 2)])
    mixed = cluster(Pool.MIXED, Pool.MIXED)
    assert simulate_recorded(mixed, unlinked, requests) == simulate_recorded(mixed, PROFILE, requests)
    with pytest.raises(ValueError, match="has no hand-offs"):
        simulate_recorded(cluster(Pool.PROMPT, Pool.TOKEN), unlinked, requests)


def test_requests_come_when_they_came() -> None:
    """Arrivals are sorted and start at 0; a request of one token has no time per output token."""
    arrivals = arrivals_of([(1000.5, 20, 3), (1000.0, 10, 1)])
    assert [(each.at_s, each.prompt_tokens, each.output_tokens) for each in arrivals] == [(0.0, 10, 1), (0.5, 20, 3)]
    first, second = simulate_recorded(cluster(Pool.MIXED), PROFILE, arrivals)
    assert first.tpot_s is None
    assert second.tpot_s == pytest.approx(0.012)


def test_a_request_that_would_fail_is_not_left_out() -> None:
    """The recorded request was served, so a failing one means that the copy of the cluster is wrong."""
    with pytest.raises(ValueError, match="a recorded request of 5000 tokens failed in the simulation: never_fits"):
        simulate_recorded(cluster(Pool.MIXED), PROFILE, arrivals_of([(5.0, 5000, 2)]))
