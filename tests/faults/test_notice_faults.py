"""Devices have to leave, come or are gone while another change is under way: clients get the same tokens, each once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from spotwise.core.planner.plan import ReshapeStage
from spotwise.mesh.redis.store import RedisStore
from tests.faults.cases import (
    BODIES,
    Answers,
    Run,
    attempts_of,
    greedy_tokens,
    result_of,
    run_requests,
    settled,
    undisturbed_answers,
)
from tests.faults.positions import State, reached
from tests.faults.report import CaseResult
from tests.live.answers import assert_same
from tests.live.fleet import Fleet
from tests.live.mesh import wait_for

pytestmark = pytest.mark.timeout(600)
LONG_NOTICE_S = 60.0
#: Less than a group takes to form on a busy machine.
SHORT_NOTICE_S = 5.0
AWAY_S = 20.0
STATES = [State.FORMING, State.MOVING]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One group of two, and a device that waits; one that is gone for ten seconds is replaced."""
    options = ("--parallel", "1,1,1", "--devices", "3")
    env = {"SPOTWISE_GROUP_PATIENCE_S": "3", "SPOTWISE_REPLACE_AFTER_S": "10"}
    greedy_tokens()  # before the mesh takes the cores; it is kept
    with Fleet(tmp_path_factory.mktemp("notice-faults"), *options, env=env) as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: Fleet) -> Answers:
    """What the requests give where nothing happens; the mesh has been re-shaped before."""
    done = mesh.command("reshape", "1,2,1")
    assert done.returncode == 0, done.stdout + done.stderr
    settled(mesh)
    return undisturbed_answers(mesh)


class Checked:
    """Compares a run with the undisturbed one, and records it."""

    def __init__(self, mesh: Fleet, expected: Answers, record: Callable[[CaseResult], None], case: str) -> None:
        self._mesh = mesh
        self._expected = expected
        self._record = record
        self._case = case

    def check(self, run: Run, victims: str) -> list[int]:
        """Return the attempts of each request."""
        result = result_of(self._case, victims, self._mesh, run, self._expected)
        self._record(result)
        assert not run.errors
        assert_same(run.answers, self._expected, str(result))
        return attempts_of(self._mesh, run)


@pytest.fixture
def checked(
    mesh: Fleet, undisturbed: Answers, record: Callable[[CaseResult], None], request: pytest.FixtureRequest
) -> Checked:
    """Of this test."""
    return Checked(mesh, undisturbed, record, request.node.name.removeprefix("test_"))


@pytest.mark.parametrize("state", STATES)
def test_a_deadline_moves_up(state: State, mesh: Fleet, checked: Checked) -> None:
    """To less than forming takes, while the group that is to replace the device forms, or requests move to it."""
    mesh.acquire(f"sooner-{state}")
    before, leaving = mesh.change(), mesh.newest_group().device_ids[1]

    async def happen(store: RedisStore) -> None:
        await asyncio.to_thread(mesh.drain, leaving, LONG_NOTICE_S)
        await reached(store, before, state)
        await asyncio.to_thread(mesh.drain, leaving, SHORT_NOTICE_S)

    run = asyncio.run(run_requests(mesh, happen))
    mesh.settled(leaving, after=before, within_s=LONG_NOTICE_S)
    checked.check(run, leaving)


@pytest.mark.parametrize("state", STATES)
def test_a_second_device_has_to_leave(state: State, mesh: Fleet, checked: Checked) -> None:
    """One that the new group has as well."""
    mesh.acquire(f"second-{state}-0", f"second-{state}-1")
    before = mesh.change()
    staying, leaving = mesh.newest_group().device_ids

    async def happen(store: RedisStore) -> None:
        await asyncio.to_thread(mesh.drain, leaving, LONG_NOTICE_S)
        planned = await reached(store, before, state)
        assert staying in planned.new[0].device_ids
        await asyncio.to_thread(mesh.drain, staying, LONG_NOTICE_S / 2)

    run = asyncio.run(run_requests(mesh, happen))
    wait_for(
        lambda: not {leaving, staying} & set(mesh.newest_group().device_ids), lambda: f"{mesh.planned()}", LONG_NOTICE_S
    )
    mesh.settled(leaving, staying, after=before, within_s=LONG_NOTICE_S + 30.0)
    assert checked.check(run, f"{leaving}, {staying}") == [1] * len(BODIES)


@pytest.mark.parametrize("state", STATES)
def test_a_device_comes(state: State, mesh: Fleet, checked: Checked) -> None:
    """It had joined and is heard of again: nothing that is under way changes."""
    late = f"late-{state}"
    mesh.acquire(f"early-{state}", late)
    pid = mesh.device_pid(late)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: late not in mesh.member_ids(), lambda: f"the mesh to forget {late}")
    before, leaving = mesh.change(), mesh.newest_group().device_ids[1]

    async def happen(store: RedisStore) -> None:
        await asyncio.to_thread(mesh.drain, leaving, LONG_NOTICE_S)
        await reached(store, before, state)
        os.kill(pid, signal.SIGCONT)

    run = asyncio.run(run_requests(mesh, happen))
    mesh.settled(leaving, after=before, within_s=LONG_NOTICE_S)
    assert checked.check(run, late) == [1] * len(BODIES)
    wait_for(lambda: late in mesh.ready_ids(), lambda: f"{late} to be back")


def test_no_device_is_left_for_a_while(mesh: Fleet, checked: Checked) -> None:
    """All are killed for good, and others come: requests wait for them, and their KV is computed again."""
    own = [each for each in ("mixed-0-device-0", "device-0", "device-1") if each in mesh.ready_ids()]
    mesh.acquire("alone-0", "alone-1")
    before = mesh.change()
    for device_id in own:
        mesh.drain(device_id, LONG_NOTICE_S / 2)
    if own:
        wait_for(lambda: not set(own) & mesh.member_ids(), lambda: f"{own} to leave", LONG_NOTICE_S)
    if set(own) & set(mesh.newest_group().device_ids):
        mesh.settled(*own, after=before, within_s=LONG_NOTICE_S)
    mesh.wait_until_idle()
    gone = mesh.acquired_ids
    before = mesh.change()

    async def happen(store: RedisStore) -> None:
        for device_id in gone:
            await asyncio.to_thread(mesh.end, device_id)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(mesh.acquire, "fresh-0", "fresh-1")

    run = asyncio.run(run_requests(mesh, happen))
    mesh.comes_to(before, ReshapeStage.DONE, using=frozenset(["fresh-0", "fresh-1"]))
    mesh.settled(*gone, after=before, within_s=LONG_NOTICE_S)
    attempts = checked.check(run, ", ".join(gone))
    assert min(attempts) >= 2  # no device has their KV
