"""Probes a mesh's batching policy: an ignored setting would make two equal lines of a comparison.

Judged by the order of events alone, never by durations. With iteration-level batches a late short request overtakes long
running ones (Orca, section 3); with request-level batches it must wait for one of them to end.
"""

from __future__ import annotations

import asyncio
import random

from spotwise.cli.bench.completion import random_prompt, stream_completion
from spotwise.cli.bench.load import run_together
from spotwise.cli.bench.servers import MeshEndpoint, ServerEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.status_table import gather_status
from spotwise.core.messages.members import Pool

ITERATION_LEVEL = "iteration_level"
REQUEST_LEVEL = "request_level"
POLICY_VARIABLE = "SPOTWISE_BATCHING"
#: Settings of either policy: blocks for a request's maximum length, as Orca reserves them (section 4.1). A request that
#: waits outside a request-level batch must keep its blocks, and the two lines are to differ in one thing.
COMMON_SETTINGS = {"SPOTWISE_RESERVE": "max_tokens"}

_PROMPT_TOKENS = 16
_LONG_TOKENS = 128
_SHORT_TOKENS = 4
#: Chunks of a long request after which its token phase runs: the first comes from the prompt phase.
_RUNNING_CHUNKS = 4


async def require_policy(mesh: MeshEndpoint, policy: str) -> None:
    """Check that a mesh batches by this policy; raises `CommandError` where it does not."""
    pools = [status.member.pool for status in await gather_status(mesh.redis_url)]
    token_workers = sum(pool in (Pool.TOKEN, Pool.MIXED) for pool in pools)
    overtook = await short_overtakes_long(mesh, max(1, token_workers))
    if overtook != (policy == ITERATION_LEVEL):
        did = "overtook the long ones that ran" if overtook else "waited for a long one that ran"
        raise CommandError(f"{POLICY_VARIABLE}={policy} has no effect on this mesh: a short request {did}")


async def short_overtakes_long(endpoint: ServerEndpoint, workers: int) -> bool:
    """Start a long request on each worker, then a short one; return whether the short one ends before every long one.

    Raises:
        CommandError: the server does not answer, or answers with an error.
    """
    rng = random.Random("policy")
    running = 0
    all_run = asyncio.Event()

    async with GatewayClient(endpoint.url) as client:

        async def long() -> float:
            chunks = 0

            def arrived() -> None:
                nonlocal chunks, running
                chunks += 1
                if chunks == _RUNNING_CHUNKS:
                    running += 1
                    if running == workers:
                        all_run.set()

            prompt = random_prompt(rng, _PROMPT_TOKENS)
            answer = await stream_completion(client, endpoint.model, prompt, _LONG_TOKENS, arrived)
            return answer.arrivals_s[-1]

        async def short() -> float:
            await all_run.wait()
            answer = await stream_completion(client, endpoint.model, random_prompt(rng, _PROMPT_TOKENS), _SHORT_TOKENS)
            return answer.arrivals_s[-1]

        *long_ends, short_end = await run_together([*(long() for _ in range(workers)), short()])
    return short_end < min(long_ends)
