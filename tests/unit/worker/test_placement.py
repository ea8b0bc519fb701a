"""Threads and memory of a worker's process, as the kernel reports them of one that has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.messages.members import ProcessCores
from spotwise.worker import placement
from spotwise.worker.placement import place_process
from spotwise.worker.settings import WorkerSettings
from spotwise.worker.topology import Node, Topology, format_cpus
from tests.unit.engine.tiny_models import llama_config, save_model

CPUS = sorted(os.sched_getaffinity(0))
#: Loads an engine as a worker does, and prints by thread's name where each may run: before it computes, and of a thread
#: that its engine's thread started.
PROGRAM = """
import asyncio, json, sys, threading, time
from pathlib import Path
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.sampling.fair_threads import with_deep_stack
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.placement import place_process
from spotwise.worker.settings import WorkerSettings

def cpus_of(task):
    lines = (task / "status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))

async def main():
    idle = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    idle.start()
    settings = WorkerSettings(model_dir=Path(sys.argv[1]), **json.loads(sys.argv[2]))
    place_process(settings)
    config = EngineConfig(settings.model_dir, "float32", "cpu", 1 << 20, threads=settings.threads)
    before = {task.name for task in Path("/proc/self/task").iterdir()}
    engine = await EngineThread.load(config, settings.compute_threads)
    (thread,) = (each for each in threading.enumerate() if each.name.startswith("engine"))
    tasks = list(Path("/proc/self/task").iterdir())
    own = {str(thread.native_id), *before, *(str(each.native_id) for each in threading.enumerate())}
    def of_another():
        return with_deep_stack(lambda: cpus_of(Path(f"/proc/self/task/{threading.get_native_id()}")))
    print(json.dumps({
        "main": cpus_of(Path("/proc/self")),
        "idle": cpus_of(Path(f"/proc/self/task/{idle.native_id}")),
        "leader": cpus_of(Path(f"/proc/self/task/{thread.native_id}")),
        "helpers": sorted(cpus_of(task) for task in tasks if task.name not in own),
        "of the leader": await asyncio.get_running_loop().run_in_executor(engine._executor, of_another),
        "is_native": engine.engine.is_native,
    }))
    engine.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama_config(), tmp_path_factory.mktemp("tiny") / "llama")


def started(folder: Path, **settings: Any) -> dict[str, Any]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPOTWISE_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**environ, "OMP_NUM_THREADS": str(settings["threads"])},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not found["is_native"]:
        pytest.skip("there are no native kernels")
    return found


@pytest.mark.skipif(len(CPUS) < 2, reason="one core cannot be told from another")
def test_each_compute_thread_keeps_to_a_core_and_others_share_all(folder: Path) -> None:
    """In the order of the setting; what the engine's thread starts does not stay on its core."""
    first, second = CPUS[1], CPUS[0]
    found = started(folder, threads=2, cores=f"{first},{second}", pin_threads=True)
    every = format_cpus(sorted((first, second)))
    assert found["leader"] == str(first)
    assert str(second) in found["helpers"]
    assert found["main"] == found["idle"] == found["of the leader"] == every


@pytest.mark.skipif(len(CPUS) < 2, reason="one core cannot be told from another")
def test_threads_that_share_cores_are_not_pinned(folder: Path) -> None:
    """They may run on each of the process's cores, as without any setting."""
    every = format_cpus(CPUS)
    found = started(folder, threads=2)
    assert {found["main"], found["leader"], *found["helpers"]} == {every}
    one = str(CPUS[1])
    found = started(folder, threads=2, cores=one)
    assert {found["main"], found["idle"], found["leader"], *found["helpers"]} == {one}


def test_a_process_reports_its_cores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of those that it got, of a machine that has more."""
    bound: list[list[int]] = []
    monkeypatch.setattr(placement, "bind_memory", bound.append)
    monkeypatch.setattr(Topology, "read", lambda: Topology((Node(1, ((2, 6), (3, 7))),), (0, 1)))
    settings = WorkerSettings(model_dir=folder, threads=2)
    assert place_process(settings) == ProcessCores((1,), "2-3,6-7", 2, False)
    assert bound == [[1]]


@pytest.mark.parametrize(
    ("nodes", "memory_nodes", "device", "expected"),
    [
        ((0,), (0,), "cpu", []),
        ((0, 1), (0, 1), "auto", [[0, 1]]),
        ((0, 1), (1, 2), "cpu", [[1]]),
        ((0, 1), (0, 1), "cuda", []),
    ],
)
def test_memory_is_that_of_the_nodes_of_the_cores(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[int, ...],
    memory_nodes: tuple[int, ...],
    device: str,
    expected: list[list[int]],
) -> None:
    """Nothing is chosen where there is nothing to choose, or a GPU computes."""
    bound: list[list[int]] = []
    monkeypatch.setattr(placement, "bind_memory", bound.append)
    topology = Topology(tuple(Node(number, ((number,),)) for number in nodes), memory_nodes)
    monkeypatch.setattr(Topology, "read", lambda: topology)
    place_process(WorkerSettings(model_dir=folder, device=device))
    assert bound == expected


#: Prints the policy of memory of a thread that starts after the call; a machine with a node 63 would need another number.
POLICY = """
import sys, threading
from spotwise.worker.placement import bind_memory
bind_memory([int(node) for node in sys.argv[1].split(",")])
def show():
    pages = bytearray(1 << 22)
    print({line.split()[1] for line in open("/proc/thread-self/numa_maps") if "anon=" in line})
threading.Thread(target=show).start()
"""


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="the kernel has no NUMA")
@pytest.mark.parametrize(("nodes", "policy"), [("0", "prefer:0"), ("0,63", "interleave:0")])
def test_memory_of_later_threads_is_bound(nodes: str, policy: str) -> None:
    """By the kernel's own word; of nodes that it does not have it takes none."""
    done = subprocess.run([sys.executable, "-c", POLICY, nodes], capture_output=True, text=True, timeout=60, check=True)
    if "memory_not_bound" in done.stdout:  # a container may forbid it
        pytest.skip(done.stdout)
    assert policy in done.stdout


def test_memory_that_cannot_be_bound_is_logged() -> None:
    """And the worker goes on."""
    done = subprocess.run([sys.executable, "-c", POLICY, "63"], capture_output=True, text=True, timeout=60, check=True)
    assert "memory_not_bound" in done.stdout
    assert "nodes=63" in done.stdout
