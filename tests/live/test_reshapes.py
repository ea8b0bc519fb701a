"""A mesh takes another shape while it answers: clients get the answers of an undisturbed run, and no process restarts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from tests.live.answers import Answer, ask_all, assert_same
from tests.live.mesh import LiveMesh, wait_for
from tests.live.oracle import greedy
from tests.live.request_kinds import assert_fitting, bodies

#: Long enough that all are still decoding when the mesh has its other shape.
NEW_TOKENS = 200
#: Once the new groups serve, every request has its order to move within so long.
ORDERED_S = 3.0
BODIES = bodies(NEW_TOKENS)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One worker of one process, and five devices that wait; six processes on two cores may be silent for long."""
    options, env = ("--parallel", "1,1,1", "--devices", "6"), {"SPOTWISE_GROUP_PATIENCE_S": "5"}
    with LiveMesh(tmp_path_factory.mktemp("reshapes"), *options, env=env) as live:
        yield live


async def asked(
    mesh: LiveMesh,
    reshape: str | None = None,
    kill: tuple[ReshapeStage, str] | None = None,
    whole: int | None = None,
) -> tuple[dict[str, Answer], str]:
    """Send the requests at once, and re-shape the mesh in the midst of them, and kill a process when that has come so far;
    what they got, and what the command said. `whole`: see `bodies`.
    """
    said = ""

    async def change_shape() -> None:
        nonlocal said
        assert reshape is not None
        known = await asyncio.to_thread(mesh.planned)
        change = 0 if known is None else known.change
        command = asyncio.create_task(asyncio.to_thread(mesh.command, "reshape", reshape))
        if kill is not None:
            killing = asyncio.create_task(asyncio.to_thread(kill_at, mesh, change, *kill))
            await asyncio.wait([command, killing], return_when=asyncio.FIRST_COMPLETED)
            assert killing.done(), (await command).stderr
            killing.result()
        done = await command
        said = done.stdout + done.stderr
        assert done.returncode == 0 or kill is not None, said

    async with mesh.async_client() as client:
        answers = await ask_all(client, bodies(NEW_TOKENS, whole=whole), None if reshape is None else change_shape)
    return answers, said


def deployment_of(mesh: LiveMesh) -> PlannedDeployment:
    """The deployment of the last re-shape."""
    deployment = mesh.planned()
    assert deployment is not None
    return deployment


def kill_at(mesh: LiveMesh, change: int, stage: ReshapeStage, victim: str) -> None:
    """Kill a process once a later re-shape than `change` has come to a stage, or past it."""

    def has_come_there() -> bool:
        deployment = mesh.planned()
        if deployment is None or deployment.change == change:
            return False
        return deployment.stage is stage or deployment.stage.is_over

    wait_for(has_come_there, lambda: f"{stage} of a re-shape after {change}")
    deployment = deployment_of(mesh)
    leaders = {"new leader": deployment.new, "old leader": deployment.retiring}
    service_id = "planner-0" if victim == "planner" else leaders[victim][0].device_ids[0]
    os.kill(mesh.pid("mixed-0" if service_id == "mixed-0-device-0" else service_id), signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(mesh: LiveMesh) -> dict[str, Answer]:
    """What the requests give where nothing happens."""
    answers, _ = asyncio.run(asked(mesh))
    assert tuple(answers["greedy"].token_ids[0]) == greedy(tuple(BODIES["greedy"]["prompt"]), NEW_TOKENS)
    assert_fitting(answers)
    return answers


# Every change between two shapes is in tests/long, and every process at every stage in tests/faults.
@pytest.mark.parametrize(("config", "whole"), [("1,2,3", 0), pytest.param("1+1,3,1", 1, marks=pytest.mark.long)])
def test_requests_go_on_through_another_shape(
    config: str, whole: int, mesh: LiveMesh, undisturbed: dict[str, Answer]
) -> None:
    """Each in one attempt, with its KV; the processes are those of before, and only the new groups are left."""
    before = {name: mesh.pid(name) for name in mesh.state.services}
    answers, said = asyncio.run(asked(mesh, config, whole=whole))
    assert_same(answers, undisturbed, said)
    for answer in answers.values():
        facts = mesh.ledger(answer.request_id, "completed")
        assert facts["completed"]["attempts"] == 1, said
        served_s = deployment_of(mesh).served_s
        assert served_s is not None
        if answer.ended_s > served_s + ORDERED_S:  # it may end before the new groups serve
            assert "moved" in facts, said
    deployment = deployment_of(mesh)
    assert (deployment.unplanned_bytes, deployment.read_bytes) == (0, 0), (
        "weights came from elsewhere than the plan says"
    )
    target = ParallelConfig.parse(config)
    wait_for(lambda: len(mesh.shapes()) == target.pipelines, lambda: f"{config}, not {mesh.shapes()}")
    assert set(mesh.shapes().values()) == {(target.pipeline, target.tensor)}
    assert {name: mesh.pid(name) for name in mesh.state.services} == before
    assert mesh.command("status").returncode == 0
    mesh.wait_until_idle()


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "victim", "config"),
    [
        (ReshapeStage.FORMING, "new leader", "1,1,3"),
        (ReshapeStage.MOVING, "planner", "1,3,1"),
        (ReshapeStage.MOVING, "old leader", "1,1,1"),
    ],
)
def test_a_process_that_dies_in_the_midst_of_it_costs_a_pause(
    stage: ReshapeStage, victim: str, config: str, mesh: LiveMesh, undisturbed: dict[str, Answer]
) -> None:
    """The re-shape goes on, or the old groups do: the same answers either way, and nothing is left behind."""
    answers, said = asyncio.run(asked(mesh, config, kill=(stage, victim)))
    assert_same(answers, undisturbed, said)
    wait_for(lambda: deployment_of(mesh).stage.is_over, lambda: f"the end of {deployment_of(mesh)}", 90.0)
    groups = {group.worker_id: (group.stages, group.shards) for group in deployment_of(mesh).groups}
    if groups:
        wait_for(lambda: mesh.shapes() == groups, lambda: f"{groups}, not {mesh.shapes()}", 90.0)
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh", 60.0)
    mesh.wait_until_idle()


def test_a_shape_that_cannot_be_is_refused(mesh: LiveMesh) -> None:
    """With what can be; nothing changes."""
    now = mesh.shapes()
    for config, reason in (("1,1,2", "KV heads"), ("7,1,1", "6"), ("1,40,1", "layers")):
        done = mesh.command("reshape", config)
        assert done.returncode == 1 and reason in done.stderr, done.stdout + done.stderr
    assert mesh.shapes() == now
