"""Prompts and decodes of many sizes on a mesh, one size at a time, with the ledgers of their requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotwise.cli.bench.completion import random_prompt, run_completion
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.access import open_store, operator_access
from spotwise.cli.mesh.status_table import gather_status
from spotwise.core.messages.members import Member
from spotwise.mesh.grpc.control import IterationTime, RecentIterations, recent_iterations
from spotwise.mesh.redis.store import RedisStore

_POLL_S = 0.1

#: Facts by stage.
Ledger = dict[str, dict[str, Any]]


async def whole_ledger(
    store: RedisStore, request_id: str, is_whole: Callable[[Ledger], bool], patience_s: float
) -> Ledger:
    """Return a request's ledger once it is whole, or its part after `patience_s`; raises `MeshError` without the store."""
    clock = asyncio.get_running_loop().time
    ends_s = clock() + patience_s
    while True:
        ledger = {entry.stage: dict(entry.facts) for entry in await store.get_ledger(request_id)}
        if is_whole(ledger) or clock() > ends_s:
            return ledger
        await asyncio.sleep(_POLL_S)


#: A ledger is written with the next heartbeat; this is many of them.
_LEDGER_WAIT_S = 5.0
#: From a request's arrival at the gateway to its first token there: submission, reservation and answer, order, token.
_SPLIT_MESSAGES = 5
#: Nothing is reserved where both phases are on one worker.
_IN_PLACE_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class RequestWave:
    """Concurrent requests of one size; at least two output tokens, so that a hand-off pays."""

    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Measurements:
    """The workers' reports.

    Attributes:
        transfers: (bytes, seconds) of each hand-off, from the end of its prompt's computation.
        messages_s: seconds of each request that ran alone, from its prompt's iterations to its first token, by message.
        kv_tokens: KV capacity of the smallest worker.
    """

    iterations: list[IterationTime] = field(default_factory=list)
    transfers: list[tuple[int, float]] = field(default_factory=list)
    messages_s: list[float] = field(default_factory=list)
    kv_bytes_per_token: int = 0
    kv_tokens: int = 0

    def __add__(self, later: Measurements) -> Measurements:
        """Join two measurements of the same mesh."""
        return Measurements(
            self.iterations + later.iterations,
            self.transfers + later.transfers,
            self.messages_s + later.messages_s,
            self.kv_bytes_per_token,
            self.kv_tokens,
        )


def profile_steps(longest_prompt: int, widest: int, repeats: int) -> list[RequestWave]:
    """Prompts alone, doubling in length; then decodes, doubling in number, over short and over long contexts."""
    lengths = _doubling(16, longest_prompt)
    prompts = [RequestWave(1, length, 2) for length in lengths for _ in range(repeats)]
    contexts = sorted({min(32, longest_prompt), max(32, longest_prompt // 4), max(32, longest_prompt // 2)})
    decodes = [RequestWave(width, context, 16) for width in _doubling(1, widest) for context in contexts]
    return prompts + decodes


async def measure_costs(
    endpoint: MeshEndpoint, steps: Sequence[RequestWave], seed: int, done: Callable[[], Any]
) -> Measurements:
    """Run all steps, one after the other; requests before them do not count.

    Raises:
        CommandError: gateway, store or a worker do not answer, the gateway answers with an error, or an answer is too short.
    """
    rng = random.Random(seed)
    found = Measurements()
    workers = await _workers(endpoint, found)
    async with GatewayClient(endpoint.url) as client, open_store(endpoint.redis_url) as store:
        # The first request of all pays for connections and one-time computation.
        await run_completion(client, endpoint.model, random_prompt(rng, 16), 4)
        seen = {worker.id: (await _recent(worker)).last for worker in workers}
        for step in steps:
            prompts = [random_prompt(rng, step.prompt_tokens) for _ in range(step.requests)]
            completions = (run_completion(client, endpoint.model, prompt, step.output_tokens) for prompt in prompts)
            request_ids = await asyncio.gather(*completions)
            ledgers = [await whole_ledger(store, each, _is_whole, _LEDGER_WAIT_S) for each in request_ids]
            times: list[IterationTime] = []
            for worker in workers:
                recent = await _recent(worker, seen[worker.id])
                seen[worker.id] = recent.last
                times += recent.times
            found.iterations += times
            for ledger in ledgers:
                _note_transfer(ledger, found)
            if step.requests == 1:
                _note_messages(ledgers[0], times, found)
            done()
    return found


async def _workers(endpoint: MeshEndpoint, found: Measurements) -> list[Member]:
    statuses = await gather_status(endpoint.redis_url)
    engines = [status.engine for status in statuses if status.engine is not None]
    if not engines:
        raise CommandError("no worker of the mesh answers; `spotwise status` shows the members")
    found.kv_bytes_per_token = engines[0].kv_bytes_per_token
    loads = [engine.member.load for engine in engines]
    found.kv_tokens = min(load.kv_blocks_total * load.kv_block_size for load in loads if load is not None)
    return [engine.member for engine in engines]


async def _recent(worker: Member, after: int = 0) -> RecentIterations:
    return await recent_iterations(worker.grpc_address, worker.id, after, access=operator_access())


def _is_whole(ledger: Ledger) -> bool:
    has_ended = "completed" in ledger and "decoded" in ledger
    return has_ended and ("handed_off" in ledger or "kv_received" not in ledger)


def _note_transfer(ledger: Ledger, found: Measurements) -> None:
    handed_off = ledger.get("handed_off")
    if handed_off is not None:
        found.transfers.append((int(handed_off["kv_bytes"]), float(handed_off["visible_s"])))


def _note_messages(ledger: Ledger, times: Sequence[IterationTime], found: Measurements) -> None:
    """Note the time of a lone request's first token, less computation."""
    ttft_s = ledger.get("completed", {}).get("ttft_s")
    if ttft_s is not None:
        prompt_s = sum(time.seconds for time in times if time.shape.prompt_tokens)
        messages = _SPLIT_MESSAGES if "handed_off" in ledger else _IN_PLACE_MESSAGES
        found.messages_s.append(max(0.0, float(ttft_s) - prompt_s) / messages)


def _doubling(first: int, last: int) -> list[int]:
    values = [min(first, last)]
    while values[-1] < last:
        values.append(min(2 * values[-1], last))
    return values
