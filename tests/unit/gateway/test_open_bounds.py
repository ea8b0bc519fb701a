"""How much a request without `max_tokens` may generate: what the largest worker holds at each attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from spotwise.core.messages.members import Member, MemberState, Pool
from spotwise.core.messages.mesh import (
    RejectCode,
    RequestAssigned,
    RequestRejected,
    SubmitRequest,
    TokenBatch,
    TokenDelta,
)
from spotwise.core.requests.request import FinishReason
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.mesh.client import MeshGeneration
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBus
from tests.unit.core.builders import worker_member
from tests.unit.gateway.test_slow_store import SPEC, OneGateway

#: A prompt of 3 tokens, and no bound but the model's context.
OPEN = replace(SPEC, stop=replace(SPEC.stop, max_new_tokens=8189), unbounded=True)
LARGE, SMALL = worker_member("w", Pool.MIXED, blocks=100), worker_member("w2", Pool.MIXED, blocks=10)


class Shrinking:
    """A gateway that serves one request, and the workers that it hears of."""

    def __init__(self, mesh: OneGateway, generation: MeshGeneration, spec: SequenceSpec) -> None:
        self.mesh = mesh
        self._bus = MemoryBus(mesh.broker)
        self._generation, self._spec = generation, spec
        self.client: asyncio.Task[None] | None = None

    async def hears(self, *workers: Member) -> None:
        for worker in workers:
            await self._bus.publish(subjects.heartbeat(worker.kind, worker.id), encode(worker))
        await asyncio.sleep(0.02)

    async def begin(self) -> SubmitRequest:
        async def take() -> None:
            async for _ in self._generation.generate("r", self._spec):
                pass

        self.client = asyncio.create_task(take())
        return await self.submitted(1)

    async def submitted(self, number: int) -> SubmitRequest:
        """The order of that number, and nothing but orders."""
        await until(lambda: len(self.mesh.sent) >= number)
        order = self.mesh.sent[number - 1]
        assert isinstance(order, SubmitRequest)
        return order

    async def is_lost(self, order: SubmitRequest, tokens: int) -> None:
        """The attempt on the large worker ends after some tokens."""
        attempt = order.stream.attempt_id
        deltas = tuple(TokenDelta(attempt, index, 50) for index in range(tokens))
        lost = TokenDelta(attempt, tokens, None, FinishReason.ERROR, "the worker is gone", retryable=True)
        for sender, message in (
            (MeshRole.SCHEDULER, RequestAssigned("r", order.epoch, "w", "w")),
            (MeshRole.WORKER, TokenBatch("w", (*deltas, lost))),
        ):
            await self._bus.publish(subjects.inbox_from(sender, "gateway-0", order.stream.incarnation), encode(message))

    async def is_too_large(self, order: SubmitRequest) -> None:
        """The scheduler rejects what it had accepted."""
        rejected = RequestRejected("r", order.epoch, RejectCode.BOUND_TOO_LARGE, "no worker holds so much")
        subject = subjects.inbox_from(MeshRole.SCHEDULER, "gateway-0", order.stream.incarnation)
        await self._bus.publish(subject, encode(rejected))


@asynccontextmanager
async def shrinking(model_dir: Path, spec: SequenceSpec) -> AsyncIterator[Shrinking]:
    mesh = OneGateway(model_dir)
    mesh.store.may_write.set()
    async with mesh.generation() as generation:
        world = Shrinking(mesh, generation, spec)
        yield world
        if world.client is not None:
            world.client.cancel()
            await asyncio.gather(world.client, return_exceptions=True)


async def test_the_next_attempt_has_what_is_there_then(model_dir: Path) -> None:
    """1,600 tokens of cache at first, then 160: five are committed, and the rest may follow."""
    async with shrinking(model_dir, OPEN) as world:
        await world.hears(LARGE, SMALL)
        first = await world.begin()
        assert (first.prompt_tokens, first.max_new_tokens) == (3, 1597)
        await world.hears(replace(LARGE, state=MemberState.DRAINING))
        await world.is_lost(first, 5)
        second = await world.submitted(2)
        assert (second.prompt_tokens, second.max_new_tokens) == (8, 152)
        record = await world.mesh.store.get_record("r")
        assert record is not None
        assert record.stop.max_new_tokens == 5 + 152


async def test_it_may_be_more_again(model_dir: Path) -> None:
    """A small worker stood in at first."""
    async with shrinking(model_dir, OPEN) as world:
        await world.hears(SMALL)
        first = await world.begin()
        assert first.max_new_tokens == 157
        await world.hears(LARGE)
        await world.is_lost(first, 5)
        assert (await world.submitted(2)).max_new_tokens == 1592


async def test_workers_that_take_no_requests_do_not_count(model_dir: Path) -> None:
    """A large one that drains, or has not loaded, would only have the scheduler reject the request."""
    async with shrinking(model_dir, OPEN) as world:
        await world.hears(replace(LARGE, state=MemberState.DRAINING), SMALL)
        assert (await world.begin()).max_new_tokens == 157


async def test_one_that_came_before_any_worker_is_sized_once_one_is_there(model_dir: Path) -> None:
    """Its first attempt waits with all of the context, until the scheduler knows better."""
    async with shrinking(model_dir, OPEN) as world:
        first = await world.begin()
        assert (first.max_new_tokens, first.open_bound) == (8189, True)
        await world.hears(SMALL)
        await world.is_too_large(first)
        second = await world.submitted(2)
        assert (second.max_new_tokens, second.open_bound) == (157, True)
        assert world.client is not None and not world.client.done()


async def test_what_the_client_asked_for_stays(model_dir: Path) -> None:
    """A bound of the client's is left to the scheduler, where it waits; so is a prompt that no worker holds now."""
    async with shrinking(model_dir, replace(OPEN, unbounded=False)) as world:
        await world.hears(SMALL)
        order = await world.begin()
        assert (order.max_new_tokens, order.open_bound) == (8189, False)
    async with shrinking(model_dir, OPEN) as world:
        await world.hears(worker_member("w3", Pool.MIXED, blocks=0), worker_member("w4", Pool.MIXED, blocks=1))
        first = await world.begin()
        await world.is_lost(first, 13)
        assert (await world.submitted(2)).max_new_tokens == 8176
