"""Local instances of a mesh go on without the watcher that started them, and end with the supervisor, each by `kill -9`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.live.mesh import wait_for
from tests.live.simulated_mesh import SimulatedMesh

TRACE = Path(__file__).parents[2] / "docs" / "examples" / "fleet" / "trace.csv"
#: A machine that is busy, or makes its first processes, is slow.
PATIENCE_S = 120.0

pytestmark = pytest.mark.timeout(300)


def instances(mesh: SimulatedMesh) -> set[int]:
    """The processes of its local instances."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get("SPOTWISE_INSTANCE", "").startswith(str(mesh.home)):
                found.add(process.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
    return found


def is_seen(mesh: SimulatedMesh) -> bool:
    """Whether an instance has its guard and its program, as a member of the mesh."""
    return len(instances(mesh)) >= 2 and any(each.member_now.id.startswith("local-") for each in mesh.members())


def test_instances_outlive_the_watcher_and_not_the_supervisor(tmp_path: Path) -> None:
    """The watcher is started again, and finds them; after the supervisor no process is left."""
    mesh = SimulatedMesh(tmp_path / "home", "--trace", str(TRACE), "--latency-target", "60")
    mesh.home.mkdir()
    with mesh:
        wait_for(lambda: is_seen(mesh), lambda: f"an instance: {mesh.log_ends()}", PATIENCE_S)
        before, watcher = instances(mesh), mesh.pid("watcher-0")
        os.kill(watcher, signal.SIGKILL)

        def is_started_again() -> bool:
            process = mesh.state.services["watcher-0"].process
            return process is not None and process.pid != watcher

        wait_for(is_started_again, lambda: "the watcher's new process", PATIENCE_S)
        assert instances(mesh) >= before
        os.kill(mesh.state.supervisor.pid, signal.SIGKILL)
        wait_for(lambda: not mesh.processes(), lambda: f"no process, of {mesh.processes()}", PATIENCE_S)
