"""A service looks for cycles of garbage seldom, and keeps little memory that it does not need."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from spotwise.mesh.process.garbage import collect_rarely


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def printed_by(program: str) -> str:
    environment = {"SPOTWISE_SERVICE_ID": "one-0", "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_the_youngest_are_looked_through_seldom_and_cycles_still_go() -> None:
    collect_rarely()
    gc.collect()
    looks = gc.get_stats()[0]["collections"]
    kept = [[number] for number in range(5000)]
    assert gc.get_stats()[0]["collections"] == looks
    collected = sum(generation["collected"] for generation in gc.get_stats())
    for _ in range(60_000):
        cycle: list[object] = []
        cycle.append(cycle)
    assert sum(generation["collected"] for generation in gc.get_stats()) > collected
    assert len(kept) == 5000


def test_a_service_that_has_ended_does_not_look_through_what_it_held() -> None:
    """Remaining objects go with the process, since collecting a worker's million would delay its end by a second."""
    service = """
import gc, os, sys
from spotwise.mesh.service.run import run_service
from spotwise.mesh.service.settings import ServiceSettings

held = [[number] for number in range(200_000)]

async def serve(settings):
    gc.collect()  # all that is held is old now
    gc.callbacks.append(report)

def report(phase, info):
    if phase == "start":
        os.write(1, f"{info['generation']} {len(gc.get_objects()) > len(held)}\\n".encode())

sys.exit(run_service(ServiceSettings, serve))
"""
    looks = printed_by(service).splitlines()
    assert looks and "2 True" not in looks


def test_what_a_service_starts_with_is_never_looked_through_again() -> None:
    """Of what comes later a collection looks through little; cycles still go."""
    service = """
import gc
from spotwise.mesh.process.garbage import collect_little_at_once

held = [[number] for number in range(50_000)]
collect_little_at_once()
assert len(gc.get_objects()) < 5_000
looks = []
gc.callbacks.append(lambda phase, info: looks.append(len(gc.get_objects(0))) if phase == "start" else None)
collected = sum(generation["collected"] for generation in gc.get_stats())
for _ in range(60_000):
    cycle = []
    cycle.append(cycle)
assert sum(generation["collected"] for generation in gc.get_stats()) > collected + 40_000
print(max(looks))
"""
    assert int(printed_by(service)) < 10_000


def test_the_room_of_what_was_large_goes_back_to_the_system() -> None:
    service = """
import psutil
from spotwise.mesh.process.garbage import keep_little_freed_memory

keep_little_freed_memory()
_ = bytearray(8 << 20)
_ = None
before = psutil.Process().memory_info().rss
large, small = [], []
for _ in range(100):
    large.append(b"x" * (2 << 20))
    small.append(b"x" * 2000)
assert psutil.Process().memory_info().rss - before > 190 << 20
large.clear()
print(psutil.Process().memory_info().rss - before)
"""
    assert int(printed_by(service)) < 10 << 20
