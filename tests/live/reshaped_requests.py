"""Requests in flight while a mesh takes another shape, and what has to hold of each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.benchmarks.groups import Shape
from spotwise.benchmarks.moved_streams import computed_again
from spotwise.benchmarks.reshaped_streams import order_reshape, until_reshaped
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.plan import PlannedDeployment
from spotwise.mesh.redis.store import RedisStore
from tests.live.answers import Answer, Bodies, ask, ask_all, assert_same_beginning
from tests.live.mesh import LiveMesh, wait_for

#: A prompt that was sent is with its worker after so long.
SENT_S = 0.3
#: Once the new groups serve, every request has its order to move within so long.
ORDERED_S = 3.0
_LEDGER_S = 10.0
#: Entries of a ledger that say that tokens are, or may have been, computed again.
_AGAIN = {"given_back", "preempted", "attempt_lost", "failed"}


@dataclass(frozen=True)
class Reshaped:
    """A change of shape, and the requests that were in flight; those of `decoding` had begun."""

    deployment: PlannedDeployment
    decoding: frozenset[str]
    answers: dict[str, Answer]
    ledgers: dict[str, list[LedgerEntry]]

    @property
    def moves(self) -> int:
        """Of all choices."""
        return sum(entry.stage == "moved" for ledger in self.ledgers.values() for entry in ledger)

    @property
    def lasted_s(self) -> float:
        """Seconds from the order to the end of the old groups."""
        assert self.deployment.ended_s is not None
        return self.deployment.ended_s - self.deployment.began_s

    def prompts_in_flight(self) -> int:
        """The prompts that were still computed when the re-shape began."""
        began_s = self.deployment.began_s
        return sum(
            any(entry.stage == "prefilled" and entry.at_s > began_s for entry in ledger)
            for ledger in self.ledgers.values()
        )


def undisturbed(mesh: LiveMesh, model: str, bodies: Bodies) -> dict[str, Answer]:
    """What the requests give side by side where nothing happens."""

    async def run() -> dict[str, Answer]:
        async with mesh.async_client() as client:
            return await ask_all(client, bodies, model=model)

    return asyncio.run(run())


def reshaped(
    mesh: LiveMesh, model: str, config: ParallelConfig, decoding: Bodies, prompts: Bodies | None = None
) -> Reshaped:
    """Re-shape the mesh while the ones decode and the prompts of the others are computed; return when all have ended."""
    return asyncio.run(_reshaped(mesh, model, config, decoding, prompts or {}))


async def _reshaped(mesh: LiveMesh, model: str, config: ParallelConfig, decoding: Bodies, prompts: Bodies) -> Reshaped:
    answers = {name: Answer() for name in (*decoding, *prompts)}
    store = await RedisStore.connect(mesh.state.redis_url)
    try:
        async with mesh.async_client() as client, asyncio.TaskGroup() as streams:
            for name, body in decoding.items():
                streams.create_task(ask(client, body, answers[name], model))
            for name in decoding:
                await answers[name].has_begun.wait()
            for name, body in prompts.items():
                streams.create_task(ask(client, body, answers[name], model))
            if prompts:
                await asyncio.sleep(SENT_S)
            change, _ = await order_reshape(mesh.state.nats_url, config)
            deployment = await until_reshaped(store, change, config)
        ledgers = {name: await _ledger(store, answer) for name, answer in answers.items()}
    finally:
        await store.close()
    return Reshaped(deployment, frozenset(decoding), answers, ledgers)


async def _ledger(store: RedisStore, answer: Answer) -> list[LedgerEntry]:
    """A request's entries once each choice has its last one."""
    ledger: list[LedgerEntry] = []
    ends_s = time.monotonic() + _LEDGER_S
    while time.monotonic() < ends_s:
        ledger = await store.get_ledger(answer.request_id)
        if sum(entry.stage == "completed" for entry in ledger) >= len(answer.token_ids):
            break
        await asyncio.sleep(0.1)
    return ledger


def assert_undisturbed(done: Reshaped, bodies: Bodies, expected: Mapping[str, Answer]) -> None:
    """Each choice has what it has in an undisturbed run, of which no fewer, in one attempt, moved where it outlasted the old
    groups, with nothing computed again.
    """
    deployment = done.deployment
    assert deployment.served_s is not None and deployment.ended_s is not None
    past_s = min(deployment.ended_s, deployment.served_s + ORDERED_S)
    for name, answer in done.answers.items():
        body, want, ledger = bodies[name], expected[name], done.ledgers[name]
        assert_same_beginning(answer, want, body["max_tokens"], name)
        attempts = [dict(entry.facts)["attempts"] for entry in ledger if entry.stage == "completed"]
        assert attempts == [1] * len(answer.token_ids), name
        assert not [entry for entry in ledger if entry.stage in _AGAIN], name
        assert computed_again(ledger) == 0, name
        if name in done.decoding:
            moved = {entry.choice_id for entry in ledger if entry.stage == "moved"}
            past = sum(last_s > past_s for last_s in answer.last_s.values())
            if not answer.last_s:  # a whole answer
                past = int(answer.ended_s > past_s)
            assert len(moved) >= past, (name, past, ledger)
    assert deployment.given_back == 0
    assert done.moves, "no request lasted until the new groups served; give them more tokens"


def serving_shapes(mesh: LiveMesh) -> list[Shape]:
    """P and M of each group that serves."""
    return sorted(mesh.shapes().values())


def wait_for_shape(mesh: LiveMesh, config: ParallelConfig) -> None:
    """Until the groups of a configuration serve, and no others."""
    wanted = [(config.pipeline, config.tensor)] * config.pipelines
    wait_for(lambda: serving_shapes(mesh) == wanted, lambda: f"{config}, not {serving_shapes(mesh)}")
