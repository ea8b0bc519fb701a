"""All of a pool has to leave where phases are apart, and one device is spare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

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
from tests.faults.report import CaseResult
from tests.live.answers import assert_same
from tests.live.fleet import Fleet
from tests.live.mesh import wait_for

pytestmark = pytest.mark.timeout(400)
NOTICE_S = 30.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A prompt worker and a token worker of a device each, and one that waits."""
    greedy_tokens()  # before the mesh takes the cores; it is kept
    with Fleet(tmp_path_factory.mktemp("pool-faults"), "--parallel", "1+1,1,1", "--devices", "3") as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: Fleet) -> Answers:
    """What the requests give where nothing happens."""
    return undisturbed_answers(mesh)


@pytest.mark.parametrize("pool", ["token", "prompt"])
def test_all_of_a_pool_has_to_leave(
    pool: str, mesh: Fleet, undisturbed: Answers, record: Callable[[CaseResult], None]
) -> None:
    """The spare device takes the place; what decodes moves to it with its KV."""
    if pool == "prompt":
        mesh.acquire("spare")  # the first one has been taken
    before, leaving = mesh.change(), f"{pool}-0-device-0"

    async def happen(store: RedisStore) -> None:
        await asyncio.to_thread(mesh.drain, leaving, NOTICE_S)

    run = asyncio.run(run_requests(mesh, happen))
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
    assert_same(run.answers, undisturbed, str(result))
    assert attempts_of(mesh, run) == [1] * len(BODIES), result
