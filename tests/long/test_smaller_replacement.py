"""A group whose replacement has less memory serves again, with fewer blocks; it was asked for the old ones for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.mesh import EXECUTED, LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts
from tests.live.test_groups import completed


@contextmanager
def smaller_device(like_pid: int) -> Iterator[None]:
    """A device for the same leader, with a quarter of the KV memory."""
    given = dict(each.split("=", 1) for each in Path(f"/proc/{like_pid}/environ").read_text().split("\0") if each)
    given |= {"SPOTWISE_SERVICE_ID": "device-9", "SPOTWISE_KV_CACHE_BYTES": str(16 << 20)}
    command = [sys.executable, "-m", "spotwise.worker.groups"]
    with subprocess.Popen(command, env=given, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _blocks(mesh: LiveMesh) -> int:
    """The blocks of the group of two that serves now, else 0; the planner may have replaced `mixed-0`."""
    members = [status.member_now for status in mesh.members() if status.serving]
    groups = [
        each.load for each in members if each.load is not None and each.place is not None and each.place.stages == 2
    ]
    return max((load.kv_blocks_total for load in groups), default=0)


def test_a_worker_serves_again_with_the_blocks_that_are_left(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The leader's log says who refuses, and why; it, or a worker in its place, serves with fewer blocks."""
    options = ("--parallel", "1,2,1", "--kv-cache", "64MiB", "--hang-timeout", "0")
    with LiveMesh(tmp_path_factory.mktemp("smaller"), *options, env=EXECUTED) as mesh:
        before, stopped = _blocks(mesh), mesh.pid("mixed-0-device-1")
        with smaller_device(stopped):
            os.kill(stopped, signal.SIGSTOP)  # it is gone once its registration has expired
            wait_for(lambda: 0 < _blocks(mesh) < before, lambda: mesh.command("status").stdout, 120.0)
            assert "device-9 cannot compute its part" in mesh.log_ends(lines=200, width=400)
            prompt = mixed_prompts(4, 100)[0]
            answer = asyncio.run(completed(mesh, prompt=[*prompt], max_tokens=8, temperature=0))
            assert tuple(answer.choices[0].token_ids) == greedy(prompt, 8)
            os.kill(stopped, signal.SIGCONT)
