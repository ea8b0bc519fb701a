"""One case: streams, something that happens while they run, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAIError

from spotwise.cli.launch.supervision.run_state import ServiceState
from spotwise.mesh.redis.store import RedisStore
from tests.faults.report import CaseResult
from tests.live.answers import Answer, ask
from tests.live.mesh import LiveMesh, wait_for
from tests.live.oracle import greedy
from tests.live.request_kinds import bodies

#: Long enough that those that end by their length decode on when a re-shape has ended.
NEW_TOKENS = 240
BODIES = bodies(NEW_TOKENS, whole=1)
#: Longer than a process takes to start, and a group to form, twice over, on a busy machine.
WHOLE_AGAIN_S = 150.0

#: Happens while streams run; gets a connection to the store.
Disturbance = Callable[[RedisStore], Awaitable[None]]
Answers = Mapping[str, Answer]


@dataclass
class Run:
    """What clients got in one run: their answers, and what failed."""

    answers: dict[str, Answer] = field(default_factory=lambda: {name: Answer() for name in BODIES})
    errors: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)


def greedy_tokens() -> tuple[int, ...]:
    """What transformers gives for the greedy request; computed once."""
    return greedy(tuple(BODIES["greedy"]["prompt"]), NEW_TOKENS)


def undisturbed_answers(mesh: LiveMesh) -> Answers:
    """What the requests give where nothing happens; the greedy one as transformers has it."""
    run = asyncio.run(run_requests(mesh))
    assert not run.errors
    assert tuple(run.answers["greedy"].token_ids[0]) == greedy_tokens()
    return run.answers


async def run_requests(mesh: LiveMesh, disturbance: Disturbance | None = None) -> Run:
    """Run the requests side by side, and let something happen once all that are streamed decode; without that all are."""
    run = Run()

    async def one(client: Any, name: str, body: dict[str, Any]) -> None:
        try:
            await ask(client, body, run.answers[name])
        except OpenAIError as error:
            run.errors.append(f"{name}, {run.answers[name].request_id}: {error!r}")

    sent = bodies(NEW_TOKENS) if disturbance is None else BODIES
    async with mesh.async_client() as client:
        asking = [asyncio.create_task(one(client, name, body)) for name, body in sent.items()]
        try:
            if disturbance is not None:
                await asyncio.gather(*(each.has_begun.wait() for each in run.answers.values()))
                store = await RedisStore.connect(mesh.state.redis_url)
                try:
                    await disturbance(store)
                finally:
                    await store.close()
            await asyncio.gather(*asking)
        finally:
            for each in asking:
                each.cancel()
    return run


def result_of(case: str, victims: str, mesh: LiveMesh, run: Run, expected: Answers) -> CaseResult:
    """Compare what clients got with what they have to get."""
    lost = doubled = wrong = 0
    for name, due in expected.items():
        got = run.answers[name].token_ids
        for choice, tokens in due.token_ids.items():
            mine = got.get(choice, [])
            lost += max(0, len(tokens) - len(mine))
            doubled += max(0, len(mine) - len(tokens))
            wrong += sum(one != other for one, other in zip(mine, tokens, strict=False))
    attempts = [] if run.errors else attempts_of(mesh, run)
    deployment = mesh.planned()
    return CaseResult(
        case,
        victims,
        "" if deployment is None else deployment.stage.value,
        len(run.answers),
        sum(answer.tokens for answer in run.answers.values()),
        lost,
        doubled,
        wrong,
        round(1000 * max(answer.longest_gap_s for answer in run.answers.values())),
        sum(attempts) - len(attempts),
        round(time.monotonic() - run.began_s),
    )


def attempts_of(mesh: LiveMesh, run: Run) -> list[int]:
    """How many attempts each request took."""
    return [mesh.ledger(each.request_id, "completed")["completed"]["attempts"] for each in run.answers.values()]


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
