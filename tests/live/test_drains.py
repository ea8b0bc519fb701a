"""Workers leave by order while planner, store, source or target fail: every stream gets its tokens, and no client an error.

The workers are simulated, so that a token follows from its request's seed, and everything else is real.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spotwise.core.messages.mesh import LedgerEntry
from spotwise.core.planner.plan import Plan
from spotwise.mesh.redis.store import RedisStore
from tests.live.mesh import UNHURRIED, wait_for
from tests.live.simulated_mesh import SeededStream, SimulatedMesh

pytestmark = pytest.mark.paired

#: Tokens of a stream, about 12 ms each.
TOKENS = 700
STREAMS = range(6)
DEADLINE_S = 4.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """One prompt worker, and token workers enough for all the drains of this module: none comes back."""
    options = ("--prompt-workers", "1", "--token-workers", "14", "--speed", "3")
    with SimulatedMesh(tmp_path_factory.mktemp("drains"), *options, env=UNHURRIED) as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: SimulatedMesh) -> list[list[int]]:
    """The tokens that belong to each seed."""
    return [stream.tokens for stream in mesh.streams(STREAMS, TOKENS)]


def entries(mesh: SimulatedMesh, request_id: str) -> list[LedgerEntry]:
    """A request's whole ledger, once it has ended."""
    mesh.ledger(request_id, "completed")
    return mesh.ledger_entries(request_id)


def holder(mesh: SimulatedMesh) -> str:
    """The token worker with most of the running sequences."""
    loads = {each.member.id: each.member_now.load for each in mesh.members() if each.member.id.startswith("token-")}
    return max(sorted(loads), key=lambda worker_id: getattr(loads[worker_id], "running", 0))


def stored_plan(mesh: SimulatedMesh) -> Plan | None:
    """The planner's plan."""

    async def read() -> Plan | None:
        store = await RedisStore.connect(mesh.state.redis_url)
        try:
            return await store.get_plan()
        finally:
            await store.close()

    return asyncio.run(read())


def wait_for_plan(mesh: SimulatedMesh, leaving: str, after_term: int = 0) -> int:
    """Wait for a plan of a later term, by which a worker leaves; its term."""
    plan: Plan | None = None

    def made() -> bool:
        nonlocal plan
        plan = stored_plan(mesh)
        return plan is not None and plan.term > after_term and leaving in {each.worker_id for each in plan.leaves}

    wait_for(made, lambda: f"a plan for {leaving} after term {after_term}: {plan}")
    assert plan is not None
    return plan.term


class Drained:
    """Streams that ran while something happened: what the workers did for them."""

    def __init__(
        self, mesh: SimulatedMesh, undisturbed: list[list[int]], disturb: Callable[[], Any], tokens: int = TOKENS
    ) -> None:
        self._mesh = mesh
        self.streams: list[SeededStream] = mesh.streams(STREAMS, tokens, after_tokens=20, disturb=disturb)
        assert [stream.tokens[:TOKENS] for stream in self.streams] == undisturbed
        assert {len(stream.tokens) for stream in self.streams} == {tokens}
        self.ledgers = [entries(mesh, stream.request_id) for stream in self.streams]
        mesh.wait_until_idle()

    def moves_from(self, worker_id: str) -> int:
        """Requests that moved away from a worker."""
        return sum(entry.stage == "moved" and entry.member_id == worker_id for each in self.ledgers for entry in each)

    @property
    def attempts(self) -> list[int]:
        """Attempts of each request."""
        return [dict(ledger[-1].facts)["attempts"] for ledger in self.ledgers]  # type: ignore[misc]

    @property
    def losses(self) -> list[str]:
        """The attempts that were lost, and why."""
        return self._mesh.losses(self.streams)

    @property
    def prefills(self) -> list[int]:
        """How often each request's prompt was computed, or computed again."""
        return [sum(entry.stage == "prefilled" for entry in ledger) for ledger in self.ledgers]


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Let processes stand still for the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def joined(mesh: SimulatedMesh, worker_id: str) -> Iterator[int]:
    """One more token worker, in a process of its own; its pid."""
    command = [sys.executable, "-m", "spotwise.cli", "join", "token", "--id", worker_id]
    with subprocess.Popen(command, env=mesh.env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:

            def pids() -> list[int]:
                return [each.member.pid for each in mesh.members() if each.member.id == worker_id and each.serving]

            wait_for(lambda: bool(pids()), lambda: f"{worker_id} to join")
            yield pids()[0]
        finally:
            process.kill()


def test_what_a_drained_worker_has_moves_and_nothing_is_computed_again(
    mesh: SimulatedMesh, undisturbed: list[list[int]]
) -> None:
    """Two workers at once, in one attempt of each request; the ledger has bytes and pre-copied tokens."""
    workers: list[str] = []

    def drain() -> None:
        workers.extend(each.member.id for each in mesh.members() if getattr(each.member_now.load, "running", 0))
        for worker_id in workers[:2]:
            mesh.drain(worker_id, DEADLINE_S)

    drained = Drained(mesh, undisturbed, drain)
    assert drained.losses == []
    assert set(drained.prefills) == {1}
    assert all(drained.moves_from(worker_id) >= 1 for worker_id in workers[:2])
    facts = [dict(entry.facts) for ledger in drained.ledgers for entry in ledger if entry.stage == "moved"]
    for fact in facts:
        assert fact["kv_bytes"] > 0  # type: ignore[operator]
        assert 0 < fact["copied_before"] <= fact["tokens"]  # type: ignore[operator]
        assert fact["token_worker"] not in workers[:2]
    gone = set(workers[:2])
    wait_for(lambda: not gone & {each.member.id for each in mesh.members()}, lambda: f"{gone} to leave", 2 * DEADLINE_S)


def test_a_planner_that_is_killed_in_the_midst_moves_them_after_its_restart(
    mesh: SimulatedMesh, undisturbed: list[list[int]]
) -> None:
    """Its successor has a higher term, and learns from heartbeats who leaves."""
    worker_id = ""

    def disturb() -> None:
        nonlocal worker_id
        worker_id = holder(mesh)
        mesh.drain(worker_id, 60.0)
        term = wait_for_plan(mesh, worker_id)
        os.kill(mesh.pid("planner-0"), signal.SIGKILL)
        wait_for_plan(mesh, worker_id, after_term=term)
        mesh.drain(worker_id, DEADLINE_S)  # within the streams, however long a planner takes to start here

    drained = Drained(mesh, undisturbed, disturb, tokens=3 * TOKENS)
    assert drained.losses == []
    assert drained.moves_from(worker_id) >= 1


def test_without_a_planner_requests_are_given_back_at_the_deadline(
    mesh: SimulatedMesh, undisturbed: list[list[int]]
) -> None:
    """As before there was one; when it goes on afterwards, it disturbs nothing."""
    worker_id = ""

    def disturb() -> None:
        nonlocal worker_id
        worker_id = holder(mesh)
        with stopped(mesh.pid("planner-0")):
            mesh.drain(worker_id, 1.5)
            there = {worker_id}
            wait_for(lambda: not there & {each.member.id for each in mesh.members()}, lambda: f"{there} to leave")

    drained = Drained(mesh, undisturbed, disturb)
    assert drained.moves_from(worker_id) == 0
    assert 2 in drained.attempts


def test_a_deadline_that_comes_sooner_and_a_store_that_stands_still(
    mesh: SimulatedMesh, undisturbed: list[list[int]]
) -> None:
    """The requests are arranged anew, and move before the earlier deadline, once the store answers again."""
    worker_id = ""

    def disturb() -> None:
        nonlocal worker_id
        worker_id = holder(mesh)
        mesh.drain(worker_id, 60.0)
        with stopped(mesh.pid("redis-server")):
            time.sleep(2.0)
        mesh.drain(worker_id, DEADLINE_S)

    drained = Drained(mesh, undisturbed, disturb)
    assert drained.losses == []
    assert drained.moves_from(worker_id) >= 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("who", ["source", "target"])
def test_a_source_or_target_that_fails_in_the_midst_costs_no_token(
    mesh: SimulatedMesh, undisturbed: list[list[int]], who: str, how: signal.Signals
) -> None:
    """The target is a worker that has just joined, the one with the least to do; the source one that has got the streams."""
    with joined(mesh, f"{who}-{how.name.lower()}") as pid:
        worker_id = f"{who}-{how.name.lower()}"
        hit_s = 0.0

        def disturb() -> None:
            nonlocal hit_s
            source = worker_id if who == "source" else holder(mesh)
            mesh.drain(source, DEADLINE_S)

            def chosen() -> bool:
                plan = stored_plan(mesh)
                return plan is not None and any(each.target_id for leave in plan.leaves for each in leave.requests)

            wait_for(chosen, lambda: "a target to be chosen")
            os.kill(pid, how)
            hit_s = time.monotonic()

        drained = Drained(mesh, undisturbed, disturb)
        assert hit_s > 0.0
        assert max(drained.attempts) <= 3
        if how is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
