"""Ends the processes of a test's mesh where the tests themselves are killed: a detached supervisor outlives them by design."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# It waits for the end of its input, which only this process's end, or the block's, brings.
_WATCH = """
import os, signal, sys, time
sys.stdin.buffer.read()
mark = b"SPOTWISE_HOME=" + os.fsencode(sys.argv[1])
ends_at = time.monotonic() + 30
while time.monotonic() < ends_at:
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as environ:
                if mark in environ.read().split(bytes(1)):
                    os.kill(int(entry), signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.2)
"""


@contextlib.contextmanager
def death_watch(home: Path) -> Iterator[int]:
    """Watch inside the block: should this process be killed, all that has `home` as its SPOTWISE_HOME is; yields the pid."""
    env = {name: value for name, value in os.environ.items() if name != "SPOTWISE_HOME"}
    argv = [sys.executable, "-I", "-S", "-c", _WATCH, str(home)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=env, start_new_session=True) as watch:
        try:
            yield watch.pid
        finally:
            watch.kill()
