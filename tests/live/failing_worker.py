"""A process of simulated workers that computes some things wrong: `python -m tests.live.failing_worker`.

What goes wrong is in the first token of a prompt, and comes with the batch that the prompt is in. After SIGUSR1 nothing is
computed any more, whatever the batch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from spotwise.cli.launch.plan import plan_joining_worker
from spotwise.cli.launch.worker_plan import LocalHost
from spotwise.core.batching import Batch
from spotwise.core.record import RequestRecord
from spotwise.core.sampling import SampledToken
from spotwise.mesh.run_service import run_service
from spotwise.worker.simulated import serve
from spotwise.worker.simulated.engine import SimulatedEngine
from spotwise.worker.simulated.settings import SimulatedWorkerSettings
from tests.live.mesh import LiveMesh

#: Prompts that begin with it fail every batch that they are in.
FAILS = 1001
#: Prompts that begin with it end the process.
KILLS = 1002

_broken = False


class FailingEngine(SimulatedEngine):
    """A simulated engine that knows what it must not compute."""

    async def add_sequence(self, record: RequestRecord) -> None:
        """Learn a sequence, and how its prompt begins."""
        await super().add_sequence(record)
        self._firsts = {**getattr(self, "_firsts", {}), record.sequence_id: record.prompt_token_ids[0]}

    def _sample(self, batch: Batch) -> tuple[SampledToken, ...]:
        firsts = {self._firsts[row.sequence_id] for row in batch.rows}
        if KILLS in firsts:
            os._exit(9)
        if _broken or FAILS in firsts:
            raise ValueError("this batch cannot be computed")
        return super()._sample(batch)


def start_failing_worker(mesh: LiveMesh, worker_id: str, pool: str = "mixed") -> subprocess.Popen[bytes]:
    """Let such a process join a mesh of simulated workers, as `spotwise join` would."""
    state = mesh.state
    plan = plan_joining_worker(state.options, *state.worker_urls(), pool, worker_id, LocalHost.this())
    with (mesh.home / f"{worker_id}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.live.failing_worker"],
            env={**mesh.env, **plan.env},
            cwd=Path(__file__).parents[2],
            stderr=log,
            stdout=log,
        )


def _break(_signal: int, _frame: object) -> None:
    global _broken
    _broken = True


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _break)
    serve.SimulatedEngine = FailingEngine  # type: ignore[misc, attr-defined]
    sys.exit(run_service(SimulatedWorkerSettings, serve.serve_simulated))
