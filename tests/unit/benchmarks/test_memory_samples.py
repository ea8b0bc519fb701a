"""A storm's samples, summed up by worker."""

from __future__ import annotations

import pytest

from spotwise.benchmarks.memory_samples import Sample, WorkerMemory, held_by, memory_rows, read_samples, summarize
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.status_table import MemberStatus
from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.mesh.grpc.control import EngineDescription

MIB = 2**20


def sample(worker_id: str, free: int, resident: int, sequences: int = 0, total: int = 100) -> Sample:
    return Sample(worker_id, total, free, sequences, resident * MIB)


def test_sequences_of_every_state_are_held() -> None:
    """The sample counts sequences of every state, preempted ones included, and the blocks in use."""
    load = WorkerLoad(
        kv_blocks_total=9,
        kv_blocks_free=8,
        kv_blocks_used=5,
        waiting=1,
        waiting_for_kv=2,
        running=3,
        preempted=4,
        migrating=5,
    )
    member = Member("w", MemberKind.TOKEN_WORKER, 1, MemberState.READY, "host", 1, "", Pool.TOKEN, load=load)
    gateway = Member("g", MemberKind.GATEWAY, 1, MemberState.READY, "host", 1, "")
    engine = EngineDescription(
        member, engine_sequences=2, resident_bytes=7, iterations=1, engine="torch", kv_bytes_per_token=1
    )
    found = read_samples([MemberStatus(member, True, engine), MemberStatus(gateway, True, None)])
    assert found == [Sample("w", 9, 4, 15, 7)]


def test_each_worker_has_its_peak_and_its_end() -> None:
    before = [sample("prompt-0", 100, 700), sample("token-0", 100, 710)]
    during = [sample("prompt-0", 40, 800), sample("token-0", 90, 720), sample("prompt-0", 60, 900)]
    after = [sample("token-0", 99, 730), sample("prompt-0", 100, 750)]
    assert summarize(before, during, after) == [
        WorkerMemory("prompt-0", 100, 60, 100, 700 * MIB, 900 * MIB, 750 * MIB, 2),
        WorkerMemory("token-0", 100, 10, 99, 710 * MIB, 730 * MIB, 730 * MIB, 1),
    ]


def test_rows_hold_blocks_against_the_budget() -> None:
    """A peak over the budget, or a block that is not freed, misses the target; resident memory has no target."""
    good, leaking, over = (
        memory_rows([WorkerMemory("w", 100, peak, free, 1 * MIB, 3 * MIB, 2 * MIB, 9)])
        for peak, free in ((100, 100), (50, 99), (101, 100))
    )
    assert [row.holds for row in good] == [True, True, None, None, None]
    assert [row.holds for row in leaking[:2]] == [True, False]
    assert [row.holds for row in over[:2]] == [False, True]
    assert [row.ours for row in good[2:]] == [1, 3, 2]


def test_a_worker_holds_blocks_or_sequences() -> None:
    """Either keeps the storm from being over."""
    samples = [sample("a", 100, 1), sample("b", 99, 1), sample("c", 100, 1, sequences=1)]
    assert held_by(samples) == ["b", "c"]


def test_a_lost_worker_is_no_result() -> None:
    """A lost worker, or a mesh without workers, gives an error instead of a sample."""
    with pytest.raises(CommandError, match="token-0 was lost"):
        summarize([sample("token-0", 100, 1)], [], [])
    with pytest.raises(CommandError, match="no worker"):
        summarize([], [], [])
