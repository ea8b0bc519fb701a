"""Processes as instances: they start, outlive their provider, and end as a whole."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotwise.cloud import local_instances
from spotwise.cloud.instances import (
    AcquiredInstance,
    AcquireRequest,
    NoCapacity,
    ProviderRefused,
    ProviderUnavailable,
)
from spotwise.cloud.local_instances import LocalInstances, LocalOptions
from spotwise.cloud.local_processes import MachineProcess, start_machine
from spotwise.cloud.local_state import KEEP_GONE_S, LocalFolder, LocalMachine
from spotwise.core.messages.fleet import InstanceState, Market
from tests.contracts.instances import HERE, InstanceProviderContract, Site, eventually, ids
from tests.unit.cloud.local_machines import STUBBORN, Hours, LocalSite, local_machines

SLEEPS = ("sleep", "600")
#: Leaves a child behind when it ends.
FORSAKES = ("sh", "-c", "sleep 600 & echo $! >{instance_id}.child; sleep 600")
#: Starts a child in a session of its own.
SETS_APART = (
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "open('{instance_id}.child', 'w').write(str(child.pid))\n"
    "time.sleep(600)",
)


@pytest.fixture
def options(tmp_path: Path) -> Iterator[LocalOptions]:
    commands = {
        "sleeps": SLEEPS,
        "stubborn": STUBBORN,
        "forsakes": FORSAKES,
        "sets-apart": SETS_APART,
        "says": (
            "sh",
            "-c",
            "echo {instance_id} {instance_type} {market} {mesh} ${HOME:+home} $AWS_SESSION_TOKEN $SPOTWISE_API_KEYS; "
            "echo aside >&2; sleep 600",
        ),
        "missing": ("no-such-program",),
        "ends": ("true",),
    }
    with local_machines(tmp_path / "machines", commands, limit=4, grace_s=20.0) as options:
        yield options


class TestLocalInstances(InstanceProviderContract):
    @pytest.fixture
    def site(self, options: LocalOptions) -> Site:
        return LocalSite("sleeps", partial(LocalInstances, options=options))


@pytest.fixture
def provider(options: LocalOptions) -> LocalInstances:
    return LocalInstances("mesh-a", options)


def order(instance_type: str, count: int = 1, token: str = "one") -> AcquireRequest:
    return AcquireRequest(token, (instance_type,), Market.SPOT, count)


def process_of(options: LocalOptions, instance: AcquiredInstance) -> MachineProcess:
    folder = LocalFolder(options.folder)
    process = MachineProcess.read(folder.path / f"{instance.id}.process", str(folder.path / instance.id))
    assert process is not None
    return process


def runs(pid: int) -> bool:
    """Whether there is a process of that number that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until_gone(provider: LocalInstances) -> None:
    async def all_gone() -> bool:
        return {each.state for each in await provider.instances()} == {InstanceState.GONE}

    await eventually(all_gone)


async def until_logged(options: LocalOptions, instance: AcquiredInstance, words: str) -> str:
    """Wait until an instance's log has these words; return the log."""
    log = options.folder / f"{instance.id}.log"

    async def logged() -> bool:
        return words in log.read_text()

    await eventually(logged)
    return log.read_text()


async def child_of(options: LocalOptions, instance: AcquiredInstance) -> int:
    path = options.folder / f"{instance.id}.child"

    async def written() -> bool:
        return path.exists() and bool(path.read_text().strip())

    await eventually(written)
    return int(path.read_text())


async def test_an_instance_is_a_session_of_its_own(options: LocalOptions, provider: LocalInstances) -> None:
    """A terminal's Ctrl-C does not reach an instance, and it leaves no zombie: it is no child of this process."""
    [instance] = await provider.acquire(order("sleeps"))
    pid = process_of(options, instance).pid
    assert os.getsid(pid) == os.getpgid(pid) == pid != os.getsid(0)
    assert int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) != os.getpid()


async def test_a_command_knows_which_instance_it_is(options: LocalOptions, provider: LocalInstances) -> None:
    """Names in braces are replaced, other braces stay; both outputs go to the instance's log."""
    [instance] = await provider.acquire(order("says"))
    said = await until_logged(options, instance, "aside\n")
    assert said == f"{instance.id} says spot mesh-a home\naside\n"


async def test_a_program_that_ends_is_gone(provider: LocalInstances) -> None:
    """An ended program frees capacity, and its order still returns it, as gone."""
    acquired = await provider.acquire(order("ends", 4))
    await until_gone(provider)
    assert len(await provider.acquire(order("sleeps", 4, "two"))) == 4
    again = await provider.acquire(order("ends", 4))
    assert ids(again) == ids(acquired)
    assert {each.state for each in again} == {InstanceState.GONE}


async def test_the_first_type_that_can_run_is_taken(provider: LocalInstances) -> None:
    request = AcquireRequest("one", ("no-such.type", "missing", "sleeps", "says"), Market.ON_DEMAND, 1)
    assert [each.instance_type for each in await provider.acquire(request)] == ["sleeps"]


async def test_a_program_that_is_missing_is_refused(provider: LocalInstances) -> None:
    """The message names it; nothing is remembered of the order, so it may be given again when it is there."""
    with pytest.raises(ProviderRefused, match="no-such-program"):
        await provider.acquire(order("missing"))
    assert await provider.instances() == []


async def test_a_program_that_cannot_be_run_is_refused(options: LocalOptions, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("\0")
    program.chmod(0o755)
    provider = LocalInstances("mesh-a", replace(options, commands={"bad": (str(program),)}))
    with pytest.raises(ProviderRefused, match="cannot run"):
        await provider.acquire(order("bad", 2))
    assert await provider.instances() == []
    assert list(options.folder.glob("*.process")) == []


async def test_what_stays_after_its_grace_is_killed(options: LocalOptions) -> None:
    provider = LocalInstances("mesh-a", replace(options, grace_s=0.5))
    [instance] = await provider.acquire(order("stubborn"))
    releasing = asyncio.create_task(provider.release([instance.id]))

    async def leaving() -> bool:
        return (await provider.instances())[0].state is InstanceState.LEAVING

    await eventually(leaving)
    await releasing
    assert not process_of(options, instance).is_alive()
    assert (await provider.instances())[0].state is InstanceState.GONE


@pytest.mark.parametrize("instance_type", ["forsakes", "sets-apart"])
async def test_nothing_of_an_instance_is_left_behind(
    options: LocalOptions, provider: LocalInstances, instance_type: str
) -> None:
    """A release ends all children of an instance, those of an ended first process and those with their own session."""
    [instance] = await provider.acquire(order(instance_type))
    child = await child_of(options, instance)
    assert runs(child)
    await provider.release([instance.id])
    assert not runs(child)


async def test_of_an_instance_whose_first_process_was_killed_nothing_is_left(
    options: LocalOptions, provider: LocalInstances
) -> None:
    """It leaves a child behind, which the next listing ends."""
    [instance] = await provider.acquire(order("forsakes"))
    child = await child_of(options, instance)
    os.kill(process_of(options, instance).pid, signal.SIGKILL)

    async def first_has_ended() -> bool:
        return not runs(process_of(options, instance).pid)

    await eventually(first_has_ended)

    await until_gone(provider)
    assert not runs(child)


async def test_a_stranger_with_the_same_pid_is_left_alone(options: LocalOptions, provider: LocalInstances) -> None:
    """The kernel gave the number of an instance that had ended to another process."""
    [instance] = await provider.acquire(order("ends"))
    with subprocess.Popen(SLEEPS, start_new_session=True) as stranger:
        try:
            known = options.folder / f"{instance.id}.process"
            _, ticks, boot = known.read_text().split()
            known.write_text(f"{stranger.pid} {int(ticks) - 1} {boot}")
            await provider.release([instance.id])
            assert (await provider.instances())[0].state is InstanceState.GONE
            assert stranger.poll() is None
        finally:
            stranger.kill()


async def test_after_a_boot_nothing_is_there(options: LocalOptions, provider: LocalInstances) -> None:
    """Pid and start may be another process's of this boot by chance."""
    [instance] = await provider.acquire(order("sleeps"))
    known = options.folder / f"{instance.id}.process"
    first = known.read_text()
    known.write_text(f"{first.rsplit(maxsplit=1)[0]} 00000000-0000-0000-0000-000000000000")
    assert (await provider.instances())[0].state is InstanceState.GONE
    await provider.release([instance.id])
    process_of(options, instance).kill()
    assert not process_of(options, instance).is_alive()
    assert runs(int(first.split()[0]))
    known.write_text(first)  # for the cleanup


async def cut_off(options: LocalOptions, count: int, after: int) -> None:
    """Order instances with a provider that dies once it has written the order down and started `after` of them."""

    class Died(BaseException):
        """An error that no handler catches."""

    started = itertools.count()

    def start_some(*args: Any, **named: Any) -> MachineProcess:
        if next(started) == after:
            raise Died
        return start_machine(*args, **named)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        patch.setattr(local_instances, "start_machine", start_some)
        await asyncio.to_thread(LocalInstances("mesh-a", options)._acquire, order("sleeps", count))


async def test_an_order_that_was_cut_off_is_finished_by_its_repetition(
    options: LocalOptions, provider: LocalInstances
) -> None:
    await cut_off(options, 3, after=1)
    states = [each.state for each in await provider.instances()]
    assert sorted(states) == [InstanceState.RUNNING, InstanceState.STARTING, InstanceState.STARTING]
    acquired = await provider.acquire(order("sleeps", 3))
    assert [each.state for each in acquired] == [InstanceState.RUNNING] * 3
    assert len(list(options.folder.glob("*.process"))) == 3


async def test_an_order_that_was_cut_off_can_be_released(options: LocalOptions, provider: LocalInstances) -> None:
    """An instance of an interrupted order that was never started is gone at once, and frees capacity."""
    await cut_off(options, 4, after=0)
    with pytest.raises(NoCapacity, match="4 of 4"):
        await provider.acquire(order("sleeps", 1, "two"))
    await provider.release([each.id for each in await provider.instances()])
    assert {each.state for each in await provider.instances()} == {InstanceState.GONE}
    assert {each.state for each in await provider.acquire(order("sleeps", 4))} == {InstanceState.GONE}
    assert len(await provider.acquire(order("sleeps", 4, "three"))) == 4


async def test_a_killed_provider_buys_nothing_twice(options: LocalOptions) -> None:
    """A process that is killed in the midst of an order, again and again: in the end there is what was ordered."""
    script = (
        "import asyncio, pathlib, sys\n"
        "from spotwise.cloud.instances import AcquireRequest, Market\n"
        "from spotwise.cloud.local_instances import LocalInstances, LocalOptions\n"
        "options = LocalOptions(pathlib.Path(sys.argv[1]), {'sleeps': ('sleep', '600')}, 4)\n"
        "print('ready', flush=True)\n"
        "asyncio.run(LocalInstances('mesh-a', options).acquire(AcquireRequest('one', ('sleeps',), Market.SPOT, 4)))\n"
    )
    for delay_s in (0.0, 0.03, 0.06):
        with subprocess.Popen([sys.executable, "-c", script, str(options.folder)], stdout=subprocess.PIPE) as dies:
            assert dies.stdout is not None
            assert dies.stdout.readline() == b"ready\n"
            await asyncio.sleep(delay_s)
            dies.kill()
    provider = LocalInstances("mesh-a", options)
    acquired = await provider.acquire(order("sleeps", 4))
    assert len(acquired) == 4
    assert [each.state for each in await provider.instances()] == [InstanceState.RUNNING] * 4
    assert len([pid for pid in Path("/proc").glob("[0-9]*") if _is_marked(pid, options.folder)]) == 4


def _is_marked(process: Path, folder: Path) -> bool:
    try:
        marked = f"={folder}/".encode() in (process / "environ").read_bytes()
        return marked and (process / "comm").read_text() == "sleep\n"
    except OSError:
        return False


async def test_each_listing_ends_overdue_instances(options: LocalOptions) -> None:
    """The provider that released it died before its grace was over."""
    hours = Hours()
    provider = LocalInstances("mesh-a", replace(options, grace_s=60.0), hours)
    [instance] = await provider.acquire(order("stubborn"))
    provider._let_go([instance.id], 60.0)
    assert (await provider.instances())[0].state is InstanceState.LEAVING
    assert process_of(options, instance).is_alive()
    hours.unix_s += 60.0
    await until_gone(LocalInstances("mesh-a", options, hours))


async def test_a_process_that_cannot_be_killed_is_an_error(
    options: LocalOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stuck in the kernel: the release raises an error, and the instance stays in the list."""
    hours = Hours()
    provider = LocalInstances("mesh-a", replace(options, grace_s=0.0), hours)
    [instance] = await provider.acquire(order("stubborn"))

    def later(self: MachineProcess) -> None:
        hours.unix_s += 5.0

    with monkeypatch.context() as patch:
        patch.setattr(MachineProcess, "kill", later)
        with pytest.raises(ProviderUnavailable, match=instance.id):
            await provider.release([instance.id])
        assert (await provider.instances())[0].state is InstanceState.LEAVING
    await provider.release([instance.id])
    assert (await provider.instances())[0].state is InstanceState.GONE


async def test_the_gone_are_forgotten_after_a_day(options: LocalOptions) -> None:
    hours = Hours()
    provider = LocalInstances("mesh-a", options, hours)
    [ended] = await provider.acquire(order("ends"))
    [stays] = await provider.acquire(order("sleeps", 1, "two"))

    async def noted() -> bool:
        return any(each.state is InstanceState.GONE for each in await provider.instances())

    await eventually(noted)
    hours.unix_s += KEEP_GONE_S
    assert len(await provider.instances()) == 2
    hours.unix_s += 1.0
    assert ids(await provider.instances()) == [stays.id]
    assert not (options.folder / f"{ended.id}.log").exists()
    assert (options.folder / f"{stays.id}.log").exists()


async def test_a_damaged_memory_is_not_taken_for_an_empty_one(options: LocalOptions, provider: LocalInstances) -> None:
    """A damaged state file is an error: taken for an empty one, running instances would be bought again."""
    await provider.acquire(order("sleeps"))
    (options.folder / "instances.json").write_text("{")
    for call in (provider.instances(), provider.acquire(order("sleeps")), provider.release(["local-1"])):
        with pytest.raises(ProviderRefused, match="damaged"):
            await call


async def test_meshes_share_the_limit(options: LocalOptions, provider: LocalInstances) -> None:
    await provider.acquire(order("sleeps", 3))
    other = LocalInstances("mesh-b", options)
    assert len(await other.acquire(order("sleeps", 3))) == 1


async def test_a_limit_that_was_lowered_ends_nothing(options: LocalOptions, provider: LocalInstances) -> None:
    await provider.acquire(order("sleeps", 3))
    lower = LocalInstances("mesh-a", replace(options, limit=1))
    with pytest.raises(NoCapacity, match="3 of 1"):
        await lower.acquire(order("sleeps", 1, "two"))
    assert [each.state in HERE for each in await lower.instances()] == [True] * 3


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"grace_s": -1.0}, {"commands": {"a": ()}}])
def test_wrong_options_are_refused(options: LocalOptions, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"limit|grace_s|command"):
        replace(options, **wrong)  # type: ignore[arg-type]


def test_an_id_is_a_workers_id() -> None:
    """Letters, digits and dashes: `spotwise join --id` takes it."""
    machine = LocalInstances("mesh-a", LocalOptions(Path("x"), {}, 1))._name("a.token_1", 0)
    assert machine.startswith("local-")
    assert machine.removeprefix("local-").isalnum()
    assert LocalMachine.model_fields.keys() >= {"mesh", "token"}


async def test_a_reclaimed_instance_has_no_grace(options: LocalOptions) -> None:
    """Not even one that is leaving; a release lets it have its time."""
    provider = LocalInstances("mesh-a", replace(options, grace_s=600.0))
    leaving, running = await provider.acquire(order("stubborn", 2))
    provider._let_go([leaving.id], 600.0)
    await provider.reclaim([leaving.id, running.id])
    assert {each.state for each in await provider.instances()} == {InstanceState.GONE}


async def test_variables_can_be_kept_from_instances(options: LocalOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the process that starts them, and of no other; changed options hold for what comes."""
    monkeypatch.setenv("HOME", "/somewhere")
    provider = LocalInstances("mesh-a", replace(options, unset=frozenset({"HOME"})))
    [without] = await provider.acquire(order("says"))
    provider.use(options)
    [given] = await provider.acquire(order("says", token="two"))
    assert "home" in await until_logged(options, given, "aside")
    assert "home" not in await until_logged(options, without, "aside")
    with pytest.raises(ValueError, match="folder"):
        provider.use(replace(options, folder=options.folder / "other"))


async def test_instances_get_no_secrets(options: LocalOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of the cloud are the watcher's alone."""
    for name in ("AWS_SESSION_TOKEN", "SPOTWISE_API_KEYS"):
        monkeypatch.setenv(name, "canary")
    [instance] = await LocalInstances("mesh-a", options).acquire(order("says"))
    assert "canary" not in await until_logged(options, instance, "aside")
