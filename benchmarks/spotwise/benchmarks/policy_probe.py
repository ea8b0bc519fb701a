"""Whether a mesh batches as it was told: a setting that nobody reads would make two equal lines of a comparison.

Law: judged by the order of events alone, never by how long something took. With iteration-level batches a short request that
comes late overtakes the long ones that run (Orca, section 3); with request-level batches it must wait for one of them to end.
"""

from __future__ import annotations

import asyncio
import random

from spotwise.cli.bench.completion import ask, http_errors_as_command_errors, open_client, random_prompt
from spotwise.cli.bench.servers import MeshEndpoint, ServerEndpoint
from spotwise.cli.errors import CommandError
from spotwise.cli.status import gather_status
from spotwise.core.members import Pool

ITERATION_LEVEL = "iteration_level"
REQUEST_LEVEL = "request_level"
POLICY_VARIABLE = "SPOTWISE_BATCHING"
#: What goes with either policy: blocks for all that a request may ever have, as Orca reserves them (section 4.1). One that
#: waits outside a request-level batch must keep its blocks, and the two lines are to differ in one thing.
COMMON_SETTINGS = {"SPOTWISE_RESERVE": "max_tokens"}

_PROMPT_TOKENS = 16
_LONG_TOKENS = 128
_SHORT_TOKENS = 4
#: Chunks of a long request after which its token phase runs: the first comes from the prompt phase.
_RUNNING_CHUNKS = 4


async def require_policy(mesh: MeshEndpoint, policy: str) -> None:
    """Check that a mesh batches by this policy.

    Raises:
        CommandError: it does not.
    """
    pools = [status.member.pool for status in await gather_status(mesh.redis_url)]
    token_workers = sum(pool in (Pool.TOKEN, Pool.MIXED) for pool in pools)
    overtook = await short_overtakes_long(mesh, max(1, token_workers))
    if overtook != (policy == ITERATION_LEVEL):
        did = "overtook the long ones that ran" if overtook else "waited for a long one that ran"
        raise CommandError(f"{POLICY_VARIABLE}={policy} has no effect on this mesh: a short request {did}")


async def short_overtakes_long(endpoint: ServerEndpoint, workers: int) -> bool:
    """Start a long request for each worker, a short one when they run; whether the short one ends before each of the long ones.

    Raises:
        CommandError: the server does not answer, or answers with an error.
    """
    rng = random.Random("policy")
    running = 0
    all_run = asyncio.Event()

    with http_errors_as_command_errors(endpoint.url):
        async with open_client(endpoint.url) as client, asyncio.TaskGroup() as tasks:

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
                answer = await ask(client, endpoint.model, prompt, _LONG_TOKENS, arrived)
                return answer.arrivals_s[-1]

            async def short() -> float:
                await all_run.wait()
                answer = await ask(client, endpoint.model, random_prompt(rng, _PROMPT_TOKENS), _SHORT_TOKENS)
                return answer.arrivals_s[-1]

            long_ends = [tasks.create_task(long()) for _ in range(workers)]
            short_end = tasks.create_task(short())
    return short_end.result() < min(task.result() for task in long_ends)
