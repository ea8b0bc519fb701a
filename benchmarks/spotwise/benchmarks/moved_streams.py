"""Streams of a mesh from which a token worker is taken away: what each client sees."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from spotwise.cli.bench.completion import completion_body
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.drain import send_notice
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.running import running_state
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.mesh.redis.store import RedisStore

Way = Literal["move", "recompute", "restart"]
WAYS: tuple[Way, ...] = get_args(Way)
#: From the notice to the deadline, seconds.
NOTICE_S = {"move": 4.0, "recompute": 0.0}
#: The worker leaves once each stream has so many tokens.
_BEGUN = 16
_LEDGER_S = 10.0


@dataclass(slots=True)
class Stream:
    """One client's stream, over all its requests.

    Attributes:
        arrivals: when each chunk came, and how many tokens there were then.
        request_id: id of the first request.
        repeated: tokens of prompt and output that a request sent anew had computed again.
        seed: seed of a simulated answer; `None`: any.
    """

    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    request_id: str = ""
    repeated: int = 0
    seed: int | None = None

    def longest_gap_s(self, since_s: float, until_s: float = math.inf) -> float:
        """Return the longest time without a new token, from the last one before `since_s` to the first one after `until_s`."""
        news = [
            at_s
            for (at_s, tokens), (_, before) in zip(self.arrivals[1:], self.arrivals, strict=False)
            if tokens > before
        ]
        times = [self.arrivals[0][0], *news]
        gaps = (later - at_s for at_s, later in itertools.pairwise(times) if later > since_s and at_s <= until_s)
        return max(gaps, default=0.0)

    def usual_gap_s(self, before_s: float) -> float:
        """Return the median time between tokens before a time."""
        times = [at_s for at_s, _ in self.arrivals if at_s <= before_s]
        return statistics.median([later - at_s for at_s, later in itertools.pairwise(times)] or [0.0])


@dataclass(frozen=True, slots=True)
class Interrupted:
    """What one stream's client saw; `moved` are the facts of the ledger's last move, `None` without one."""

    way: Way
    prompt_tokens: int
    gap_s: float
    usual_gap_s: float
    recomputed_tokens: int
    moved: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class WayResult:
    """The interrupted streams of one mesh, and the tokens of all its streams."""

    interrupted: list[Interrupted]
    token_ids: list[tuple[int, ...]]


async def run_way(
    endpoint: MeshEndpoint, way: Way, leaving: str, prompts: Sequence[list[int]], tokens: int
) -> WayResult:
    """Run the streams, take `leaving` away, and return what came of it; raises `CommandError` where a stream failed."""
    streams = [Stream(prompt) for prompt in prompts]
    async with GatewayClient(endpoint.url) as client:
        tasks = [asyncio.create_task(run_stream(client, endpoint.model, stream, tokens)) for stream in streams]
        await all_begun(streams, tasks)
        store = await RedisStore.connect(endpoint.redis_url)
        try:
            holders = [_holder(await store.get_ledger(stream.request_id)) for stream in streams]
            left_s = time.perf_counter()
            if way == "restart":
                for index, stream in enumerate(streams):
                    if holders[index] == leaving:
                        tasks[index].cancel()
                        tasks[index] = asyncio.create_task(send_anew(client, endpoint.model, stream, tokens))
            else:
                await send_notice(running_state(endpoint.name).nats_url, leaving, NOTICE_S[way])
            await asyncio.gather(*tasks)
            hit = [stream for stream, holder in zip(streams, holders, strict=True) if holder == leaving]
            interrupted = [await _interrupted(store, way, stream, left_s) for stream in hit]
        finally:
            await store.close()
    return WayResult(interrupted, [tuple(stream.token_ids) for stream in streams])


async def all_begun(streams: Sequence[Stream], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until each stream has some tokens; raises `CommandError` where one ends before."""
    while not all(len(stream.token_ids) >= _BEGUN for stream in streams):
        if failed := [task for task in tasks if task.done()]:
            await asyncio.gather(*failed)
            raise CommandError("a stream ended before all had begun; give it more --tokens")
        await asyncio.sleep(0.02)


async def run_stream(client: GatewayClient, model: str, stream: Stream, tokens: int, known: int = 0) -> None:
    """Stream a request to its end; its first `known` tokens are known already."""
    body = completion_body(model, stream.prompt, tokens, stream=True) | {"return_token_ids": True}
    if stream.seed is not None:
        body |= {"seed": stream.seed}
    count = 0
    async with client.events("/v1/completions", body) as events:
        async for event in events:
            stream.request_id = stream.request_id or event["id"]
            for choice in event["choices"]:
                ids = choice.get("token_ids") or []
                new = ids[max(0, known - count) :]
                count += len(ids)
                stream.token_ids += new
                if new:
                    stream.arrivals.append((time.perf_counter(), len(stream.token_ids)))
    if count != tokens:
        raise CommandError(f"a stream brought {count} tokens where {tokens} were requested")


async def send_anew(client: GatewayClient, model: str, stream: Stream, tokens: int) -> None:
    """Send a stream's request once more, as its client has to where the server has forgotten it."""
    known = len(stream.token_ids)
    stream.repeated = len(stream.prompt) + known
    await run_stream(client, model, stream, tokens, known)


def _holder(ledger: Sequence[LedgerEntry]) -> str:
    """Return the worker that decodes a request."""
    received = [entry.member_id for entry in ledger if entry.stage == "kv_received"]
    assigned = [str(dict(entry.facts)["token_worker"]) for entry in ledger if entry.stage == "assigned"]
    return next(iter(received[-1:] or assigned[-1:]), "")


async def completed_ledger(store: RedisStore, request_id: str) -> list[LedgerEntry]:
    """Return a request's ledger once it says that the request has ended, or as it is after a while."""
    ledger: list[LedgerEntry] = []
    ends_s = time.monotonic() + _LEDGER_S
    while time.monotonic() < ends_s:
        ledger = await store.get_ledger(request_id)
        if any(entry.stage == "completed" for entry in ledger):
            break
        await asyncio.sleep(0.1)
    return ledger


def computed_again(ledger: Sequence[LedgerEntry]) -> int:
    """Return the tokens, of prompt and output, that later attempts of a request computed again."""
    prefills = [dict(entry.facts) for entry in ledger if entry.stage == "prefilled" and entry.epoch > 1]
    return sum(int(facts["prompt_tokens"]) - int(facts["cached_tokens"]) for facts in prefills)


def moves_of(ledger: Sequence[LedgerEntry]) -> list[dict[str, Any]]:
    """Return the facts of a request's moves."""
    return [dict(entry.facts) for entry in ledger if entry.stage == "moved"]


async def _interrupted(store: RedisStore, way: Way, stream: Stream, left_s: float) -> Interrupted:
    ledger = await completed_ledger(store, stream.request_id)
    moves = moves_of(ledger)
    return Interrupted(
        way,
        len(stream.prompt),
        stream.longest_gap_s(left_s),
        stream.usual_gap_s(left_s),
        stream.repeated + computed_again(ledger),
        moves[-1] if moves else None,
    )
