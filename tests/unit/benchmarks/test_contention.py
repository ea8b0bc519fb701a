"""Whether others used the cores while something was measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from spotwise.benchmarks.contention import Contention, CoreUse, contention_lines

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
