"""`make soak ARGS="--hostile"`: a tenant sends what costs a gateway most; the streams of others neither fail nor wait.

Its key has limits, as a tenant's has; what it costs within them is everybody's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from tests.faults.fault_mesh import FaultMesh
from tests.faults.memory_growth import MemoryGrowth
from tests.faults.request_matrix import MatrixRow, as_table, row_of, sum_of
from tests.faults.seeded_load import LoadShape, SeededLoad

_LIMITS = ("--requests-per-minute", "600", "--tokens-per-minute", "20000")
#: Others' load alone, first: what a machine's gaps are by themselves.
_CALM_S = 45.0
_MEASURE_EVERY_S = 10.0
_SAY_EVERY_S = 60.0
#: The longest wait for a token that an attack may cause, unless the machine's own are longer.
_BEARABLE_S = 0.5


class HostileSoak:
    """Others' load on one mesh, calm at first, then beside a hostile tenant."""

    def __init__(self, mesh: FaultMesh, seconds: float, seed: int, console: Console) -> None:
        self.memory = MemoryGrowth()
        self.said: Counter[str] = Counter()
        self._mesh = mesh
        self._seconds = seconds
        self._seed = seed
        self._console = console
        self._words = mesh.words()
        self._hostile_key, others_key = (self._key("hostile", *_LIMITS), self._key("others"))
        shape = LoadShape(requests_per_s=0.8, prompt_tokens=(50, 200))
        self._load = SeededLoad(lambda: mesh.urls, shape, seed, {"Authorization": f"Bearer {others_key}"})

    def _key(self, name: str, *limits: str) -> str:
        made = self._mesh.command("keys", "create", name, *limits, "--json")
        return str(json.loads(made.stdout)["key"])

    async def run(self) -> tuple[MatrixRow, MatrixRow]:
        """Return what others got in the calm, and beside the hostile tenant."""
        loading = asyncio.create_task(self._load.run())
        try:
            await asyncio.sleep(_CALM_S)
            calm = self._row("calm")
            tenant = self._tenant()
            try:
                beside = await self._beside(loading)
            finally:
                said, _ = await asyncio.to_thread(tenant.communicate)
                self.said.update(json.loads(said or "{}"))
            self._load.stop()
            await loading
            return calm, self._row("beside a hostile tenant", beside)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    def _tenant(self) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "tests.faults.hostile_tenant",
            self._hostile_key,
            str(self._seed),
            *self._mesh.urls,
        ]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def _beside(self, loading: asyncio.Task[None]) -> list[MatrixRow]:
        rows: list[MatrixRow] = []
        ends_s = time.monotonic() + self._seconds
        said_s = time.monotonic()
        while time.monotonic() < ends_s and not loading.done():
            await asyncio.sleep(min(_MEASURE_EVERY_S, max(0.0, ends_s - time.monotonic())))
            for service_id, service in self._mesh.state.services.items():
                if service.process is not None:
                    self.memory.measure(service_id, service.process.pid, time.monotonic())
            rows.append(self._row("beside"))
            if time.monotonic() - said_s >= _SAY_EVERY_S:
                said_s = time.monotonic()
                self._console.print(f"{time.strftime('%X')} {_so_far(rows)}")
        return rows

    def _row(self, name: str, before: Sequence[MatrixRow] = ()) -> MatrixRow:
        ended = row_of(name, "", Counter(), self._load.take_ended(), self._words, 0)
        return sum_of((*before, ended), name)


def _so_far(rows: Sequence[MatrixRow]) -> str:
    sums = sum_of(rows, "")
    return f"{sums.requests} requests, {sums.errors} errors, {sums.refused} refused, longest wait {sums.pause_s:.2f} s"


def hostile_soak(mesh: FaultMesh, seconds: float, seed: int, console: Console) -> list[str]:
    """Run it; return what was wrong."""
    soak = HostileSoak(mesh, seconds, seed, console)
    calm, beside = asyncio.run(soak.run())
    mesh.wait_until_whole()
    console.print(as_table([calm, beside]))
    for what, count in sorted(soak.said.items()):
        console.print(f"{count:6} {what}")
    console.print("\n".join(soak.memory.lines()))
    longest_s = max(_BEARABLE_S, 2 * calm.pause_s)
    wrong = {
        "others did not get their tokens": not beside.is_clean,
        "others were refused": beside.refused > 0 or beside.broken > 0,
        f"others waited {beside.pause_s:.2f} s for a token, {longest_s:.2f} may be": beside.pause_s > longest_s,
        "the hostile tenant got an answer that it should not": soak.said["unexpected"] > 0,
        "nothing was sent": soak.said.total() == 0,
        f"memory grew: {', '.join(soak.memory.leaks())}": bool(soak.memory.leaks()),
    }
    return [what for what, is_wrong in wrong.items() if is_wrong]
