"""A worker and weights that are not its own: of requests that were begun with others, and of the mesh that it joins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest
from structlog.testing import capture_logs

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.requests.request import FinishReason
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.runtime import warn_of_other_weights
from tests.fakes.memory import FakeClock, MemoryStore
from tests.unit.worker.twin_mesh import TwinMesh

PROMPT = (3, 1, 4, 1, 5)


@pytest.fixture
async def mesh() -> AsyncIterator[TwinMesh]:
    twin = TwinMesh()
    await twin.start()
    yield twin


async def test_a_request_that_was_begun_with_other_weights_is_given_back(mesh: TwinMesh) -> None:
    """The next tokens would belong to another text, so the gateway gets both digests and may try another worker."""
    async with mesh.worker("w") as worker:
        worker.host.introduce(model_digest="B")
        await mesh.write("r", PROMPT, 5, attempt_id=1, model_digest="A")
        await mesh.serve("w", "r", PROMPT, 5, attempt_id=1)
        end = await mesh.end_of(1)
        assert (end.finish_reason, end.retryable) == (FinishReason.ERROR, True)
        assert "begun with the weights A, and w has B" in end.error
        await worker.idle()


@pytest.mark.parametrize("digest", [None, "B"])
async def test_one_that_was_begun_with_the_same_or_with_none_is_served(mesh: TwinMesh, digest: str | None) -> None:
    """A first attempt requires no digest."""
    async with mesh.worker("w") as worker:
        worker.host.introduce(model_digest="B")
        await mesh.write("r", PROMPT, 5, attempt_id=1, model_digest=digest)
        await mesh.serve("w", "r", PROMPT, 5, attempt_id=1)
        assert (await mesh.end_of(1)).finish_reason is FinishReason.LENGTH
        await worker.idle()


@pytest.mark.parametrize(("served", "warned"), [("A", True), ("B", False), (None, False)])
async def test_a_worker_that_joins_logs_why_it_will_get_no_work(served: str | None, warned: bool) -> None:
    """A joining worker with other weights than the scheduler registered logs both; without a registered digest it
    logs nothing.
    """

    class Joining:
        id = "w"
        store = MemoryStore(FakeClock())
        member = Member("w", MemberKind.TOKEN_WORKER, 1, MemberState.STARTING, "host", 1, "host:1", model_digest="B")

    scheduler = Member(
        "s", MemberKind.CLUSTER_SCHEDULER, 1, MemberState.READY, "host", 1, "host:1", model_digest=served
    )
    await Joining.store.register(scheduler, 60.0)
    with capture_logs() as logs:
        await warn_of_other_weights(cast(ServiceHost, Joining()))
    assert [(entry["event"], entry["weights"], entry["served"]) for entry in logs] == (
        [("other_weights", "B", "A")] if warned else []
    )
