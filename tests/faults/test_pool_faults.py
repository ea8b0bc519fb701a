"""All of a pool has to leave where phases are apart, and one device is spare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from spotwise.mesh.redis_store import RedisStore
from tests.faults.cases import NEW_TOKENS, PROMPTS, Tokens, attempts_of, result_of, run_streams, settled
from tests.faults.report import CaseResult
from tests.live.fleet import Fleet
from tests.live.mesh import wait_for
from tests.live.oracle import greedy

pytestmark = pytest.mark.timeout(400)
NOTICE_S = 30.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A prompt worker and a token worker of a device each, and one that waits."""
    greedy(PROMPTS[0], NEW_TOKENS)  # before the mesh takes the cores; it is kept
    with Fleet(tmp_path_factory.mktemp("pool-faults"), "--parallel", "1+1,1,1", "--devices", "3") as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: Fleet) -> Tokens:
    """What the streams give where nothing happens."""
    expected = asyncio.run(run_streams(mesh)).tokens
    assert tuple(expected[0][0]) == greedy(PROMPTS[0], NEW_TOKENS)
    return expected


@pytest.mark.parametrize("pool", ["token", "prompt"])
def test_all_of_a_pool_has_to_leave(
    pool: str, mesh: Fleet, undisturbed: Tokens, record: Callable[[CaseResult], None]
) -> None:
    """The spare device takes the place; what decodes moves to it with its KV."""
    if pool == "prompt":
        mesh.acquire("spare")  # the first one has been taken
    before, leaving = mesh.change(), f"{pool}-0-device-0"

    async def happen(store: RedisStore) -> None:
        await asyncio.to_thread(mesh.drain, leaving, NOTICE_S)

    run = asyncio.run(run_streams(mesh, happen))
    wait_for(lambda: mesh.change() > before, lambda: f"a change after {before}")
    wait_for(lambda: leaving not in mesh.member_ids(), lambda: f"{leaving} to leave", NOTICE_S + 30.0)
    settled(mesh)
    deployment = mesh.planned()
    assert deployment is not None
    assert sorted(group.pool.value for group in deployment.groups) == ["prompt", "token"]
    assert leaving not in [each for group in deployment.groups for each in group.device_ids]
    result = result_of(f"all of the {pool} pool has to leave", leaving, mesh, run, undisturbed)
    record(result)
    assert not run.errors
    assert run.tokens == undisturbed, result
    assert [attempts_of(mesh, answer) for answer in run.answers] == [1, 1, 1], result
