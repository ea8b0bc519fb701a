"""A process of simulated workers that computes some things wrong: `python -m tests.live.failing_worker`.

What goes wrong is in the first token of a prompt, and comes with the batch that the prompt is in. After SIGUSR1 nothing is
computed any more, whatever the batch; after SIGUSR2 the next batch never ends, and after SIGRTMIN the next message is never
handled to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotwise.cli.launch.mesh_processes import joining_worker
from spotwise.cli.launch.worker_cores import LocalHost
from spotwise.core.costs.batching import Batch
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.core.worker.commands import WorkerEvent
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.run import run_service
from spotwise.worker.runtime import WorkerRuntime
from spotwise.worker.simulated import serving
from spotwise.worker.simulated.engine import SimulatedEngine
from spotwise.worker.simulated.settings import SimulatedWorkerSettings
from tests.live.mesh import LiveMesh

#: Prompts that begin with it fail every batch that they are in.
FAILS = 1001
#: Prompts that begin with it end the process.
KILLS = 1002
#: Prompts that begin with it make the iteration that they are in never end.
HANGS = 1003
#: Prompts that begin with it fail every second batch that they are in.
FALTERS = 1004

_broken = _hangs = _deaf = False


class FailingEngine(SimulatedEngine):
    """A simulated engine that knows what it must not compute."""

    async def add_sequence(self, record: RequestRecord, prepared: None = None) -> None:
        """Learn a sequence, and how its prompt begins."""
        await super().add_sequence(record)
        self._firsts = {**getattr(self, "_firsts", {}), record.sequence_id: record.prompt_token_ids[0]}

    def _sample(self, batch: Batch) -> tuple[SampledToken, ...]:
        firsts = {self._firsts[row.sequence_id] for row in batch.rows}
        if KILLS in firsts:
            os._exit(9)
        if _hangs or HANGS in firsts:
            raise StuckIterationError
        if _broken or FAILS in firsts:
            raise ValueError("this batch cannot be computed")
        if FALTERS in firsts:
            self._falters = not getattr(self, "_falters", False)
            if self._falters:
                raise ValueError("this batch can be computed at the second try")
        return super()._sample(batch)

    def _end(self, work: Any) -> None:
        with contextlib.suppress(StuckIterationError):
            super()._end(work)


class StuckIterationError(Exception):
    """Ends the engine's turn without a result; the event loop goes on."""


class DeafRuntime(WorkerRuntime):
    """A worker that stops in the middle of a message."""

    async def _on_message(self, message: WorkerEvent, raw: BusMessage) -> None:
        if _deaf:
            await asyncio.Event().wait()
        await super()._on_message(message, raw)


def start_failing_worker(
    mesh: LiveMesh, worker_id: str, pool: str = "mixed", env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Let such a process join a mesh of simulated workers, as `spotwise join` would; `env` adds settings."""
    state = mesh.state
    plan = joining_worker(state.options, *state.worker_urls(), pool, worker_id, LocalHost.this())
    with (mesh.home / f"{worker_id}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.live.failing_worker"],
            env={**mesh.env, **plan.env, **(env or {})},
            cwd=Path(__file__).parents[2],
            stderr=log,
            stdout=log,
        )


def _break(_signal: int, _frame: object) -> None:
    global _broken
    _broken = True


def _hang(_signal: int, _frame: object) -> None:
    global _hangs
    _hangs = True


def _deafen(_signal: int, _frame: object) -> None:
    global _deaf
    _deaf = True


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _break)
    signal.signal(signal.SIGUSR2, _hang)
    signal.signal(signal.SIGRTMIN, _deafen)
    serving.WorkerRuntime = DeafRuntime  # type: ignore[misc, attr-defined]
    serving.SimulatedEngine = FailingEngine  # type: ignore[misc, attr-defined]
    sys.exit(run_service(SimulatedWorkerSettings, serving.serve_simulated))
