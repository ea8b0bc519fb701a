"""What tests start does not outlive them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from spotwise.mesh.embedded.child_process import identify, is_alive

#: Starts a process of a home in a session of its own, tells its pid, and waits.
_TESTS = """
import subprocess, sys, time
from pathlib import Path
from tests.death_watch import death_watch
home = sys.argv[1]
with death_watch(Path(home)):
    left = subprocess.Popen(["sleep", "600"], env={"SPOTWISE_HOME": home, "PATH": "/bin:/usr/bin"}, start_new_session=True)
    print(left.pid, flush=True)
    time.sleep(600)
"""


def test_a_process_of_killed_tests_ends(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-c", _TESTS, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}) as tests:
        assert tests.stdout is not None
        left = identify(int(tests.stdout.readline()))
        assert left is not None
        tests.kill()
    patience = 300
    while is_alive(left) and patience:
        patience -= 1
        time.sleep(0.1)
    assert not is_alive(left)
