"""Workers report where they compute; threads that are to keep to a core do so in a mesh that serves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwise.core.messages.members import MemberKind, ProcessCores
from spotwise.worker.topology import Topology, format_cpus
from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be told from another")
def test_each_compute_thread_keeps_to_its_core_and_status_shows_it(tmp_path: Path) -> None:
    """Of a worker that has the machine to itself, as `spotwise up` gives it; where nothing says so, threads are not pinned."""
    cores = sorted(os.sched_getaffinity(0))
    with LiveMesh(tmp_path, "--threads", str(len(cores)), *ONE_MIXED, env={"SPOTWISE_PIN_THREADS": "true"}) as mesh:
        (worker,) = (each.member for each in mesh.members() if each.member.kind is MemberKind.TOKEN_WORKER)
        nodes = tuple(node.number for node in Topology.read().nodes)
        assert worker.cores == ProcessCores(nodes, format_cpus(cores), len(cores), is_pinned=True)
        shown = f"mixed-0: {len(cores)} threads, each on a core of its own, on cores {format_cpus(cores)} of node"
        assert shown in mesh.command("status").stdout
        answer = mesh.client().completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5)
        assert answer.usage is not None and answer.usage.completion_tokens == 5
        found = [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{worker.pid}/task").iterdir()]
        assert all({core} in found for core in cores)
        assert os.sched_getaffinity(worker.pid) == set(cores)
