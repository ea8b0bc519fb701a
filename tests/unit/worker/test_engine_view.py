"""What a process tells of its workers' engines and of its machine."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.mesh.grpc.control import RecentIterations
from spotwise.worker.machine import CoreTime, cores_name, free_memory_bytes, processor_name
from spotwise.worker.runtime import IterationTimes, RuntimeView


def runtime(name: str) -> Any:
    return SimpleNamespace(
        description=lambda: f"description of {name}", times=SimpleNamespace(since=lambda n: (name, n))
    )


def test_each_member_answers_for_itself() -> None:
    """One that has not begun, or has left, does not; without an id it is the first."""
    view = RuntimeView()
    assert view.describe("a") is None
    assert view.describe("") is None
    view.add("a", runtime("a"))
    view.add("b", runtime("b"))
    assert view.describe("b") == "description of b"
    assert view.describe("") == "description of a"
    assert view.iterations("b", 7) == ("b", 7)
    view.remove("a")
    view.remove("a")
    assert view.describe("a") is view.iterations("a", 0) is None
    assert view.describe("") == "description of b"


def batch(tokens: int) -> Batch:
    return Batch((BatchRow("a@1", 0, tokens, (0,)),))


def shape(tokens: int) -> BatchShape:
    return BatchShape(tokens, tokens * tokens / 2, 0, 0)


def test_times_are_numbered_and_returned_from_a_number_on() -> None:
    times = IterationTimes()
    assert times.since(0) == RecentIterations(0, ())
    for number in (1, 2, 3):
        times.ordered(BatchShape.of(batch(number)), 10.0 * number)
        times.ended(10.0 * number + number)
    assert times.since(1) == RecentIterations(3, (IterationTime(shape(2), 2.0), IterationTime(shape(3), 3.0)))
    assert times.since(3).times == ()
    assert times.since(99).times == ()


def test_one_that_waited_for_another_begins_with_its_end() -> None:
    """In a pipeline an iteration's time starts with the end of the one before it."""
    times = IterationTimes()
    times.ordered(BatchShape.of(batch(1)), 1.0)
    times.ordered(BatchShape.of(batch(2)), 1.5)
    times.ended(4.0)
    times.ended(6.0)
    assert [time.seconds for time in times.since(0).times] == [3.0, 2.0]


def test_a_failed_iteration_is_not_counted() -> None:
    times = IterationTimes()
    times.ordered(BatchShape.of(batch(1)), 1.0)
    times.ended(2.0, failed=True)
    assert times.since(0) == RecentIterations(0, ())


def test_old_times_are_forgotten() -> None:
    times = IterationTimes()
    for number in range(10_000):
        times.ordered(BatchShape.of(batch(1)), float(number))
        times.ended(number + 0.5)
    recent = times.since(0)
    assert recent.last == 10_000
    assert 1000 < len(recent.times) < 10_000
    assert times.since(9_998).times == recent.times[-2:]


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
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    found = free_memory_bytes(tmp_path)
    assert found == free_bytes if free_bytes is not None else found > 1 << 20
    assert free_memory_bytes(tmp_path / "nothing") > 1 << 20


def test_a_machine_has_a_name() -> None:
    assert cores_name() == f"{len(os.sched_getaffinity(0))} cores of {processor_name()}"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waiting for cores")
def test_this_process_has_run() -> None:
    before = CoreTime.so_far()
    sum(range(300_000))
    assert CoreTime.so_far().ran_s > before.ran_s
