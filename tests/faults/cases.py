"""One case: streams, something that happens while they run, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAIError

from spotwise.cli.launch.run_state import ServiceState
from spotwise.mesh.redis_store import RedisStore
from tests.faults.report import CaseResult
from tests.live.mesh import LiveMesh, wait_for
from tests.live.oracle import mixed_prompts
from tests.live.streamed import Streamed, bodies, stream

#: Long enough that all streams decode on when a re-shape has ended.
NEW_TOKENS = 240
PROMPTS = mixed_prompts(4, 200)
BODIES = bodies(PROMPTS, NEW_TOKENS)
#: Longer than a process takes to start, and a group to form, twice over, on a busy machine.
WHOLE_AGAIN_S = 150.0

#: Happens while streams run; gets a connection to the store.
Disturbance = Callable[[RedisStore], Awaitable[None]]
Tokens = list[dict[int, list[int]]]


@dataclass
class Run:
    """What clients got in one run: their streams, and what failed."""

    answers: list[Streamed] = field(default_factory=lambda: [Streamed() for _ in BODIES])
    errors: list[str] = field(default_factory=list)
    running_after: int = 0  #: streams that had not ended when the disturbance had
    began_s: float = field(default_factory=time.monotonic)

    @property
    def tokens(self) -> Tokens:
        """Of each request, by choice."""
        return [answer.token_ids for answer in self.answers]


async def run_streams(mesh: LiveMesh, disturbance: Disturbance | None = None) -> Run:
    """Run the streams side by side, and let something happen once all of them decode."""
    run = Run()

    async def one(client: Any, body: dict[str, Any], into: Streamed) -> None:
        try:
            await stream(client, body, into)
        except OpenAIError as error:
            run.errors.append(f"{into.request_id}: {error!r}")
        finally:
            into.has_begun.set()

    async with mesh.async_client() as client:
        streams = [asyncio.create_task(one(client, body, into)) for body, into in zip(BODIES, run.answers, strict=True)]
        try:
            if disturbance is not None:
                await asyncio.gather(*(each.has_begun.wait() for each in run.answers))
                store = await RedisStore.connect(mesh.state.redis_url)
                try:
                    await disturbance(store)
                finally:
                    await store.close()
                run.running_after = sum(not each.done() for each in streams)
            await asyncio.gather(*streams)
        finally:
            for each in streams:
                each.cancel()
    return run


def result_of(case: str, victims: str, mesh: LiveMesh, run: Run, expected: Tokens) -> CaseResult:
    """Compare what clients got with what they have to get."""
    lost = doubled = wrong = 0
    for got, due in zip(run.tokens, expected, strict=True):
        for choice, tokens in due.items():
            mine = got.get(choice, [])
            lost += max(0, len(tokens) - len(mine))
            doubled += max(0, len(mine) - len(tokens))
            wrong += sum(one != other for one, other in zip(mine, tokens, strict=False))
    attempts = [attempts_of(mesh, answer) for answer in run.answers if not run.errors]
    deployment = mesh.planned()
    return CaseResult(
        case,
        victims,
        "" if deployment is None else deployment.stage.value,
        len(run.answers),
        sum(len(tokens) for answer in run.answers for tokens in answer.token_ids.values()),
        lost,
        doubled,
        wrong,
        round(1000 * max(answer.longest_gap_s for answer in run.answers)),
        sum(attempts) - len(attempts),
        round(time.monotonic() - run.began_s),
    )


def attempts_of(mesh: LiveMesh, answer: Streamed) -> int:
    """How many attempts a request took."""
    attempts: int = mesh.ledger(answer.request_id, "completed")["completed"]["attempts"]
    return attempts


def settled(mesh: LiveMesh) -> None:
    """Wait until the last change is over, all processes run, the groups of the deployment serve, and nothing is held."""
    wait_for(lambda: _is_over(mesh), lambda: f"the end of {mesh.planned()}", WHOLE_AGAIN_S)
    wait_for(lambda: not _unhealthy(mesh), lambda: f"{_unhealthy(mesh)} to be healthy", WHOLE_AGAIN_S)
    wait_for(lambda: mesh.shapes() == _groups(mesh), lambda: f"{mesh.planned()}, not {mesh.shapes()}", WHOLE_AGAIN_S)
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: mesh.command("status").stderr, WHOLE_AGAIN_S)
    mesh.wait_until_idle()
    assert _is_over(mesh) and mesh.shapes() == _groups(mesh)


def _is_over(mesh: LiveMesh) -> bool:
    deployment = mesh.planned()
    return deployment is None or deployment.stage.is_over


def _groups(mesh: LiveMesh) -> dict[str, tuple[int, int]]:
    deployment = mesh.planned()
    assert deployment is not None
    return {group.worker_id: (group.stages, group.shards) for group in deployment.groups}


def _unhealthy(mesh: LiveMesh) -> list[str]:
    running = (ServiceState.HEALTHY, ServiceState.LEFT)
    return [service_id for service_id, service in mesh.state.services.items() if service.state not in running]
