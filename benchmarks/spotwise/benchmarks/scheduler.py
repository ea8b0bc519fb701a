"""`spotwise bench dev scheduler`: the cost of a cluster scheduler's decision, and whether its memory stays flat.

Runs the real role alone in this process: no broker, no store, no workers but their reports. A decision is a submission, or the
heartbeat that places a waiting request; each event is timed by itself, in this thread's processor time, so that other programs
do not count. Memory is compared between the middle and the end of a run in a steady state. With `--lives` each run is repeated
with reports of a fleet whose instances end at different rates: one for every so many decisions, as many as the workers.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from spotwise.benchmarks.counting_fleet import CountingFleet
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.core.messages.mesh import RecordLedger
from spotwise.core.percentile import percentile
from spotwise.core.scheduler.role import SchedulerCommand, SchedulerLimits, SchedulerRole
from spotwise.mesh.process.garbage import collect_rarely

#: Target for a decision at 1,000 workers.
DECISION_US = 100.0
#: Concurrent requests of a worker.
_SERVED = 8
#: KV blocks of a worker: enough for its requests, and so few that requests wait.
_ROOMY, _SCARCE = 4096, 400
#: Heartbeats for each decision.
_BEATS = 4
_QUICK = (50, 500)


def scheduler(
    workers: Annotated[int, typer.Option(min=10, help="Of the fleet: prompt, token and mixed as 4 to 5 to 1.")] = 1000,
    decisions: Annotated[int, typer.Option(min=10, help="Requests placed in each of the two runs.")] = 20_000,
    lives: Annotated[bool, typer.Option("--lives", help="Each run also with reports of instances' lives.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few of both: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths and prefixes.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure the cluster scheduler's decisions at many workers, in a fleet with free memory and in a full one."""
    workers, decisions = _QUICK if quick else (workers, decisions)
    require_writable(json)
    console = report_console()
    rows: list[ReportRow] = []
    collect_rarely()  # as in the service
    with progress_bar(console) as progress:
        for name, blocks in (("with room", _ROOMY), ("full", _SCARCE)):
            for run, knows_lives in ((name, False), (f"{name}, by life", True))[: 1 + lives]:
                task = progress.add_task(f"a fleet {run}", total=decisions)
                advance = functools.partial(progress.advance, task)
                rows += _rows(run, measure(workers, blocks, decisions, seed, advance, knows_lives=knows_lives))
    about = environment(workers=workers, decisions=decisions, seed=seed, served_at_a_time=_SERVED * workers)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.1f}")


@dataclass(slots=True)
class Taken:
    """The measurements of a run.

    Attributes:
        decisions_us: events that placed a request, by submission or by heartbeat.
        answers_us: confirmed reservations, and accepted orders.
        heartbeats_us: heartbeats that placed no request.
        reports_us: reports of the fleet.
        by_life: requests whose token worker was chosen in spite of a longer queue.
        waited: requests that were not placed at once.
        grown_objects: growth of Python's allocated blocks from the middle to the end.
        resident_grown_kib: the same of the process.
    """

    # arrays, which hold no objects of their own: memory is measured
    decisions_us: array[float] = field(default_factory=lambda: array("d"))
    answers_us: array[float] = field(default_factory=lambda: array("d"))
    heartbeats_us: array[float] = field(default_factory=lambda: array("d"))
    reports_us: array[float] = field(default_factory=lambda: array("d"))
    by_life: int = 0
    waited: int = 0
    grown_objects: int = 0
    resident_grown_kib: float = 0.0


def measure(
    workers: int,
    blocks: int,
    decisions: int,
    seed: int,
    advance: Callable[[int], Any],
    *,
    knows_lives: bool = False,
) -> Taken:
    """Place `decisions` requests on a fleet of `workers` with `blocks` KV blocks each; calls `advance` for each batch."""
    fleet, taken = CountingFleet(workers, blocks, seed), Taken()
    role = SchedulerRole("scheduler-0", SchedulerLimits(max_queued=2 * workers, max_queue_s=1e9, member_timeout_s=1e9))
    now = 1000.0
    for worker in fleet.workers.values():
        role.handle(worker.report(), now)
    served, placed, half = _SERVED * workers, 0, (0, 0)

    def feed(event: Any) -> tuple[list[Any], float]:
        started_ns = time.thread_time_ns()
        commands = role.handle(event, now)
        return commands, (time.thread_time_ns() - started_ns) / 1e3

    def report_fleet() -> None:
        _, took_us = feed(fleet.lives(now))
        taken.reports_us.append(took_us)

    def settle(commands: list[Any]) -> int:
        """Return the number of requests placed by the workers' answers."""
        answers = fleet.take(commands)
        for answer in answers:
            started, answer_us = feed(answer)
            taken.answers_us.append(answer_us)
            taken.by_life += sum(_is_by_life(command) for command in started)
            fleet.take(started)
        return len(answers)

    reported = 0
    while placed < decisions:
        if knows_lives and placed >= reported:
            report_fleet()
            reported += workers
        placed_before = placed
        now += 1.0 / workers
        if role.queued < workers:
            commands, took_us = feed(fleet.submission())
            if count := settle(commands):
                taken.decisions_us.append(took_us)
            else:
                taken.waited += 1
            placed += count
        most = min(served, fleet.serving - 1) if role.queued else served
        for closed in fleet.work(served // 8, most):
            placed += settle(role.handle(closed, now))
        for beat in fleet.beats(_BEATS):
            commands, took_us = feed(beat)
            count = settle(commands)
            (taken.decisions_us if count else taken.heartbeats_us).append(took_us / max(1, count))
            placed += count
        if fleet.serving >= served // 2 and half == (0, 0) and placed >= decisions // 2:
            half = _memory()
        advance(placed - placed_before)
    objects, resident = _memory()
    taken.grown_objects, taken.resident_grown_kib = objects - half[0], (resident - half[1]) / 1024
    return taken


def _is_by_life(command: SchedulerCommand) -> bool:
    return isinstance(command, RecordLedger) and ("by_life", 1) in command.entry.facts


def _memory() -> tuple[int, int]:
    """Blocks allocated by Python, and the process's resident bytes."""
    gc.collect()
    return sys.getallocatedblocks(), psutil.Process().memory_info().rss


def _rows(name: str, taken: Taken) -> list[ReportRow]:
    target = Target(at_most=1.0)
    of_lives = []
    if taken.reports_us:
        of_lives = [
            ReportRow(f"{name}: report of the fleet p50, us", percentile(taken.reports_us, 50)),
            ReportRow(f"{name}: requests placed in spite of a longer queue", taken.by_life),
        ]
    return [
        ReportRow(f"{name}: decision p50, us", percentile(taken.decisions_us, 50), DECISION_US, target),
        ReportRow(f"{name}: decision p99, us", percentile(taken.decisions_us, 99), DECISION_US, target),
        ReportRow(f"{name}: answer of a worker p50, us", percentile(taken.answers_us, 50)),
        ReportRow(f"{name}: heartbeat p50, us", percentile(taken.heartbeats_us, 50)),
        ReportRow(f"{name}: heartbeat p99, us", percentile(taken.heartbeats_us, 99)),
        *of_lives,
        ReportRow(f"{name}: requests that waited", taken.waited),
        ReportRow(f"{name}: objects more at the end than in the middle", taken.grown_objects),
        ReportRow(f"{name}: resident memory more at the end than in the middle, KiB", taken.resident_grown_kib),
    ]
