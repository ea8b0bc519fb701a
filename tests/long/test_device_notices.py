"""Devices of a group have to leave, or stand still, while it serves: others take their places, and clients notice nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from tests.live.fleet import Fleet
from tests.live.mesh import wait_for
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


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One group of three shards, and a device that waits."""
    options, env = (
        ("--parallel", "1,1,3", "--devices", "4"),
        {"SPOTWISE_GROUP_PATIENCE_S": "5", "SPOTWISE_REPLACE_AFTER_S": "10"},
    )
    for prompt in PROMPTS:
        greedy(prompt, NEW_TOKENS)  # before the mesh takes the cores; it is kept
    with Fleet(tmp_path_factory.mktemp("device-notices"), *options, env=env) as live:
        yield live


class Answers:
    """Greedy streams that ran while something happened."""

    def __init__(self, mesh: Fleet, disturb: Callable[[], None]) -> None:
        self.ids: list[str] = []
        self.tokens: list[tuple[int, ...]] = []
        asyncio.run(self._run(mesh, disturb))
        assert self.tokens == [greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]
        self.attempts = [mesh.ledger(each, "completed")["completed"]["attempts"] for each in self.ids]

    async def _run(self, mesh: Fleet, disturb: Callable[[], None]) -> None:
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


def settled(mesh: Fleet, *gone: str, after: int) -> PlannedDeployment:
    """Wait until the change is over and devices have left."""
    return mesh.settled(*gone, after=after, within_s=NOTICE_S + 30.0)


def test_a_spare_device_takes_the_place_of_one_that_has_to_leave(mesh: Fleet) -> None:
    """Of a machine without the leader; each request in one attempt."""
    before, leaving = mesh.change(), "mixed-0-device-1"
    answers = Answers(mesh, lambda: mesh.drain(leaving, NOTICE_S))
    deployment = settled(mesh, leaving, after=before)
    assert answers.attempts == [1, 1, 1]
    assert deployment.groups[0].device_ids == ("mixed-0-device-0", "device-0", "mixed-0-device-2")
    assert leaving in deployment.cause


@pytest.mark.parametrize("stage", [ReshapeStage.FORMING, ReshapeStage.MOVING])
def test_a_device_that_stands_still_in_the_midst_of_it_costs_a_pause(stage: ReshapeStage, mesh: Fleet) -> None:
    """The newcomer while its group forms, one of the old group while requests move; both go on later."""
    newcomer = f"still-{stage.value}"
    mesh.acquire(newcomer)
    before, old = mesh.change(), mesh.newest_group()
    leaving, staying = old.device_ids[1:]

    def disturb() -> None:
        mesh.drain(leaving, NOTICE_S)
        mesh.comes_to(before, stage, ReshapeStage.MOVING, ReshapeStage.DONE, using=frozenset([newcomer]))
        pid = mesh.device_pid(newcomer if stage is ReshapeStage.FORMING else staying)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) <= 3
    settled(mesh, leaving, after=before)


def test_a_second_notice_in_the_midst_of_a_change_is_kept_too(mesh: Fleet) -> None:
    """Of a device of the new group, and an earlier deadline of the first one."""
    fresh = frozenset(["second-0", "second-1"])
    mesh.acquire(*fresh)
    before, leaving = mesh.change(), [mesh.newest_group().device_ids[1]]

    def disturb() -> None:
        mesh.drain(leaving[0], NOTICE_S)
        stages = (ReshapeStage.FORMING, ReshapeStage.MOVING, ReshapeStage.DONE)
        change = mesh.comes_to(before, *stages, using=fresh)
        leaving.append(min(fresh.intersection(change.new[-1].device_ids)))
        mesh.drain(leaving[1], NOTICE_S)
        mesh.drain(leaving[0], NOTICE_S / 2)

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) <= 3
    wait_for(
        lambda: not set(leaving) & set(mesh.newest_group().device_ids),
        lambda: f"{mesh.newest_group()} without {leaving}",
        90.0,
    )
    settled(mesh, *leaving, after=before)


def test_with_one_device_left_a_smaller_group_serves(mesh: Fleet) -> None:
    """All of the only group are under notice."""
    before, leaving = mesh.change(), mesh.newest_group().device_ids
    mesh.acquire("last-0")

    def disturb() -> None:
        for device_id in leaving:
            mesh.drain(device_id, SHORT_NOTICE_S)

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) <= 2
    deployment = settled(mesh, *leaving, after=before)
    assert (mesh.newest_group().stages, mesh.newest_group().shards) == (1, 1)
    assert deployment.stopgap_ids == (mesh.newest_group().worker_id,)


def test_when_machines_come_the_group_is_whole_again(mesh: Fleet) -> None:
    """In the midst of streams, which move to it."""
    before, alone = mesh.change(), mesh.newest_group().device_ids

    def disturb() -> None:
        mesh.acquire("more-0", "more-1")

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) == 1
    settled(mesh, after=before)
    assert set(mesh.newest_group().device_ids) == {*alone, "more-0", "more-1"}


def test_streams_go_on_when_no_device_was_left_for_a_while(mesh: Fleet) -> None:
    """All stand still for longer than the mesh waits for members, and go on."""
    pids = [mesh.device_pid(device_id) for device_id in mesh.newest_group().device_ids]

    def disturb() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(AWAY_S)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    answers = Answers(mesh, disturb)
    assert max(answers.attempts) <= 3
    mesh.wait_until_idle()


def test_a_device_that_is_gone_is_replaced(mesh: Fleet) -> None:
    """No supervisor starts it again: requests wait for the spare device that takes its position."""
    mesh.acquire("instead-0")
    before, victim = mesh.change(), mesh.newest_group().device_ids[-1]
    answers = Answers(mesh, lambda: mesh.end(victim))
    assert max(answers.attempts) <= 3
    settled(mesh, after=before)
    assert "instead-0" in mesh.newest_group().device_ids and victim not in mesh.newest_group().device_ids
