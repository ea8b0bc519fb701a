"""What a supervisor does about processes that hang, die again and again, or find the disk full: the mesh keeps serving."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from spotwise.cli.launch.supervision.run_state import ServiceState
from tests.live.mesh import wait_for
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.paired

LONG_S = 90.0
HANG_S = "4"
TOKEN_WORKERS = "token-0-to-1"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A small disk of the module's own; None where the system does not let one be mounted."""
    path = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)


@pytest.fixture(scope="module")
def mesh(disk: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """One prompt worker, a process of two token workers; what hangs for four seconds is replaced."""
    home = disk or tmp_path_factory.mktemp("supervision")
    with SimulatedMesh(home, "--token-workers", "2", "--hang-timeout", HANG_S) as live:
        yield live


def healthy_again(mesh: SimulatedMesh, service_id: str, pid: int) -> None:
    """Wait until another process has replaced the one with this pid."""

    def replaced() -> bool:
        service = mesh.state.services[service_id]
        return service.state is ServiceState.HEALTHY and service.process is not None and service.process.pid != pid

    wait_for(replaced, lambda: f"{service_id} in place of {pid}: {mesh.state.services[service_id]}", LONG_S)


def log(mesh: SimulatedMesh) -> str:
    """The supervisor's log."""
    return (mesh.home / "run" / "default" / "logs" / "supervisor.log").read_text()


def test_a_worker_that_hangs_is_replaced(mesh: SimulatedMesh) -> None:
    """The worker's streams resume with the same words; the other processes are not restarted."""
    expected = asyncio.run(mesh.answers(4, 80))
    before = {service_id: mesh.pid(service_id) for service_id in mesh.state.services}

    async def hang_meanwhile() -> list[str]:
        answers = asyncio.create_task(mesh.answers(4, 80))
        await asyncio.sleep(0.8)
        os.kill(before[TOKEN_WORKERS], signal.SIGSTOP)
        return await answers

    assert asyncio.run(hang_meanwhile()) == expected
    healthy_again(mesh, TOKEN_WORKERS, before[TOKEN_WORKERS])
    after = {service_id: mesh.pid(service_id) for service_id in mesh.state.services}
    assert {service_id for service_id in before if after[service_id] != before[service_id]} == {TOKEN_WORKERS}
    assert f"{TOKEN_WORKERS} has shown no activity for {HANG_S} s" in log(mesh)


def test_a_pause_of_three_seconds_is_no_hang(mesh: SimulatedMesh) -> None:
    """One process after the other is suspended for three seconds, and none is replaced."""
    before = {service_id: mesh.pid(service_id) for service_id in mesh.state.services}
    for service_id in (TOKEN_WORKERS, "scheduler-0"):
        os.kill(before[service_id], signal.SIGSTOP)
        time.sleep(3.0)
        os.kill(before[service_id], signal.SIGCONT)
    time.sleep(2.0)
    assert {service_id: mesh.pid(service_id) for service_id in mesh.state.services} == before


def test_a_process_with_a_pulse_is_not_replaced(mesh: SimulatedMesh) -> None:
    """Its registration ends and no health check is answered: so it is where a loop is busy with thousands of streams."""
    pid = mesh.pid(TOKEN_WORKERS)
    pulse = mesh.home / "run" / "default" / "pulses" / TOKEN_WORKERS
    os.kill(pid, signal.SIGSTOP)
    until_s = time.monotonic() + 3 * float(HANG_S)
    while time.monotonic() < until_s:
        os.utime(pulse)
        time.sleep(0.5)
    assert mesh.pid(TOKEN_WORKERS) == pid
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh", LONG_S)
    assert mesh.pid(TOKEN_WORKERS) == pid


@pytest.mark.parametrize("server", ["nats-server", "redis-server"])
def test_a_broker_or_store_that_hangs_is_replaced(mesh: SimulatedMesh, server: str) -> None:
    """Only the broker or the store is replaced: the services, which receive nothing meanwhile, are no worse than it."""
    before = {service_id: mesh.pid(service_id) for service_id in mesh.state.services}
    os.kill(before[server], signal.SIGSTOP)
    healthy_again(mesh, server, before[server])
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh", LONG_S)
    after = {service_id: mesh.pid(service_id) for service_id in mesh.state.services}
    assert {service_id for service_id in before if after[service_id] != before[service_id]} == {server}
    assert len(asyncio.run(mesh.answers(2, 4))) == 2


def test_a_full_disk_ends_nothing(mesh: SimulatedMesh, disk: Path | None) -> None:
    """With a full disk dead processes are restarted though no state or log can be written.

    With space again the state is written.
    """
    if disk is None:
        pytest.skip("the system does not let a test mount a small disk")
    supervisor = psutil.Process(mesh.state.supervisor.pid)
    pid = mesh.pid("watcher-0")
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        os.kill(pid, signal.SIGKILL)

        def started_again() -> bool:
            others = [child for child in supervisor.children() if child.pid != pid]
            with contextlib.suppress(psutil.Error):  # one that ends just now
                return any("spotwise.spot_watcher" in child.cmdline() for child in others)
            return False

        wait_for(started_again, lambda: "another watcher", LONG_S)
        assert len(asyncio.run(mesh.answers(2, 4))) == 2
        assert supervisor.is_running()
    finally:
        filler.unlink()
    healthy_again(mesh, "watcher-0", pid)


def test_a_planner_that_dies_seven_times_is_started_ever_more_slowly(mesh: SimulatedMesh) -> None:
    """The mesh serves without a planner; `status` shows that it is missing."""
    pid = 0
    for _ in range(7):

        def another(known: int = pid) -> bool:
            process = mesh.state.services["planner-0"].process
            return process is not None and process.pid != known

        wait_for(another, lambda: f"another planner: {mesh.state.services['planner-0']}", LONG_S)
        pid = mesh.pid("planner-0")
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "planner-0 died (signal 9) again and again" in log(mesh), lambda: log(mesh), LONG_S)
    status = mesh.command("status")
    assert status.returncode == 1
    assert "planner-0 is restarting" in status.stderr
    assert len(asyncio.run(mesh.answers(4, 8))) == 4
