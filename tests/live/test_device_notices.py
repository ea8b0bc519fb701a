"""Devices of a group have to leave, or stand still, while it serves: others take their places, and clients notice nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import psutil
import pytest

from spotwise.core.members import MemberState
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from spotwise.core.reshape_messages import DeviceGroup
from spotwise.mesh.redis_store import RedisStore
from tests.live.mesh import LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts
from tests.live.streams import stream

NEW_TOKENS = 120
BEGUN = 8
#: The first test starts the mesh, and others add processes to it, on a machine that may be busy.
pytestmark = pytest.mark.timeout(400)
#: Of devices whose requests decode on until the last moment.
SHORT_NOTICE_S = 12.0
#: Longer than new groups take on a busy machine.
NOTICE_S = 60.0
#: Longer than after what a device that is gone is replaced, and less than what requests wait for.
AWAY_S = 20.0
PROMPTS = mixed_prompts(3, 120)
#: Environment of a device, and the devices that tests have added to the mesh.
ENV: dict[str, str] = {}
ACQUIRED: dict[str, subprocess.Popen[bytes]] = {}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One group of three shards, and a device that waits."""
    options, env = (
        ("--parallel", "1,1,3", "--devices", "4"),
        {"SPOTWISE_GROUP_PATIENCE_S": "5", "SPOTWISE_REPLACE_AFTER_S": "10"},
    )
    for prompt in PROMPTS:
        greedy(prompt, NEW_TOKENS)  # before the mesh takes the cores; it is kept
    with LiveMesh(tmp_path_factory.mktemp("device-notices"), *options, env=env) as live:
        ENV.update(psutil.Process(live.pid("device-0")).environ())
        yield live
        while ACQUIRED:
            end(next(iter(ACQUIRED)))


def planned(mesh: LiveMesh) -> PlannedDeployment | None:
    """The deployment in the planner's plan."""

    async def read() -> PlannedDeployment | None:
        store = await RedisStore.connect(mesh.state.redis_url)
        try:
            plan = await store.get_plan()
        finally:
            await store.close()
        return None if plan is None else plan.deployment

    return asyncio.run(read())


def change_of(mesh: LiveMesh) -> int:
    """The number of the last re-shape."""
    deployment = planned(mesh)
    return 0 if deployment is None else deployment.change


def comes_to(
    mesh: LiveMesh, after: int, *stages: ReshapeStage, using: frozenset[str] = frozenset()
) -> PlannedDeployment:
    """Wait until a later re-shape than `after`, whose last new group has one of these devices, is at one of these stages."""
    found: list[PlannedDeployment] = []

    def is_there() -> bool:
        deployment = planned(mesh)
        if deployment is None or deployment.change <= after or not deployment.new_ids:
            return False
        if using and not using & set(deployment.new[-1].device_ids):
            return False  # a stopgap, where a planner has not heard of the device yet
        found[:] = [deployment]
        return deployment.stage in stages

    wait_for(is_there, lambda: f"{stages} of a change after {after}: {found}", 90.0)
    return found[0]


def workers(mesh: LiveMesh) -> set[str]:
    """The workers that serve."""
    return {status.member.id for status in mesh.members() if status.member_now.load is not None}


def pid_of(mesh: LiveMesh, device_id: str) -> int:
    """The process of a device."""
    (pid,) = (status.member.pid for status in mesh.members() if status.member.id == device_id)
    return pid


def members(mesh: LiveMesh) -> set[str]:
    """All that is in the mesh."""
    return {status.member.id for status in mesh.members()}


def ready(mesh: LiveMesh) -> set[str]:
    """All that serves."""
    return {status.member.id for status in mesh.members() if status.member_now.state is MemberState.READY}


def acquire(mesh: LiveMesh, *device_ids: str) -> None:
    """New machines come: devices of processes of their own, which the fixture ends."""
    for device_id in device_ids:
        ACQUIRED[device_id] = subprocess.Popen(
            [sys.executable, "-m", "spotwise.worker.groups"],
            env=ENV | {"SPOTWISE_SERVICE_ID": device_id},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    wait_for(lambda: set(device_ids) <= ready(mesh), lambda: f"{device_ids} to join", 150.0)


def end(device_id: str) -> None:
    """Let a machine that came be gone."""
    process = ACQUIRED.pop(device_id)
    process.kill()
    process.wait()


class Answers:
    """Greedy streams that ran while something happened."""

    def __init__(self, mesh: LiveMesh, disturb: Callable[[], None]) -> None:
        self.ids: list[str] = []
        self.tokens: list[tuple[int, ...]] = []
        asyncio.run(self._run(mesh, disturb))
        assert self.tokens == [greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]
        self.attempts = [mesh.ledger(each, "completed")["completed"]["attempts"] for each in self.ids]

    async def _run(self, mesh: LiveMesh, disturb: Callable[[], None]) -> None:
        begun = [asyncio.Event() for _ in PROMPTS]

        def seen(number: int, count: int) -> None:
            if count >= BEGUN:
                begun[number].set()

        async with mesh.async_client() as client:
            streams = [
                asyncio.create_task(stream(client, prompt, NEW_TOKENS, partial(seen, number)))
                for number, prompt in enumerate(PROMPTS)
            ]
            await asyncio.gather(*(each.wait() for each in begun))
            await asyncio.to_thread(disturb)
            for request_id, tokens in await asyncio.gather(*streams):
                self.ids.append(request_id)
                self.tokens.append(tokens)


def serving(mesh: LiveMesh) -> DeviceGroup:
    """The newest group of the deployment."""
    deployment = planned(mesh)
    assert deployment is not None
    return deployment.groups[-1]


def settled(mesh: LiveMesh, *gone: str, after: int) -> PlannedDeployment:
    """Wait until the change is over and devices have left; what serves has none of them."""
    deployment = comes_to(mesh, after, ReshapeStage.DONE)
    wait_for(lambda: not set(gone) & members(mesh), lambda: f"{gone} to leave", NOTICE_S + 30.0)
    wait_for(lambda: workers(mesh) == {serving(mesh).worker_id}, lambda: f"{serving(mesh)}, not {workers(mesh)}", 90.0)
    assert not set(gone) & set(serving(mesh).device_ids)
    mesh.wait_until_idle()
    return deployment


def test_a_spare_device_takes_the_place_of_one_that_has_to_leave(mesh: LiveMesh) -> None:
    """Of a machine without the leader; each request in one attempt."""
    before, leaving = change_of(mesh), "mixed-0-device-1"
    answers = Answers(mesh, lambda: mesh.drain(leaving, NOTICE_S))
    deployment = settled(mesh, leaving, after=before)
    assert answers.attempts == [1, 1, 1]
    assert deployment.groups[0].device_ids == ("mixed-0-device-0", "device-0", "mixed-0-device-2")
    assert leaving in deployment.cause


@pytest.mark.parametrize("stage", [ReshapeStage.FORMING, ReshapeStage.MOVING])
def test_a_device_that_stands_still_in_the_midst_of_it_costs_a_pause(stage: ReshapeStage, mesh: LiveMesh) -> None:
    """The newcomer while its group forms, one of the old group while requests move; both go on later."""
    newcomer = f"still-{stage.value}"
    acquire(mesh, newcomer)
    before, old = change_of(mesh), serving(mesh)
    leaving, staying = old.device_ids[1:]

    def disturb() -> None:
        mesh.drain(leaving, NOTICE_S)
        comes_to(mesh, before, stage, ReshapeStage.MOVING, ReshapeStage.DONE, using=frozenset([newcomer]))
        pid = pid_of(mesh, newcomer if stage is ReshapeStage.FORMING else staying)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) <= 3
    settled(mesh, leaving, after=before)


def test_a_second_notice_in_the_midst_of_a_change_is_kept_too(mesh: LiveMesh) -> None:
    """Of a device of the new group, and an earlier deadline of the first one."""
    fresh = frozenset(["second-0", "second-1"])
    acquire(mesh, *fresh)
    before, leaving = change_of(mesh), [serving(mesh).device_ids[1]]

    def disturb() -> None:
        mesh.drain(leaving[0], NOTICE_S)
        stages = (ReshapeStage.FORMING, ReshapeStage.MOVING, ReshapeStage.DONE)
        change = comes_to(mesh, before, *stages, using=fresh)
        leaving.append(min(fresh.intersection(change.new[-1].device_ids)))
        mesh.drain(leaving[1], NOTICE_S)
        mesh.drain(leaving[0], NOTICE_S / 2)

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) <= 3
    wait_for(
        lambda: not set(leaving) & set(serving(mesh).device_ids), lambda: f"{serving(mesh)} without {leaving}", 90.0
    )
    settled(mesh, *leaving, after=before)


def test_with_one_device_left_a_smaller_group_serves(mesh: LiveMesh) -> None:
    """All of the only group are under notice."""
    before, leaving = change_of(mesh), serving(mesh).device_ids
    acquire(mesh, "last-0")

    def disturb() -> None:
        for device_id in leaving:
            mesh.drain(device_id, SHORT_NOTICE_S)

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) <= 2
    deployment = settled(mesh, *leaving, after=before)
    assert (serving(mesh).stages, serving(mesh).shards) == (1, 1)
    assert deployment.stopgap_ids == (serving(mesh).worker_id,)


def test_when_machines_come_the_group_is_whole_again(mesh: LiveMesh) -> None:
    """In the midst of streams, which move to it."""
    before, alone = change_of(mesh), serving(mesh).device_ids

    def disturb() -> None:
        acquire(mesh, "more-0", "more-1")

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) == 1
    settled(mesh, after=before)
    assert set(serving(mesh).device_ids) == {*alone, "more-0", "more-1"}


def test_streams_go_on_when_no_device_was_left_for_a_while(mesh: LiveMesh) -> None:
    """All stand still for longer than the mesh waits for members, and go on."""
    pids = [pid_of(mesh, device_id) for device_id in serving(mesh).device_ids]

    def disturb() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(AWAY_S)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) <= 3
    mesh.wait_until_idle()


def test_a_device_that_is_gone_is_replaced(mesh: LiveMesh) -> None:
    """No supervisor starts it again: requests wait for the spare device that takes its position."""
    acquire(mesh, "instead-0")
    before, victim = change_of(mesh), serving(mesh).device_ids[-1]
    answers = Answers(mesh, lambda: end(victim))
    assert max(answers.attempts) <= 3
    settled(mesh, after=before)
    assert "instead-0" in serving(mesh).device_ids and victim not in serving(mesh).device_ids
