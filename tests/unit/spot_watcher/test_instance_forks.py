"""Forked local instances are like executed ones: their parents, sessions, environments, ends; real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from spotwise.cloud.instances import AcquireRequest, ProviderRefused
from spotwise.cloud.local_instances import LocalInstances, LocalOptions
from spotwise.cloud.local_processes import MARK, MachineProcess
from spotwise.cloud.local_state import LocalFolder
from spotwise.core.messages.fleet import Market
from spotwise.mesh.embedded.child_process import ProcessIdentity, identify, is_alive
from spotwise.spot_watcher.instance_forking import program_of
from spotwise.spot_watcher.instance_forks import InstanceForks
from tests.contracts.instances import eventually

#: Tells what it sees of its start; has a child in a session of its own, and ends by SIGTERM only if it is to.
DEVICE = """
import json, os, signal, subprocess, sys, time
def main():
    import device_helper
    pipe = signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    if os.environ.get("STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    apart = subprocess.Popen(["sleep", "600"], start_new_session=True)
    seen = {
        "imported": device_helper.IMPORTED, "pid": os.getpid(), "guard": os.getppid(), "session": os.getsid(0),
        "apart": apart.pid, "id": os.environ["ID"], "folder": os.getcwd(),
        "argv": sys.argv[1:], "name": __name__, "pipe ends": not pipe,
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
        "settings": sorted(name for name in os.environ if name.startswith("SPOTWISE_")),
    }
    with open(os.environ["ID"] + ".draft", "w") as file:
        json.dump(seen, file)
    os.rename(os.environ["ID"] + ".draft", os.environ["ID"] + ".seen")
    print("began", flush=True)
    time.sleep(600)
if __name__ == "__main__":
    main()
"""
PASSWORD = "of-the-watcher-alone"
RUN = (sys.executable, "-P", "-m", "device")


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended after the test, if it still runs."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstanceForks]:
    """A server that imports the device."""
    (tmp_path / "device.py").write_text(DEVICE)
    (tmp_path / "device_helper.py").write_text("import os\nIMPORTED = os.getpid()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SPOTWISE_PASSWORD", PASSWORD)
    forks = InstanceForks("device", ["device_helper", "no_such_module"], os.environ, tmp_path / "server.log")
    yield forks
    forks.close()


@pytest.fixture
def options(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> Iterator[LocalOptions]:
    """Instances of that supervisor."""
    identity = identify(supervisor.pid)
    assert identity is not None
    folder = tmp_path / "machines"
    commands = {
        "device": ("env", "ID={instance_id}", *RUN),
        "stubborn": ("env", "ID={instance_id}", "STUBBORN=1", *RUN),
        "other": ("sh", "-c", "echo {instance_id}; sleep 600"),
    }
    yield LocalOptions(folder, commands, 9, 0.5, supervisor=f"{identity.pid}:{identity.start_ticks}")
    for path in folder.glob("*.process"):
        if (process := MachineProcess.read(path, str(LocalFolder(folder).path / path.stem))) is not None:
            process.kill()


async def seen_of(provider: LocalInstances, options: LocalOptions, instance_type: str = "device") -> dict[str, Any]:
    """Start an instance; return what its program has seen."""
    [instance] = await provider.acquire(AcquireRequest(instance_type, (instance_type,), Market.SPOT, 1))
    path = options.folder / f"{instance.id}.seen"

    async def is_written() -> bool:
        return path.exists()

    await eventually(is_written)
    return {**json.loads(path.read_text()), "instance": instance.id}


def processes_of(seen: dict[str, Any]) -> list[ProcessIdentity]:
    found = [identify(seen[name]) for name in ("guard", "pid", "apart")]
    assert None not in found
    return [each for each in found if each is not None]


async def until_gone(processes: list[ProcessIdentity], provider: LocalInstances | None = None) -> None:
    async def gone() -> bool:
        if provider is not None:
            await provider.instances()
        return not any(map(is_alive, processes))

    await eventually(gone)


async def test_an_instance_is_as_if_it_were_executed(forks: InstanceForks, options: LocalOptions) -> None:
    """But for its imports, which another process has made; the next instance has the very same."""
    executed = await seen_of(LocalInstances("mesh-a", options), options)
    provider = LocalInstances("mesh-b", options, run=forks.run)
    forked = await seen_of(provider, options)
    own = ("pid", "guard", "session", "apart", "id", "instance", "imported")
    assert {name: forked[name] for name in forked if name not in own} == {
        name: executed[name] for name in executed if name not in own
    }
    assert executed["imported"] == executed["pid"]
    assert forked["imported"] not in (forked["pid"], forked["guard"], os.getpid())
    assert forked["session"] == forked["guard"]
    assert forked["id"] == forked["instance"]
    assert int((options.folder / f"{forked['id']}.process").read_text().split()[0]) == forked["guard"]
    assert (options.folder / f"{forked['id']}.log").read_text() == "began\n"
    assert psutil.Process(forked["guard"]).ppid() == psutil.Process(executed["guard"]).ppid()
    assert psutil.Process(forked["pid"]).cmdline() == list(RUN)


async def test_its_processes_show_its_mark_and_environment(forks: InstanceForks, options: LocalOptions) -> None:
    """By the mark a listing knows them; what the server was given is not shown."""
    seen = await seen_of(LocalInstances("mesh-b", options, run=forks.run), options)
    for pid in (seen["guard"], seen["pid"], seen["apart"]):
        shown = psutil.Process(pid).environ()
        assert shown[MARK] == str(options.folder / seen["instance"])
        assert "SPOTWISE_ROOM" not in shown
        assert {"PATH": os.environ["PATH"]}.items() <= shown.items()


async def test_the_server_has_no_secret(forks: InstanceForks, options: LocalOptions) -> None:
    await seen_of(LocalInstances("mesh-b", options, run=forks.run), options)
    [server] = [each for each in psutil.Process().children() if "instance_forking" in " ".join(each.cmdline())]
    assert PASSWORD not in str(server.environ())


async def test_sigterm_ends_it(forks: InstanceForks, options: LocalOptions) -> None:
    provider = LocalInstances("mesh-b", replace(options, grace_s=20.0), run=forks.run)
    seen = await seen_of(provider, options)
    processes = processes_of(seen)
    await provider.release([seen["instance"]])
    await until_gone(processes)


async def test_it_ends_with_its_supervisor(
    forks: InstanceForks, options: LocalOptions, supervisor: subprocess.Popen[bytes]
) -> None:
    processes = processes_of(await seen_of(LocalInstances("mesh-b", options, run=forks.run), options, "stubborn"))
    supervisor.kill()
    await until_gone(processes)


@pytest.mark.parametrize("victim", [0, 1], ids=["guard", "program"])
async def test_it_ends_with_its_guard_and_its_program(
    forks: InstanceForks, options: LocalOptions, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotwise.cloud.local_processes._LEFT_S", 0.2)
    provider = LocalInstances("mesh-b", options, run=forks.run)
    processes = processes_of(await seen_of(provider, options, "stubborn"))
    os.kill(processes[victim].pid, signal.SIGKILL)
    await until_gone(processes, provider)


async def test_it_outlives_the_server_and_the_next_one_is_executed(forks: InstanceForks, options: LocalOptions) -> None:
    provider = LocalInstances("mesh-b", options, run=forks.run)
    first = await seen_of(provider, options)
    forks.close()
    second = await seen_of(provider, options, "stubborn")
    assert second["imported"] == second["pid"]
    assert all(map(is_alive, processes_of(first)))


async def test_other_commands_are_executed_as_ever(forks: InstanceForks, options: LocalOptions) -> None:
    provider = LocalInstances("mesh-b", options, run=forks.run)
    [other] = await provider.acquire(AcquireRequest("other", ("other",), Market.SPOT, 1))
    log = options.folder / f"{other.id}.log"

    async def is_said() -> bool:
        return log.read_text() == f"{other.id}\n"

    await eventually(is_said)
    await provider.release([other.id])


async def test_a_supervisor_that_has_ended_is_named(
    forks: InstanceForks, options: LocalOptions, supervisor: subprocess.Popen[bytes]
) -> None:
    supervisor.kill()
    supervisor.wait()
    provider = LocalInstances("mesh-b", options, run=forks.run)
    with pytest.raises(ProviderRefused, match="its supervisor has ended"):
        await provider.acquire(AcquireRequest("one", ("device",), Market.SPOT, 1))
    assert await provider.instances() == []


async def test_the_order_is_under_lock_until_its_process_is_known(forks: InstanceForks, options: LocalOptions) -> None:
    """The server keeps no descriptor of an order: the folder can be locked while instances run."""
    provider = LocalInstances("mesh-b", options, run=forks.run)
    await seen_of(provider, options)
    listed = await asyncio.wait_for(LocalInstances("mesh-a", options).instances(), 10)
    assert listed == []


def test_only_this_pythons_modules_are_forked() -> None:
    assert program_of(("env", "A=1", "B=x=y", *RUN)) == ("device", {"A": "1", "B": "x=y"})
    assert program_of(RUN) == ("device", {})
    for other in (("env", "-i", *RUN), (*RUN, "more"), ("python", *RUN[1:]), ("env",), ("sh", "-c", "true")):
        assert program_of(other) is None
