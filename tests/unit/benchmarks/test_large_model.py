"""Memory and cores: limits, samples of a storm, and whether others used the cores meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from spotwise.benchmarks.contention import Contention, CoreUse, contention_lines
from spotwise.benchmarks.large_model import differing, is_loading, large_model
from spotwise.benchmarks.memory_limits import MemoryLimits
from spotwise.benchmarks.memory_samples import Sample, WorkerMemory, held_by, memory_rows, read_samples, summarize
from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.mesh.status_table import MemberStatus
from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.mesh.grpc.control import EngineDescription

ALLOCATES = "import time; time.sleep(0.5); held = bytearray({} << 20); time.sleep(0.2)"


@pytest.mark.parametrize(("limit", "size"), [("2GiB", "2GiB"), ("3GiB", "2.4GiB")])
def test_a_limit_that_holds_the_model_shows_nothing(limit: str, size: str) -> None:
    with pytest.raises(OptionError, match="--limit"):
        large_model(size=size, limit=limit, json=None)


def test_a_model_of_no_layers_is_refused() -> None:
    with pytest.raises(OptionError, match="--size: give it at least"):
        large_model(size="0.3GiB", limit="0.2GiB", streams=1, input_tokens=1, seed=1, shape="2x2", json=None)


def test_tokens_that_differ_are_counted_and_a_lost_one_is_an_error() -> None:
    assert differing([1, 2, 3], [1, 2, 3]) == 0
    assert differing([1, 9, 9], [1, 2, 3]) == 2
    with pytest.raises(ValueError, match="longer"):
        differing([1, 2], [1, 2, 3])


@pytest.mark.parametrize(
    ("command", "loads"),
    [
        ("python -P -m spotwise.token_worker", True),
        ("python -P -m spotwise.worker.groups", True),
        ("python -P -m spotwise.gateway", False),
    ],
)
def test_only_processes_that_load_a_model_are_limited(command: str, loads: bool) -> None:
    assert is_loading(command) == loads


def test_a_process_over_its_limit_is_ended_and_one_below_it_is_measured() -> None:
    limits = MemoryLimits(100 << 20, lambda command: "held = bytearray" in command)
    try:
        with limits.applied():
            ended = [
                subprocess.run([sys.executable, "-c", ALLOCATES.format(mib)], check=False, timeout=60.0).returncode
                for mib in (40, 300)
            ]
    except CommandError as error:
        pytest.skip(str(error))
    assert ended == [0, -9]
    assert limits.killed == 1
    assert len(limits.peak_bytes) == 2
    assert 40 << 20 <= min(limits.peak_bytes) < 100 << 20
    assert not [*Path("/sys/fs/cgroup").rglob(f"spotwise-{os.getpid()}-*")]


MIB = 2**20


def sample(worker_id: str, free: int, resident: int, sequences: int = 0, total: int = 100) -> Sample:
    return Sample(worker_id, total, free, sequences, resident * MIB)


def test_sequences_of_every_state_are_held() -> None:
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
    with pytest.raises(CommandError, match="token-0 was lost"):
        summarize([sample("token-0", 100, 1)], [], [])
    with pytest.raises(CommandError, match="no worker"):
        summarize([], [], [])


BEFORE = CoreUse(100.0, 2, 50.0, 1.0, 0.5, {(1, 0.0): 10.0, (2, 5.0): 4.0})


def after(busy_s: float, stolen_s: float = 0.0, throttled_s: float = 0.0) -> CoreUse:
    """Ten seconds later; this command's processes have taken eight seconds, one of them a new one."""
    own_s = {(1, 0.0): 13.0, (3, 101.0): 5.0}
    return CoreUse(110.0, 2, 50.0 + busy_s, 1.0 + stolen_s, 0.5 + throttled_s, own_s)


@pytest.mark.parametrize(
    ("sample", "expected", "disturbs"),
    [
        (after(8.0), Contention(2, 0.0, 0.0, 0.0), False),
        (after(7.5), Contention(2, 0.0, 0.0, 0.0), False),
        (after(8.5), Contention(2, 0.025, 0.0, 0.0), False),
        (after(14.0), Contention(2, 0.3, 0.0, 0.0), True),
        (after(8.0, stolen_s=1.0), Contention(2, 0.0, 0.05, 0.0), True),
        (after(8.0, throttled_s=1.0), Contention(2, 0.0, 0.0, 0.05), True),
    ],
)
def test_what_is_not_the_commands_is_others(sample: CoreUse, expected: Contention, disturbs: bool) -> None:
    """A process that has ended and a new one both count with their own time only."""
    found = sample.contention_since(BEFORE)
    assert (found.cores, found.disturbs) == (2, disturbs)
    assert (found.others_share, found.stolen_share, found.throttled_share) == pytest.approx(
        (expected.others_share, expected.stolen_share, expected.throttled_share)
    )


def test_cores_that_the_command_keeps_busy() -> None:
    """Of its own processes alone, whatever others take."""
    assert after(8.0).own_cores_since(BEFORE) == pytest.approx(0.8)
    assert after(19.0).own_cores_since(BEFORE) == pytest.approx(0.8)


def test_only_what_disturbs_is_reported() -> None:
    quiet, busy = Contention(2, 0.01, 0.0, 0.0), Contention(2, 0.31, 0.04, 0.0)
    (line,) = contention_lines({"profile": quiet, "1 requests/s": busy})
    assert line.startswith("1 requests/s: other processes took 31% of the 2 cores' time, a hypervisor 4%. Its figures")


def test_another_process_that_computes_is_seen() -> None:
    """Seen as another where it is no descendant, and as the command's own where it is one. On one core, however many there
    are."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        of_sleeper = psutil.Process(sleeper.pid)
        before, own_before = CoreUse.so_far(of_sleeper), CoreUse.so_far()
        time.sleep(1.5)
        after, own_after = CoreUse.so_far(of_sleeper), CoreUse.so_far()
    finally:
        os.sched_setaffinity(0, allowed)
        for process in (sleeper, burner):
            process.kill()
            process.wait()
    assert after.contention_since(before).disturbs
    key = next(key for key in own_after.own_s if key[0] == burner.pid)
    assert own_after.own_s[key] > own_before.own_s[key]
    assert key not in after.own_s


def test_a_quota_is_read_from_the_control_group(tmp_path: Path) -> None:
    assert CoreUse.so_far(cgroup=tmp_path).throttled_s == 0.0
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n")
    assert CoreUse.so_far(cgroup=tmp_path).throttled_s == 2.5
