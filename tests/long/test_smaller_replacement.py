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

from tests.live.mesh import LiveMesh, wait_for
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
    """The blocks of the group's worker while it serves, else 0."""
    worker = next((s for s in mesh.members() if s.member.id == "mixed-0" and s.serving), None)
    is_whole = worker is not None and worker.member_now.place is not None
    return worker.member_now.load.kv_blocks_total if is_whole and worker.member_now.load else 0


def test_a_worker_serves_again_with_the_blocks_that_are_left(tmp_path_factory: pytest.TempPathFactory) -> None:
    """First `status` says who refuses, and why; then the worker starts again."""
    options = ("--parallel", "1,2,1", "--kv-cache", "64MiB", "--hang-timeout", "0")
    with LiveMesh(tmp_path_factory.mktemp("smaller"), *options) as mesh:
        before, stopped = _blocks(mesh), mesh.pid("mixed-0-device-1")
        with smaller_device(stopped):
            os.kill(stopped, signal.SIGSTOP)  # it is gone once its registration has expired
            wait_for(
                lambda: "device-9 cannot compute its part" in mesh.command("status").stdout, lambda: "a reason", 120.0
            )
            wait_for(lambda: 0 < _blocks(mesh) < before, lambda: mesh.command("status").stdout, 120.0)
            prompt = mixed_prompts(4, 100)[0]
            answer = asyncio.run(completed(mesh, prompt=[*prompt], max_tokens=8, temperature=0))
            assert tuple(answer.choices[0].token_ids) == greedy(prompt, 8)
            os.kill(stopped, signal.SIGCONT)
