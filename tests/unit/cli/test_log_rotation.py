"""Logs of a mesh's processes stay bounded while the processes write to them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spotwise.cli.launch.supervision.service_logs import LOG_FILES, LogFollower, LogRotation
from spotwise.mesh.embedded.child_process import start_child

MAX_BYTES = 4000
#: Writes as many lines as its argument says to its inherited standard output, with pauses, and a last one by itself.
WRITER = """
import os, sys, time
for number in range(int(sys.argv[1])):
    os.write(1, b"line %d\\n" % number)
    if number % 1000 == 999:
        time.sleep(0.05)
time.sleep(0.5)
os.write(1, b"line %d\\n" % int(sys.argv[1]))
"""


def files(path: Path) -> list[Path]:
    copies = [path.with_name(f"{path.name}.{number}") for number in range(9, 0, -1)]
    return [each for each in (*copies, path) if each.exists()]


def numbers(path: Path) -> list[int]:
    return [int(line.split()[1]) for each in files(path) for line in each.read_text().splitlines()]


def test_a_process_that_writes_on_is_cut_and_its_last_lines_stay(tmp_path: Path) -> None:
    """It never opens its log again; lines are in order and none is twice, and no file can be read by others."""
    path = tmp_path / "worker.log"
    rotation = LogRotation([path], MAX_BYTES)
    child = start_child([sys.executable, "-c", WRITER, "20000"], log_path=path)
    now_s = 0.0
    while child.exit_code() is None:
        now_s += 1.0
        rotation.rotate_when_due(now_s)
        time.sleep(0.01)
    rotation.rotate_when_due(now_s + 1.0)
    assert len(files(path)) == LOG_FILES
    written = numbers(path)
    assert written[-1] == 20000
    assert written == sorted(set(written))
    assert all(each.stat().st_mode & 0o077 == 0 for each in files(path))


def test_every_line_is_kept_where_nothing_writes_at_that_moment(tmp_path: Path) -> None:
    """The copy and what follows are the whole log; the third file is dropped for a fourth."""
    path = tmp_path / "log"
    rotation = LogRotation([path, tmp_path / "missing"], MAX_BYTES)
    for turn in range(4):
        with path.open("a") as log:
            log.writelines(f"line {number}\n" for number in range(turn * 1000, (turn + 1) * 1000))
        rotation.rotate_when_due(float(turn))
        assert path.read_text() == ""
    assert numbers(path) == list(range(2000, 4000))


def test_looks_are_a_second_apart(tmp_path: Path) -> None:
    """The supervisor's loop turns twenty times a second."""
    path = tmp_path / "log"
    rotation = LogRotation([path], MAX_BYTES)
    rotation.rotate_when_due(10.0)
    path.write_text("x" * (MAX_BYTES + 1))
    rotation.rotate_when_due(10.5)
    assert files(path) == [path] and path.stat().st_size > MAX_BYTES
    rotation.rotate_when_due(11.0)
    assert path.stat().st_size == 0


def test_a_full_disk_frees_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a copy cannot be written the lines are given up, and the earlier copies."""
    path = tmp_path / "log"
    rotation = LogRotation([path], MAX_BYTES)
    for turn in (1.0, 2.0):
        path.write_text("x" * (MAX_BYTES + 1))
        rotation.rotate_when_due(turn)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    path.write_text("x" * (MAX_BYTES + 1))
    rotation.rotate_when_due(3.0)
    assert files(path) == [path] and path.stat().st_size == 0


def test_a_follower_goes_on_after_a_rotation(tmp_path: Path) -> None:
    """`up --verbose` shows what comes after it."""
    path = tmp_path / "log"
    follower, rotation = LogFollower({"worker": path}), LogRotation([path], MAX_BYTES)
    path.write_text("line\n" * 1000)
    assert len(list(follower.new_lines())) == 1000
    rotation.rotate_when_due(1.0)
    subprocess.run(["sh", "-c", f"echo after >> '{path}'"], check=True)
    assert list(follower.new_lines()) == [("worker", "after")]
