"""Tests of watched processes: the end of a process of this machine is noticed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.spot_watcher.processes import LocalProcesses
from tests.contracts.waiting import until

HOST = "here"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        yield child
        child.kill()


def member(pid: int, member_id: str = "w", *, host: str = HOST, incarnation: int | None = None) -> Member:
    started_ms = time.time_ns() // 1_000_000
    return Member(
        member_id, MemberKind.TOKEN_WORKER, incarnation or started_ms, MemberState.READY, host, pid, f"{host}:1"
    )


@pytest.fixture
def ended() -> list[Member]:
    return []


@pytest.fixture
def processes(ended: list[Member]) -> Iterator[LocalProcesses]:
    watching = LocalProcesses(HOST, "watcher", ended.append)
    yield watching


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_all_members_of_a_killed_process_are_reported(
    processes: LocalProcesses, ended: list[Member], process: subprocess.Popen[bytes]
) -> None:
    members = [member(process.pid, "a"), member(process.pid, "b")]
    for each in members:
        processes.observe(each)
        processes.observe(each)
    process.kill()
    await until(lambda: ended)
    assert ended == members


async def test_a_member_that_sent_a_goodbye_is_not_reported(
    processes: LocalProcesses, ended: list[Member], process: subprocess.Popen[bytes]
) -> None:
    leaving, staying = member(process.pid, "a"), member(process.pid, "b")
    processes.observe(leaving)
    processes.observe(staying)
    processes.observe(replace(leaving, state=MemberState.LEFT, grpc_address=""))
    process.kill()
    await until(lambda: ended)
    assert ended == [staying]


async def test_what_is_not_of_this_machine_is_not_watched(
    processes: LocalProcesses, ended: list[Member], process: subprocess.Popen[bytes]
) -> None:
    processes.observe(member(process.pid, host="elsewhere"))
    processes.observe(member(process.pid, incarnation=1))
    processes.observe(member(2**22 + 1))
    processes.observe(member(process.pid, "watcher"))
    process.kill()
    await asyncio.to_thread(process.wait)
    await asyncio.sleep(0.05)
    assert ended == []


async def test_none_is_reported_after_the_end(
    processes: LocalProcesses, ended: list[Member], process: subprocess.Popen[bytes]
) -> None:
    before = open_files()
    processes.observe(member(process.pid))
    processes.close()
    assert open_files() == before
    process.kill()
    await asyncio.to_thread(process.wait)
    assert ended == []
