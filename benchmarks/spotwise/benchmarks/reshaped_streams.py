"""Streams of a mesh that takes another shape under them: re-shaped, or stopped and started anew."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields

from spotwise.benchmarks.moved_streams import (
    Stream,
    all_begun,
    completed_ledger,
    computed_again,
    moves_of,
    run_stream,
    send_anew,
)
from spotwise.cli.bench.servers import MeshEndpoint, running_mesh
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.running import running_state
from spotwise.core.messages.reshape import PredictedReshape, ReshapeMesh, ReshapeReply
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode

_REPLY_S = 10.0
_OVER_S = 180.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Reshaped:
    """One re-shape under streams.

    Attributes:
        pair: the shapes before and after, like `1x1 > 2x3`.
        gaps_s: the longest time without a token, of each stream; `usual_gap_s`: the median between tokens before.
        pauses_s: pause of each move, by the ledger.
        seconds: seconds of the whole re-shape, and `forming_s` of it until the new groups served.
        kv_bytes: moved, and `predicted_kv_bytes`.
        moved_bytes: weights that devices got, `unplanned_bytes` from others than planned, `read_bytes` from their folder.
        predicted_bytes, restart_bytes: what they had to get, and what a restart of all groups reads, both by the plan.
        predicted_s, predicted_forming_s: the planner's, of a request's pause and until the new groups serve.
        given_back, recomputed: requests, and their tokens that were computed again.
        wrong: tokens that differ from those of an undisturbed run, lost and doubled ones among them.
    """

    pair: str
    gaps_s: tuple[float, ...]
    usual_gap_s: float
    pauses_s: tuple[float, ...]
    seconds: float
    forming_s: float
    kv_bytes: int
    predicted_kv_bytes: int
    moved_bytes: int
    unplanned_bytes: int
    read_bytes: int
    predicted_bytes: int
    restart_bytes: int
    predicted_s: float
    predicted_forming_s: float
    given_back: int
    recomputed: int
    wrong: int

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


async def reshaped(
    endpoint: MeshEndpoint, pair: str, config: ParallelConfig, prompts: Sequence[list[int]], expected: list[list[int]]
) -> Reshaped:
    """Re-shape the mesh once all streams have begun.

    Raises:
        CommandError: it is refused or abandoned, or a stream fails.
    """
    streams = [Stream(prompt) for prompt in prompts]
    tokens = len(expected[0])
    async with GatewayClient(endpoint.url) as client:
        tasks = [asyncio.create_task(run_stream(client, endpoint.model, stream, tokens)) for stream in streams]
        await all_begun(streams, tasks)
        store = await RedisStore.connect(endpoint.redis_url)
        try:
            ordered_s = time.perf_counter()
            change, prediction = await order_reshape(running_state(endpoint.name).nats_url, config)
            deployment = await until_reshaped(store, change, config)
            await asyncio.gather(*tasks)
            ledgers = [await completed_ledger(store, stream.request_id) for stream in streams]
        finally:
            await store.close()
    moves = [facts for ledger in ledgers for facts in moves_of(ledger)]
    usual = sorted(stream.usual_gap_s(ordered_s) for stream in streams)
    return Reshaped(
        pair,
        tuple(stream.longest_gap_s(ordered_s) for stream in streams),
        usual[len(usual) // 2],
        tuple(facts["pause_s"] for facts in moves),
        (deployment.ended_s or deployment.began_s) - deployment.began_s,
        (deployment.served_s or deployment.began_s) - deployment.began_s,
        sum(facts["kv_bytes"] for facts in moves),
        prediction.kv_bytes,
        deployment.fetched_bytes + deployment.read_bytes,
        deployment.unplanned_bytes,
        deployment.read_bytes,
        prediction.moved_bytes,
        prediction.kept_bytes + prediction.moved_bytes,
        prediction.pause_s,
        prediction.forming_s,
        deployment.given_back,
        sum(map(computed_again, ledgers)),
        sum(differences(stream.token_ids, want) for stream, want in zip(streams, expected, strict=True)),
    )


async def order_reshape(
    nats_url: str, config: ParallelConfig, *, dry_run: bool = False
) -> tuple[int, PredictedReshape]:
    """Order a re-shape; return its number, 0 of a dry run, and what the planner expects of it; raises `CommandError` where it
    is refused.
    """
    bus = await NatsBus.connect(nats_url, "spotwise-bench-reshape")
    try:
        reply = decode(await bus.request(subjects.RESHAPE, encode(ReshapeMesh(config, dry_run)), _REPLY_S))
    finally:
        await bus.close()
    if not isinstance(reply, ReshapeReply) or not reply.accepted or reply.prediction is None:
        raise CommandError(f"the re-shape was refused: {reply.detail if isinstance(reply, ReshapeReply) else reply}")
    return reply.change, reply.prediction


async def until_reshaped(store: RedisStore, change: int, config: ParallelConfig) -> PlannedDeployment:
    """Wait for the end of a re-shape; raises `CommandError` where it is abandoned, or takes too long."""
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < _OVER_S:
        plan = await store.get_plan()
        deployment = None if plan is None else plan.deployment
        if deployment is not None and deployment.change == change:
            if deployment.stage is ReshapeStage.ABANDONED:
                raise CommandError(f"the re-shape to {config} was abandoned: {deployment.reason}")
            if deployment.stage is ReshapeStage.DONE:
                return deployment
        await asyncio.sleep(_POLL_S)
    raise CommandError(f"the re-shape to {config} has not ended after {_OVER_S:g} s")


async def restarted(
    before: Sequence[str], after: Sequence[str], prompts: Sequence[list[int]], tokens: int
) -> tuple[float, ...]:
    """Stop a mesh under its streams and start another one; clients send their requests anew. Return the longest gap of each
    stream that was cut off, in seconds; raises `CommandError` where none was.

    Args:
        tokens: tokens of each stream. A mesh that stops lets streams end for some seconds.
    """
    streams = [Stream(prompt) for prompt in prompts]
    async with contextlib.AsyncExitStack() as clients:
        async with _mesh(before) as endpoint:
            client = await clients.enter_async_context(GatewayClient(endpoint.url))
            tasks = [asyncio.create_task(run_stream(client, endpoint.model, stream, tokens)) for stream in streams]
            await all_begun(streams, tasks)
            stopped_s = time.perf_counter()
        await asyncio.gather(*tasks, return_exceptions=True)  # cut off
    cut_off = [stream for stream in streams if len(stream.token_ids) < tokens]
    if not cut_off:
        raise CommandError("all streams ended before the mesh had stopped; give them more --tokens")
    async with _mesh(after) as endpoint, GatewayClient(endpoint.url) as client:
        await asyncio.gather(*(send_anew(client, endpoint.model, stream, tokens) for stream in cut_off))
    return tuple(stream.longest_gap_s(stopped_s) for stream in cut_off)


@contextlib.asynccontextmanager
async def _mesh(arguments: Sequence[str]) -> AsyncIterator[MeshEndpoint]:
    mesh = running_mesh(arguments)
    endpoint = await asyncio.to_thread(mesh.__enter__)
    try:
        yield endpoint
    finally:
        await asyncio.to_thread(mesh.__exit__, None, None, None)


def differences(got: Sequence[int], want: Sequence[int]) -> int:
    """Return how many tokens are wrong, lost or doubled."""
    return abs(len(got) - len(want)) + sum(a != b for a, b in zip(got, want, strict=False))
