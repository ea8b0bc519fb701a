"""What is known of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwise.worker.machine import CoreTime, cores_name, free_memory_bytes, processor_name


def thread(folder: Path, number: int, text: str) -> None:
    (folder / str(number)).mkdir(exist_ok=True)
    (folder / str(number) / "schedstat").write_text(text)


def test_waiting_for_cores_is_counted_over_all_threads(tmp_path: Path) -> None:
    """Between two samples; a thread without readings counts as none."""
    thread(tmp_path, 1, "1000000000 500000000 7\n")
    thread(tmp_path, 2, "")
    before = CoreTime.so_far(tmp_path)
    assert before == CoreTime(1.0, 0.5)
    thread(tmp_path, 1, "3000000000 500000000 8\n")
    thread(tmp_path, 3, "1000000000 1000000000 8\n")
    assert CoreTime.so_far(tmp_path).waited_share_since(before) == pytest.approx(0.25)


def test_without_counters_the_waiting_share_is_0(tmp_path: Path) -> None:
    assert CoreTime.so_far(tmp_path).waited_share_since(CoreTime.so_far(tmp_path)) == 0.0


@pytest.mark.parametrize(
    ("limit", "used", "free_bytes"), [("5000", "2000", 3000), ("1000", "2000", 0), ("max", "2000", None)]
)
def test_a_container_has_what_its_limit_leaves(tmp_path: Path, limit: str, used: str, free_bytes: int | None) -> None:
    """Free memory is the container's limit less its use, or the machine's free memory without a limit."""
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    found = free_memory_bytes(tmp_path)
    assert found == free_bytes if free_bytes is not None else found > 1 << 20
    assert free_memory_bytes(tmp_path / "nothing") > 1 << 20


def test_a_machine_has_a_name() -> None:
    """Cores that this process may use, and what they are."""
    assert cores_name() == f"{len(os.sched_getaffinity(0))} cores of {processor_name()}"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waiting for cores")
def test_this_process_has_run() -> None:
    """Core time counts what this process ran since the first reading."""
    before = CoreTime.so_far()
    sum(range(300_000))
    assert CoreTime.so_far().ran_s > before.ran_s
