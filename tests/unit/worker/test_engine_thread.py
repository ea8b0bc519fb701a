"""The engine's one thread: calls run in order, and failures are reported."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.kv.host_swap import HostSwap
from spotwise.engine.model.loading import EngineConfig
from spotwise.mesh.process.watchdog import Watchdog
from spotwise.worker.compute_threads import ComputeThreads
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.engine_watch import EngineWatch
from tests.contracts.waiting import until
from tests.unit.worker.summing_engine import ByteHost, SummingEngine, next_token

RECORD = RequestRecord("r", 1, "gateway", 1, "sums", (1, 2), (), SamplingParams(), StopCriteria(9), 0.0)
BATCH = Batch((BatchRow("r@1", 0, 3, (0,)),))


@pytest.fixture
def engine() -> SummingEngine:
    return SummingEngine()


@pytest.fixture
async def thread(engine: SummingEngine) -> AsyncIterator[EngineThread]:
    thread = EngineThread(cast(Engine, engine))
    yield thread
    engine.gate.set()
    thread.close()


async def test_its_watch_sees_iterations_begin_and_end(engine: SummingEngine) -> None:
    looked_s = 0.0

    def now() -> float:
        return looked_s

    watchdog = Watchdog(1.0, lambda status: None, now)
    thread = EngineThread(cast(Engine, engine), watch=EngineWatch(watchdog, "w", 1.0))

    def stuck(seconds: float) -> list[str]:
        nonlocal looked_s
        found = list[str]()
        for _ in range(round(seconds)):
            looked_s += 1.0
            found += [part.name for part in watchdog.look()]
        return found

    try:
        outcome = Outcome()
        engine.gate.clear()
        outcome.run(thread)
        assert stuck(9.0) == []
        assert "w: engine" in stuck(3.0)
        engine.gate.set()
        await until(lambda: bool(outcome.finished or outcome.failed))
        assert stuck(30.0) == []
    finally:
        engine.gate.set()
        thread.close()


class Outcome:
    """The result of an iteration, as the event loop received it."""

    def __init__(self) -> None:
        self.finished: list[tuple[SampledToken, ...]] = []
        self.failed: list[Exception] = []

    def run(self, thread: EngineThread) -> None:
        loop = asyncio.get_running_loop()

        def finished(sampled: tuple[SampledToken, ...]) -> None:
            assert asyncio.get_running_loop() is loop
            self.finished.append(sampled)

        def failed(error: Exception) -> None:
            assert asyncio.get_running_loop() is loop
            self.failed.append(error)

        thread.run_iteration(BATCH, finished, failed)


async def test_calls_run_in_order_on_one_thread_beside_the_loop(thread: EngineThread, engine: SummingEngine) -> None:
    """An iteration sees a token appended before it, and does not miss a sequence dropped after it; the loop continues."""
    outcome = Outcome()
    engine.gate.clear()
    await thread.add_sequence(RECORD)
    thread.append_token("r@1", 3)
    outcome.run(thread)
    thread.drop_sequence("r@1")
    await asyncio.sleep(0.01)
    assert outcome.finished == []
    engine.gate.set()
    await until(lambda: engine.num_sequences == 0 and outcome.finished)
    assert outcome.finished == [(SampledToken("r@1", next_token([1, 2, 3])),)]
    assert len(engine.thread_names) == 1
    assert all(name.startswith("engine") for name in engine.thread_names)


async def test_what_an_iteration_raises_is_reported_and_the_next_one_runs(
    thread: EngineThread, engine: SummingEngine
) -> None:
    outcome = Outcome()
    engine.failures.append(RuntimeError("out of memory"))
    await thread.add_sequence(RECORD)
    thread.append_token("r@1", 3)
    with capture_logs() as logs:
        outcome.run(thread)
        outcome.run(thread)
        await until(lambda: outcome.finished)
    assert [str(error) for error in outcome.failed] == ["out of memory"]
    assert [(each["event"], each["rows"]) for each in logs] == [("iteration_failed", 1)]


async def test_a_sequence_that_the_engine_refuses_is_the_callers_to_handle(thread: EngineThread) -> None:
    with pytest.raises(ValueError, match="outside"):
        await thread.add_sequence(
            RequestRecord("r", 1, "g", 1, "m", (255,), (), SamplingParams(), StopCriteria(9), 0.0)
        )


async def test_a_call_that_fails_is_logged(thread: EngineThread, engine: SummingEngine) -> None:
    with capture_logs() as logs:
        thread.append_token("unknown@1", 3)
        await thread.add_sequence(RECORD)
    assert [(each["event"], each["call"]) for each in logs] == [("engine_call_failed", "append_token")]
    assert engine.num_sequences == 1


async def test_close_waits_for_what_runs_and_forgets_the_rest(thread: EngineThread, engine: SummingEngine) -> None:
    outcome, forgotten = Outcome(), Outcome()
    engine.gate.clear()
    await thread.add_sequence(RECORD)
    thread.append_token("r@1", 3)
    outcome.run(thread)
    forgotten.run(thread)
    await until(engine.at_work.is_set)
    closing = asyncio.create_task(asyncio.to_thread(thread.close))
    await asyncio.sleep(0.01)
    engine.gate.set()
    await closing
    await until(lambda: outcome.finished)
    assert not [*forgotten.finished, *forgotten.failed]
    assert engine.batch_sizes == [1]


async def test_moves_of_kv_run_beside_an_iteration_and_in_order(engine: SummingEngine) -> None:
    host = ByteHost(engine.kv, 6)
    thread = EngineThread(cast(Engine, engine), host=cast(HostSwap, host))
    assert thread.host_blocks == 6
    ended: list[Exception | None] = []
    outcome = Outcome()
    engine.kv.cells[:, 3] = 7
    engine.gate.clear()
    await thread.add_sequence(RECORD)
    thread.append_token("r@1", 3)
    outcome.run(thread)
    await until(engine.at_work.is_set)
    thread.swap_out((3, 4), (5, 0), ended.append)
    thread.swap_in((5,), (9,), ended.append)
    await until(lambda: len(ended) == 2)
    assert (engine.kv.cells[:, 9] == 7).all()
    assert outcome.finished == []
    host.failures.append(RuntimeError("no room"))
    with capture_logs() as logs:
        thread.swap_out((1,), (1,), ended.append)
        thread.swap_out((2,), (2,), ended.append)
        await until(lambda: len(ended) == 4)
    assert [None if error is None else str(error) for error in ended] == [None, None, "no room", None]
    assert [(each["event"], each["blocks"]) for each in logs] == [("kv_swap_failed", 1)]
    assert all(name.startswith("kv-swaps") for name in host.thread_names)
    engine.gate.set()
    thread.close()
    await until(lambda: outcome.finished)


@pytest.mark.parametrize("more", [0, 3])
async def test_what_computes_steps_back_and_the_loop_does_not(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Niceness is the engine thread's, from before the engine is loaded, and added to what the worker was started with."""
    seen: list[int] = []

    def load(config: EngineConfig) -> SummingEngine:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return SummingEngine()

    monkeypatch.setattr(Engine, "load", load)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = await EngineThread.load(EngineConfig(Path("/no/model")), ComputeThreads(niceness=more))
    thread.close()
    assert seen == [min(19, before + more)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


async def test_an_engine_that_cannot_be_loaded_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(config: EngineConfig) -> SummingEngine:
        raise ValueError("no such device")

    monkeypatch.setattr(Engine, "load", load)
    with pytest.raises(ValueError, match="no such device"):
        await EngineThread.load(EngineConfig(Path("/no/model")))
    await until(lambda: not any(thread.name.startswith("engine") for thread in threading.enumerate()))
