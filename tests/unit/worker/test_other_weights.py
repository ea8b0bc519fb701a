"""Requests that need something of a worker: the weights that they were begun with, a grammar that compiles for long."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import cast

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.numerics import Crossing
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import SamplingParams
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.runtime import warn_of_other_weights
from tests.fakes.memory import FakeClock, MemoryStore
from tests.unit.core.builders import AMX, DOT
from tests.unit.worker.summing_engine import expected_tokens
from tests.unit.worker.twin_mesh import TwinMesh, TwinWorker

PROMPT = (3, 1, 4, 1, 5)


@pytest.mark.parametrize(("begun_with", "is_served"), [("A", False), ("B", True), (None, True)])
async def test_a_request_that_was_begun_with_other_weights_is_given_back(
    mesh: TwinMesh, worker: TwinWorker, begun_with: str | None, is_served: bool
) -> None:
    """The next tokens would belong to another text, so the gateway gets both digests and may try another worker; a first
    attempt requires none.
    """
    worker.host.introduce(model_digest="B")
    await mesh.assign("w", "w", "r", PROMPT, 5, attempt_id=1, model_digest=begun_with)
    end = await mesh.end_of(1)
    if is_served:
        assert end.finish_reason is FinishReason.LENGTH
    else:
        assert (end.finish_reason, end.retryable) == (FinishReason.ERROR, True)
        assert "begun with the weights A, and w has B" in end.error
    await worker.idle()


@pytest.mark.parametrize(
    ("classes", "crossing", "is_served"),
    [
        ((AMX.name, DOT.name), Crossing.REFUSE, True),
        ((DOT.name, AMX.name), Crossing.REFUSE, False),
        ((AMX.name,), Crossing.COUNT, True),
        ((), Crossing.REFUSE, True),
    ],
)
async def test_a_request_of_another_class_is_given_back_where_crossings_are_refused(
    classes: tuple[str, ...], crossing: Crossing, is_served: bool
) -> None:
    """Whatever a scheduler has ordered; the class of its latest token counts."""
    mesh = TwinMesh()
    mesh.policy, mesh.numerics = replace(mesh.policy, crossing=crossing), DOT
    await mesh.start()
    async with mesh.worker("w") as worker:
        await mesh.assign("w", "w", "r", PROMPT, 5, attempt_id=1, numerics_classes=classes)
        end = await mesh.end_of(1)
        if is_served:
            assert end.finish_reason is FinishReason.LENGTH
        else:
            assert (end.finish_reason, end.retryable) == (FinishReason.ERROR, True)
            assert f"of the numerics class {AMX.name}" in end.error
        await worker.idle()


@pytest.mark.parametrize("crossing", Crossing)
async def test_foreign_kv_is_counted_or_refused(crossing: Crossing) -> None:
    """The last check, whatever a link let through; the metric counts what is taken."""
    mesh = TwinMesh()
    mesh.numerics = AMX
    await mesh.start()
    async with mesh.worker("w") as sender:
        mesh.policy, mesh.numerics = replace(mesh.policy, crossing=crossing), DOT
        async with mesh.worker("o") as receiver:
            await mesh.assign("w", "o", "r", PROMPT, 5, attempt_id=1)
            end = await mesh.end_of(1)
            counted = generate_latest(receiver.host.metrics.registry).decode()
            if crossing is Crossing.COUNT:
                assert end.finish_reason is FinishReason.LENGTH
                assert "spotwise_foreign_kv_total 1.0" in counted
            else:
                assert (end.finish_reason, end.retryable) == (FinishReason.ERROR, True)
                assert "spotwise_foreign_kv_total 0.0" in counted
                await mesh.order("o", m.CancelRequest("r", 1))
            await sender.idle()
            await receiver.idle()


@pytest.mark.parametrize(("served", "warned"), [("A", True), ("B", False), (None, False)])
async def test_a_worker_that_joins_logs_why_it_will_get_no_work(served: str | None, warned: bool) -> None:
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


async def test_a_grammar_that_compiles_for_seconds_delays_its_own_sequence_alone(
    mesh: TwinMesh, worker: TwinWorker, other: TwinWorker
) -> None:
    """Sequences with and without grammars, added before and after it, get all their tokens meanwhile, also from a token worker
    where it waits; then it gets its own.
    """
    compiling = Future[None]()
    ready = Future[None]()
    ready.set_result(None)
    for each in (worker, other):
        each.engine.compiled = {"slow": compiling, "ready": ready}

    async def ask(number: int, grammar: str, to: str) -> None:
        sampling = SamplingParams(grammar=grammar)
        await mesh.assign("w", to, f"r{number}", PROMPT, 9, attempt_id=number, sampling=sampling)

    await ask(1, "ready", "w")
    await ask(2, "slow", "w")
    await ask(3, "slow", "o")
    for number, (grammar, to) in enumerate([("", "w"), ("ready", "w"), ("", "o"), ("ready", "o")], start=4):
        await ask(number, grammar, to)
    for number in (1, 4, 5, 6, 7):
        assert await mesh.tokens(number) == expected_tokens(PROMPT, 9)
    assert not mesh.deltas(2) and not mesh.deltas(3)
    compiling.set_result(None)
    for number in (2, 3):
        assert await mesh.tokens(number) == expected_tokens(PROMPT, 9)
    await worker.idle()
    await other.idle()
