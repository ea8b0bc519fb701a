"""`make soak`: a load for hours, faults drawn from a seed that is printed, and the same zeros as in the tests of single faults.

Its store writes an append-only file, as the shipped one does: it may die together with a gateway. Ends with status 1 where a
token was lost, doubled or wrong, an accepted request failed, a member keeps anything of a request, or the memory of a process
grew.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.faults.bad_links import why_impossible
from tests.faults.disturbances import DISTURBANCES, Disturbance
from tests.faults.fault_mesh import FaultMesh
from tests.faults.hostile_soak import hostile_soak
from tests.faults.memory_growth import MemoryGrowth
from tests.faults.request_matrix import MatrixRow, as_table, row_of, sum_of
from tests.faults.seeded_load import LoadShape, SeededLoad

_PAUSE_S = (5.0, 20.0)  #: between two faults
_TWO_VICTIMS = 0.15  #: share of faults that strike two processes
_MEASURE_EVERY_S = 10.0
_SAY_EVERY_S = 300.0  #: how it goes, where no terminal shows a progress bar
_REMEMBERED = 5  #: faults that a wrong answer is reported with


class Soak:
    """A load and faults on one mesh, for some seconds."""

    def __init__(self, mesh: FaultMesh, seconds: float, seed: int) -> None:
        self.memory = MemoryGrowth()
        self.faults: Counter[str] = Counter()
        self._mesh = mesh
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._load = SeededLoad(lambda: mesh.urls, LoadShape(), seed)
        self._words = mesh.words()
        self._sums = row_of("faults", "", Counter(), [], self._words, 0)
        self._last: deque[str] = deque(maxlen=_REMEMBERED)
        can_be_bad = why_impossible() is None
        self._disturbances = [each for each in DISTURBANCES if can_be_bad or not each.needs_bad_links]

    async def run(self, console: Console) -> MatrixRow:
        """Disturb the mesh until the time is over; return what all clients got once the last request has ended."""
        loading = asyncio.create_task(self._load.run())
        measuring = asyncio.create_task(self._measure())
        try:
            with _progress(console) as progress:
                shown = progress.add_task("faults", total=self._seconds)
                began_s = time.monotonic()
                said_s = began_s
                while (passed_s := time.monotonic() - began_s) < self._seconds and not loading.done():
                    progress.update(shown, completed=passed_s, description=self._so_far())
                    if not console.is_terminal and time.monotonic() - said_s >= _SAY_EVERY_S:
                        said_s = time.monotonic()
                        console.print(f"{time.strftime('%X')} {self._so_far()}")
                    await asyncio.sleep(min(self._rng.uniform(*_PAUSE_S), self._seconds - passed_s))
                    await self._disturb()
                    self._fold(console)
            self._load.stop()
            await loading
            self._fold(console)
        finally:
            for task in (measuring, loading):
                task.cancel()
            await asyncio.gather(measuring, loading, return_exceptions=True)
        return self._sums

    async def _disturb(self) -> None:
        services = self._mesh.state.services
        victims = self._rng.sample(sorted(services), 2 if self._rng.random() < _TWO_VICTIMS else 1)
        disturbance = self._rng.choice(self._disturbances)
        if disturbance.drains_workers and not self._mesh.WORKERS.isdisjoint(victims):
            return
        processes = [services[victim].process for victim in victims]
        self.faults[disturbance.name] += 1
        self._last.append(f"{time.strftime('%X')} {disturbance.name}: {' and '.join(victims)}")
        await asyncio.to_thread(_apply, disturbance, [each.pid for each in processes if each is not None])

    def _fold(self, console: Console) -> None:
        """Add what has ended to the sums; of an answer that is not right, say what came before it."""
        ended = self._load.take_ended()
        for answer in ended:
            row = row_of("", "", Counter(), [answer], self._words, 0)
            if not row.is_clean:
                console.print(f"[red]{answer.request_id}[/red]: {row}; {answer.errors}; after {'; '.join(self._last)}")
        self._sums = sum_of((self._sums, row_of("", "", Counter(), ended, self._words, 0)), "faults")

    def _so_far(self) -> str:
        sums = self._sums
        wrong = f"lost {sums.lost}, doubled {sums.doubled}, wrong {sums.wrong}, errors {sums.errors}"
        return f"{self.faults.total()} faults, {sums.requests} requests: {wrong}"

    async def _measure(self) -> None:
        while True:
            for service_id, service in self._mesh.state.services.items():
                if service.process is not None:
                    self.memory.measure(service_id, service.process.pid, time.monotonic())
            await asyncio.sleep(_MEASURE_EVERY_S)


def _apply(disturbance: Disturbance, pids: list[int]) -> None:
    def one(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            disturbance.apply(pid)

    threads = [threading.Thread(target=one, args=(pid,)) for pid in pids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console)


def soak(
    hours: Annotated[float, typer.Option(min=0.01, help="How long faults happen.")] = 2.0,
    seed: Annotated[
        int | None, typer.Option(help="Draws the load and the faults; by default a new one, printed.")
    ] = None,
    hostile: Annotated[
        bool, typer.Option("--hostile", help="No faults, but a tenant that sends what costs a gateway most.")
    ] = False,
) -> None:
    """Load a mesh of simulated workers, and disturb its processes until the time is over."""
    for ends in (signal.SIGINT, signal.SIGTERM):  # also where it runs in the background, as with nohup
        signal.signal(ends, signal.default_int_handler)
    console = Console()
    seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    console.print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="spotwise-soak-") as home, FaultMesh(Path(home), "--keep-store") as mesh:
        if hostile:
            wrong = hostile_soak(mesh, hours * 3600, seed, console)
            for what in wrong:
                console.print(f"[red]{what}[/red], with seed {seed}")
            raise typer.Exit(1 if wrong else 0)
        run = Soak(mesh, hours * 3600, seed)
        sums = asyncio.run(run.run(console))
        mesh.wait_until_whole()
    console.print(as_table([sums]))
    for name, count in sorted(run.faults.items()):
        console.print(f"{count:6} {name}")
    leaks = run.memory.leaks()
    console.print("\n".join(run.memory.lines()))
    if not sums.is_clean or leaks:
        console.print(f"[red]not clean[/red] with seed {seed}; memory grew: {', '.join(leaks) or 'nowhere'}")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(soak)
