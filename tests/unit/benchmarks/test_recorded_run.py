"""Runs reconstructed from journals, and simulated again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.benchmarks.recorded import RecordedCluster, RequestTimes, arrivals_of, simulate_recorded
from spotwise.benchmarks.recorded_run import recorded_cluster, times_of
from spotwise.benchmarks.simulator import compared
from spotwise.cli.errors import CommandError
from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits, SchedulerRole
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.role import WorkerRole
from spotwise.mesh.replay.journal_replay import RecordedRequest, find_journals
from spotwise.mesh.service.journal import make_role
from spotwise.mesh.service.role_loop import RoleLoop
from tests.fakes.memory import FakeClock

POLICY = WorkerPolicy(max_stall_s=0.06)
POOLS = PoolPolicy(max_pending_prompt_tokens=100)


def worker(worker_id: str, pool: m.Pool) -> m.Member:
    kind = m.MemberKind.PROMPT_WORKER if pool is m.Pool.PROMPT else m.MemberKind.TOKEN_WORKER
    return m.Member(worker_id, kind, 7, m.MemberState.READY, "host", 1, "host:1", pool=pool)


def record(folder: Path, *workers: m.Member, kv_blocks: int = 64) -> None:
    """Journals of a scheduler that received these workers' heartbeats, and of the workers."""
    scheduler = m.Member("s", m.MemberKind.CLUSTER_SCHEDULER, 7, m.MemberState.READY, "host", 1, "host:1")
    role, journal = make_role(folder, scheduler, SchedulerRole, "s", SchedulerLimits(), policy=POOLS)
    assert journal is not None
    loop = RoleLoop(role, FakeClock(), {m.Send: lambda command: None}, journal)
    for member in workers:
        loop.feed(member)
        blocks = BlockPool(kv_blocks, 16)
        _, own = make_role(folder, member, WorkerRole, member.id, member.incarnation, "host:2", blocks, POLICY)
        assert own is not None
        own.close()
    journal.close()


def test_the_cluster_is_what_its_roles_were_made_with(tmp_path: Path) -> None:
    record(tmp_path, worker("b", m.Pool.TOKEN), worker("a", m.Pool.PROMPT), worker("b", m.Pool.TOKEN))
    cluster = recorded_cluster(find_journals(tmp_path))
    assert cluster.home_pools == (m.Pool.PROMPT, m.Pool.TOKEN)
    assert (cluster.kv_blocks, cluster.kv_block_size) == (64, 16)
    assert (cluster.worker_policy, cluster.pool_policy) == (POLICY, POOLS)


def test_what_cannot_be_simulated_is_reported(tmp_path: Path) -> None:
    """Half a mesh; workers that differ; a worker that was started anew."""
    with pytest.raises(CommandError, match="no scheduler, or no worker"):
        recorded_cluster([])
    record(tmp_path / "unlike", worker("a", m.Pool.PROMPT))
    record(tmp_path / "unlike", worker("b", m.Pool.TOKEN), kv_blocks=32)
    with pytest.raises(CommandError, match="differ"):
        recorded_cluster(find_journals(tmp_path / "unlike"))
    record(tmp_path / "anew", worker("a", m.Pool.MIXED), replace(worker("a", m.Pool.MIXED), incarnation=8))
    with pytest.raises(CommandError, match="restarted during"):
        recorded_cluster(find_journals(tmp_path / "anew"))


def test_the_simulator_is_judged_by_percentiles() -> None:
    """Six rows, in milliseconds; within a tenth is right, and more or less is not."""
    live = times_of([RecordedRequest(0.0, 10, 3, 0.100, 0.010, 0.120), RecordedRequest(1.0, 10, 1, 0.200, None, 0.200)])
    rows = compared("1 requests/s", [RequestTimes(0.109, 0.012, 0.133), RequestTimes(0.181, None, 0.210)], live)
    assert [row.name for row in rows[:2]] == ["1 requests/s: TTFT p50, ms", "1 requests/s: TTFT p90, ms"]
    assert [(row.ours, row.reference) for row in rows[:2]] == [(109.0, 100.0), (181.0, 200.0)]
    assert [row.holds for row in rows] == [True, True, False, False, False, True]
    with pytest.raises(CommandError, match="TPOT"):
        compared("1 requests/s", [RequestTimes(0.1, None, 0.1)], live)


PROFILE = CostProfile("tiny", LinearIterationCost(0.01, 0.001, 0.0, 0.002, 0.0), LinkCost(0.05, 1e6), 1000, 4096, 0.003)


def cluster(*home_pools: Pool, break_even: bool = False) -> RecordedCluster:
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
    unlinked = replace(PROFILE, link=None)
    requests = arrivals_of([(5.0, 96, 2), (5.0, 96, 2)])
    mixed = cluster(Pool.MIXED, Pool.MIXED)
    assert simulate_recorded(mixed, unlinked, requests) == simulate_recorded(mixed, PROFILE, requests)
    with pytest.raises(ValueError, match="has no hand-offs"):
        simulate_recorded(cluster(Pool.PROMPT, Pool.TOKEN), unlinked, requests)


def test_requests_come_when_they_came() -> None:
    arrivals = arrivals_of([(1000.5, 20, 3), (1000.0, 10, 1)])
    assert [(each.at_s, each.prompt_tokens, each.output_tokens) for each in arrivals] == [(0.0, 10, 1), (0.5, 20, 3)]
    first, second = simulate_recorded(cluster(Pool.MIXED), PROFILE, arrivals)
    assert first.tpot_s is None
    assert second.tpot_s == pytest.approx(0.012)


def test_a_request_that_would_fail_is_not_left_out() -> None:
    """The recorded request was served, so a failing one means that the copy of the cluster is wrong."""
    with pytest.raises(ValueError, match="a recorded request of 5000 tokens failed in the simulation: never_fits"):
        simulate_recorded(cluster(Pool.MIXED), PROFILE, arrivals_of([(5.0, 5000, 2)]))
