"""Local instances end with their supervisor and with their own program, also by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.cloud.instances import AcquireRequest, ProviderRefused
from spotwise.cloud.local_instances import LocalInstances, LocalOptions
from spotwise.core.messages.fleet import Market
from spotwise.mesh.embedded.child_process import ProcessIdentity, identify, is_alive
from tests.contracts.instances import eventually
from tests.unit.cloud.local_machines import local_machines

#: A program, its child, and one of that in a session of its own; none heeds SIGTERM.
FAMILY = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "sleeps = ['sh', '-c', \"trap '' TERM; while true; do sleep 1; done\"]\n"
    "others = [subprocess.Popen(sleeps), subprocess.Popen(sleeps, start_new_session=True)]\n"
    "with open('{instance_id}.draft', 'w') as file:\n"
    "    file.write(' '.join(map(str, [os.getpid(), *(each.pid for each in others)])))\n"
    "os.rename('{instance_id}.draft', '{instance_id}.family')\n"
    "time.sleep(600)"
)


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended after the test, if it still runs."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def options(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> Iterator[LocalOptions]:
    identity = identify(supervisor.pid)
    assert identity is not None
    commands: dict[str, tuple[str, ...]] = {"family": (sys.executable, "-c", FAMILY)}
    name = f"{identity.pid}:{identity.start_ticks}"
    with local_machines(tmp_path / "machines", commands, 2, supervisor=name) as options:
        yield options


async def family_of(options: LocalOptions) -> list[ProcessIdentity]:
    """Start an instance; return its guard, its program and the program's children, all of which run."""
    provider = LocalInstances("mesh-a", options)
    [instance] = await provider.acquire(AcquireRequest("one", ("family",), Market.SPOT, 1))
    path = options.folder / f"{instance.id}.family"

    async def is_written() -> bool:
        return path.exists()

    await eventually(is_written)
    guard = (options.folder / f"{instance.id}.process").read_text().split()[0]
    found = [identify(int(pid)) for pid in (guard, *path.read_text().split())]
    running = [each for each in found if each is not None]
    assert len(running) == 4
    return running


async def wait_until_gone(processes: list[ProcessIdentity], provider: LocalInstances | None = None) -> None:
    async def gone() -> bool:
        if provider is not None:
            await provider.instances()
        return not any(map(is_alive, processes))

    await eventually(gone)


async def test_all_of_an_instance_ends_with_its_supervisor(
    options: LocalOptions, supervisor: subprocess.Popen[bytes]
) -> None:
    """Though no keeper lists instances any more."""
    family = await family_of(options)
    supervisor.kill()
    await wait_until_gone(family)


@pytest.mark.parametrize("victim", [0, 1], ids=["guard", "program"])
async def test_all_of_an_instance_ends_with_its_guard_and_its_program(
    options: LocalOptions, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard ends what a program leaves behind, the next listing what a guard does; of the rest none heeds SIGTERM."""
    monkeypatch.setattr("spotwise.cloud.local_processes._LEFT_S", 0.2)
    family = await family_of(options)
    os.kill(family[victim].pid, signal.SIGKILL)
    await wait_until_gone(family, LocalInstances("mesh-a", options))


async def test_an_instance_without_a_supervisor_outlives_it(
    options: LocalOptions, supervisor: subprocess.Popen[bytes]
) -> None:
    family = await family_of(replace(options, supervisor=""))
    supervisor.kill()
    supervisor.wait()
    assert all(map(is_alive, family))


async def test_for_a_supervisor_that_has_ended_nothing_is_started(
    options: LocalOptions, supervisor: subprocess.Popen[bytes]
) -> None:
    supervisor.kill()
    supervisor.wait()
    provider = LocalInstances("mesh-a", options)
    with pytest.raises(ProviderRefused, match="its supervisor has ended"):
        await provider.acquire(AcquireRequest("one", ("family",), Market.SPOT, 1))
    assert await provider.instances() == []
