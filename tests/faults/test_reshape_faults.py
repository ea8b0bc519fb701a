"""A process that a re-shape needs dies, stands still or stops, in each state of it: clients get the same tokens, each once."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import Callable, Iterator

import pytest

from spotwise.core.planner.plan import PlannedDeployment
from spotwise.mesh.redis.store import RedisStore
from tests.faults.cases import (
    BODIES,
    Answers,
    attempts_of,
    greedy_tokens,
    result_of,
    run_requests,
    settled,
    undisturbed_answers,
)
from tests.faults.positions import Position, State, Victim, Way, device_at, disturb, positions_of, process_of, reached
from tests.faults.report import CaseResult
from tests.live.answers import assert_same
from tests.live.mesh import LiveMesh, wait_for

#: Of several leaders one leads no group of the other shape; of six devices some are in no group of it.
SHAPES = ("2,2,1", "1,1,3")
pytestmark = pytest.mark.timeout(600)
#: Positions last: a process that dies again within a minute waits longer for its next start.
MATRIX = list(itertools.product(Way, State, Position))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """Two groups of two, and two devices that wait; a process that stands still is replaced after eight seconds."""
    options = ("--parallel", SHAPES[0], "--devices", "6", "--hang-timeout", "8")
    env = {"SPOTWISE_GROUP_PATIENCE_S": "3"}
    greedy_tokens()  # before the mesh takes the cores; it is kept
    with LiveMesh(tmp_path_factory.mktemp("reshape-faults"), *options, env=env) as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: LiveMesh) -> Answers:
    """What the requests give where nothing happens, in both shapes."""
    expected = undisturbed_answers(mesh)
    done = mesh.command("reshape", SHAPES[1])
    assert done.returncode == 0, done.stdout + done.stderr
    settled(mesh)
    assert_same(undisturbed_answers(mesh), expected)
    return expected


@pytest.mark.parametrize(("way", "state", "position"), MATRIX)
def test_a_process_fails_in_the_midst_of_a_reshape(
    way: Way,
    state: State,
    position: Position,
    mesh: LiveMesh,
    undisturbed: Answers,
    record: Callable[[CaseResult], None],
) -> None:
    """Requests that no group with the process served are not even computed again."""
    settled(mesh)
    before = mesh.planned()
    assert before is not None
    target = next(each for each in SHAPES if tuple(map(int, each.split(",")[1:])) not in mesh.shapes().values())
    victims: list[tuple[Victim, PlannedDeployment]] = []

    async def happen(store: RedisStore) -> None:
        order = asyncio.create_task(asyncio.to_thread(mesh.command, "reshape", target, timeout_s=300.0))
        try:
            planned = await _planned_or_refused(store, before.change, state, order)
            if position is Position.PLANNER:
                victim = await process_of(mesh, store, "planner-0")
            else:
                victim = await process_of(mesh, store, device_at(position, planned))
            victims.append((victim, planned))
            await disturb(victim, way)
        finally:
            await order  # what it says is the end of the re-shape, or of the planner that it asked

    run = asyncio.run(run_requests(mesh, happen))
    ((victim, planned),) = victims
    roles = positions_of(victim.name, planned)
    victim_text = ", ".join([victim.name, *roles])
    if way is Way.STOP:
        victim.end()
    if way is not Way.PAUSE:
        wait_for(lambda: not victim.is_there(), lambda: f"the end of {victim}")
    settled(mesh)
    result = result_of(f"{position}, {state}, {way}", victim_text, mesh, run, undisturbed)
    record(result)
    assert not run.errors
    assert_same(run.answers, undisturbed, str(result))
    if not _may_compute_again(state, roles):
        assert attempts_of(mesh, run) == [1] * len(BODIES), result


async def _planned_or_refused(
    store: RedisStore, after: int, state: State, order: asyncio.Task[subprocess.CompletedProcess[str]]
) -> PlannedDeployment:
    """Return what was planned, once it has come to a state; fail where the order was refused."""
    reaching = asyncio.create_task(reached(store, after, state))
    await asyncio.wait([reaching, order], return_when=asyncio.FIRST_COMPLETED)
    plan = await store.get_plan()
    if plan is None or plan.deployment is None or plan.deployment.change <= after:
        reaching.cancel()
        raise AssertionError(f"refused: {(await order).stderr}")
    return await reaching


def _may_compute_again(state: State, roles: list[str]) -> bool:
    """Whether a process with these roles may hold KV of requests in this state of a re-shape."""
    match state:
        case State.PLANNED | State.FORMING:
            return any(role.startswith("old") for role in roles)
        case State.MOVING:
            return bool(roles)
        case State.DONE:
            return any(role.startswith("new") for role in roles)
