"""Runs reconstructed from journals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.benchmarks.recorded import RequestTimes
from spotwise.benchmarks.recorded_run import recorded_cluster, times_of
from spotwise.benchmarks.simulator import compared
from spotwise.cli.errors import CommandError
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import mesh as m
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
    """A worker's heartbeat."""
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
    """The cluster has the home pools, by id, as the scheduler first received them, and the roles' memory and policies."""
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
