"""Tests of a worker whose KV is swapped to host memory and back while it serves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.policies import queues_for
from spotwise.mesh.process.watchdog import Watchdog
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.kv_transfers import KvSwaps
from spotwise.worker.worker_engine import WorkerEngine
from tests.contracts.waiting import until
from tests.unit.worker.summing_engine import BLOCKS, expected_tokens
from tests.unit.worker.twin_mesh import TwinMesh, TwinWorker

COST = LinearIterationCost(1e-3, 1e-4, 0.0, 1e-5, 0.0)
PROMPTS = {number: tuple(range(number, number + 6 + 3 * number)) for number in range(1, 13)}
NEW = 25


def swapping(when_full: WhenFull) -> WorkerPolicy:
    return WorkerPolicy(
        BatchLimits(max_num_seqs=3),
        scheduling=Scheduling.MLFQ,
        mlfq=queues_for(COST),
        cost=COST,
        swap=SwapPolicy(when_full),
    )


def test_the_result_of_a_move_is_reported_and_free_blocks_are_news() -> None:
    """The role gets the result first; a copy out is news of free memory, a copy in or a failed one is not."""
    ends: list[Any] = []
    engine = SimpleNamespace(
        swap_out=lambda there, here, ended: ends.append((there, here, ended)),
        swap_in=lambda there, here, ended: ends.append((there, here, ended)),
    )
    events: list[Any] = []
    watch = EngineWatch(Watchdog(None), "w", 60.0)
    swaps = KvSwaps(cast(WorkerEngine, engine), watch, events.append, lambda: events.append("room"))
    swaps.swap_out(c.SwapOut("a@1", (1, 2), (7, 8)))
    swaps.swap_in(c.SwapIn("b@1", (9,), (3,)))
    swaps.swap_out(c.SwapOut("d@1", (4,), (6,)))
    assert [end[:2] for end in ends] == [((1, 2), (7, 8)), ((9,), (3,)), ((4,), (6,))]
    ends[0][2](None)
    ends[1][2](None)
    ends[2][2](OSError("no more"))
    assert events == [c.Swapped("a@1"), "room", c.Swapped("b@1"), c.SwapFailed("d@1", "OSError: no more")]


async def serve_all(mesh: TwinMesh, worker: TwinWorker) -> None:
    """All requests at once, which the worker's blocks do not hold; each gets its own tokens, and nothing stays."""
    for number, prompt in PROMPTS.items():
        await mesh.assign("w", "w", f"r{number}", prompt, NEW, attempt_id=number)
    for number, prompt in PROMPTS.items():
        assert await mesh.tokens(number) == expected_tokens(prompt, NEW)
    await worker.idle()


@pytest.mark.parametrize("when_full", [WhenFull.REACTIVE, WhenFull.PROACTIVE])
async def test_tokens_are_the_same_from_kv_that_was_away(mesh: TwinMesh, when_full: WhenFull) -> None:
    """A token depends on all the KV before it; moves have a thread of their own."""
    mesh.policy, mesh.host_blocks = swapping(when_full), 200
    async with mesh.worker("w") as worker:
        await serve_all(mesh, worker)
    assert min(worker.swap.moves) > BLOCKS
    assert all(name.startswith("kv-swaps") for name in worker.swap.thread_names)


async def test_a_move_that_fails_costs_no_token(mesh: TwinMesh) -> None:
    """Out: its KV stays where it was. In: it is computed again. Either is in the ledger."""
    mesh.policy, mesh.host_blocks = swapping(WhenFull.REACTIVE), 200
    async with mesh.worker("w") as worker:
        worker.swap.failures += [OSError("a bad page")] * 6
        await serve_all(mesh, worker)
        reported: list[m.LedgerEntry] = []
        while len(reported) < 6:  # written with the next heartbeats
            ledgers = [await mesh.store.get_ledger(f"r{number}") for number in PROMPTS]
            reported = [entry for ledger in ledgers for entry in ledger if entry.stage == "swap_failed"]
            await asyncio.sleep(0.005)
    assert {dict(entry.facts)["reason"] for entry in reported} == {"OSError: a bad page"}


async def test_a_request_that_is_cancelled_while_its_kv_is_away_leaves_nothing(mesh: TwinMesh) -> None:
    mesh.policy, mesh.host_blocks = swapping(WhenFull.REACTIVE), 200
    async with mesh.worker("w") as worker:
        for number, prompt in PROMPTS.items():
            await mesh.assign("w", "w", f"r{number}", prompt, 90, attempt_id=number)
        await until(lambda: worker.swap.moves[0] > 20)
        for number in PROMPTS:
            await mesh.order("w", m.CancelRequest(f"r{number}", 1))
        await worker.idle()
        await until(lambda: worker.runtime.role.load().kv_host_blocks_free == 200)
