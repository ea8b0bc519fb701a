"""`spotwise bench dev control-plane`: the mesh without a model, at a scale that no model allows on one machine.

Workers are simulated; gateway, scheduler, broker, store and every message are real. Four loads, each on a mesh of its own:
tokens through one prompt and one token worker at full speed, for CPU time per token; many workers and streams at the pace of
a slow model, for memory and errors; the same with journals, whose replay times every decision of the scheduler and must
give the same commands; and the same while some of the workers leave at once, for what the streams and the planner pay.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.progress import Progress

from spotwise.benchmarks.leaving import WorkersLeft, planned, run_leaving
from spotwise.benchmarks.open_loop import print_failures
from spotwise.benchmarks.process_usage import ProcessUsage
from spotwise.benchmarks.scheduler import DECISION_US
from spotwise.benchmarks.stream_load import StreamResult, run_streams
from spotwise.cli.bench.load import StreamShape
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import MeshEndpoint, running_mesh
from spotwise.cli.errors import CommandError
from spotwise.core.percentile import percentile
from spotwise.mesh.replay.journal_replay import JournalError, Replay, find_journals, replay

#: NVIDIA Dynamo 1.6.1: its Rust frontend with one prefill and one decode mocker, 128→64, 128 streams: CPU time of all three.
_DYNAMO_US_PER_TOKEN = 28.0
_GATEWAY_LIMIT_MIB = 300.0
_QUICK = 10
#: Iterations take almost no time, so that the mesh limits the token rate.
_FAST = "1000"
#: The gateway's own limit, which many streams exceed.
_DEFAULT_CONNECTIONS = 4096
_PATIENCE_S = "60"
#: About three tokens a second and stream: the open streams are the load, not their tokens.
_SLOW = "0.1"


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of the loads.

    Attributes:
        workers: workers of each phase.
        through: tokens at full speed.
        open_streams: many streams at once.
        decided: the load of the journals.
        leaving: streams under which workers leave.
        rest_s: duration of the measurement of an idle mesh.
    """

    workers: int
    through: StreamShape
    open_streams: StreamShape
    decided: StreamShape
    leaving: StreamShape
    rest_s: float


def control_plane(
    workers: Annotated[int, typer.Option(min=2, help="Simulated workers, half of them for each phase.")] = 200,
    streams: Annotated[int, typer.Option(min=1, help="Open at once.")] = 2000,
    through: Annotated[bool, typer.Option(help="Measure tokens through one prompt and one token worker, too.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of everything: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the random prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure the mesh's own costs: CPU time a token, memory, decisions. Exit status 1 where a request failed."""
    require_writable(json)
    console = report_console()
    scale = _scale(workers, streams, seed, quick=quick)
    rows: list[ReportRow] = []
    loads: dict[str, dict[str, Any]] = {}
    results = []
    with progress_bar(console) as progress:
        if through:
            result = _load(progress, "through", scale.through, ("--speed", _FAST))
            rows += _through_rows(result)
            loads["through"] = _as_dict(scale.through, result)
            results.append(result)
        result, idle_cores = _open_streams(progress, scale)
        rows += _open_rows(scale, result, idle_cores)
        loads["open streams"] = _as_dict(scale.open_streams, result) | {"idle_cores": idle_cores}
        results.append(result)
        result, replays = _decisions(progress, scale)
        rows += _decision_rows(replays)
        loads["decisions"] = _as_dict(scale.decided, result)
        results.append(result)
        gone = _leaving(progress, scale)
        rows += gone.rows()
        loads["leaving"] = _as_dict(scale.leaving, gone.result) | {"moves": dict(gone.moves)}
        results.append(gone.result)
        replays += gone.replays
        rows += _replay_rows(replays)
    failed = sum(sum(each.failures.values()) for each in results)
    rows.append(ReportRow("requests that failed", failed))
    for result in results:
        print_failures(console, result.failures)
    about = environment(workers=workers, streams=streams, seed=seed, quick=quick)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.1f}", loads=loads)
    if failed or any(each.difference is not None for each in replays):
        raise typer.Exit(1)


def _scale(workers: int, streams: int, seed: int, *, quick: bool) -> Scale:
    share = _QUICK if quick else 1
    half = max(1, workers // 2 // share)
    wide = max(1, streams // share)
    return Scale(
        workers=half,
        through=StreamShape(max(1, 128 // share), 16, 128, 64, seed),
        # A minute each, so that the first is still open when the last has begun.
        open_streams=StreamShape(wide, 1, 128, 20 if quick else 200, seed + 1),
        decided=StreamShape(wide, 2, 128, 8, seed + 2),
        leaving=StreamShape(wide, 1, 128, 60 if quick else 100, seed + 3),
        rest_s=10.0 / share,
    )


def _load(
    progress: Progress,
    name: str,
    shape: StreamShape,
    arguments: Sequence[str],
    env: dict[str, str] | None = None,
    prepare: Callable[[MeshEndpoint], Any] = lambda endpoint: None,
    run: Callable[[MeshEndpoint, StreamShape, Callable[[], Any]], Coroutine[Any, Any, StreamResult]] = run_streams,
) -> StreamResult:
    task = progress.add_task(f"{name}: starting", total=shape.streams * shape.requests)
    # A slow machine must not cause errors: no reservation is retried, no member counted as lost early.
    patient = {"SPOTWISE_MAX_QUEUED": str(2 * shape.streams), "SPOTWISE_MEMBER_TIMEOUT_S": "10", **(env or {})}
    patient |= {"SPOTWISE_STORE_TIMEOUT_S": _PATIENCE_S, "SPOTWISE_SUBMIT_TIMEOUT_S": _PATIENCE_S}
    patient["SPOTWISE_MAX_CONNECTIONS"] = str(max(_DEFAULT_CONNECTIONS, 2 * shape.streams))
    with running_mesh(("--engine", "simulated", *arguments), patient) as endpoint:
        prepare(endpoint)
        warm_up = replace(shape, streams=min(8, shape.streams), requests=1, output_tokens=8, seed=shape.seed + 1000)
        uvloop.run(run_streams(endpoint, warm_up, lambda: None))
        progress.update(task, description=f"{name}: requests")
        return uvloop.run(run(endpoint, shape, lambda: progress.advance(task)))


def _pools(scale: Scale) -> tuple[str, ...]:
    return ("--prompt-workers", str(scale.workers), "--token-workers", str(scale.workers))


def _open_streams(progress: Progress, scale: Scale) -> tuple[StreamResult, float]:
    """Return the load's result, and the cores that an idle mesh uses."""
    idle: list[float] = []

    def rest(endpoint: MeshEndpoint) -> None:
        before = ProcessUsage.of_mesh(endpoint.name)
        time.sleep(scale.rest_s)
        idle.append(sum(ProcessUsage.of_mesh(endpoint.name).cpu_since(before).values()) / scale.rest_s)

    arguments = (*_pools(scale), "--speed", _SLOW)
    return _load(progress, "open streams", scale.open_streams, arguments, prepare=rest), idle[0]


def _decisions(progress: Progress, scale: Scale) -> tuple[StreamResult, list[Replay]]:
    """Return the load's result, and the replays of the schedulers' journals."""
    with _journals() as folder:
        arguments = (*_pools(scale), "--speed", _SLOW)
        result = _load(progress, "decisions", scale.decided, arguments, {"SPOTWISE_JOURNAL": str(folder)})
        try:
            journals = find_journals(folder)
            task = progress.add_task("decisions: replaying", total=len(journals))
            replays = []
            for journal in journals:
                replays.append(replay(journal))
                progress.advance(task)
        except JournalError as error:
            raise CommandError(str(error)) from error
    return result, replays


def _leaving(progress: Progress, scale: Scale) -> WorkersLeft:
    """Return what happens to many streams when some workers leave at once, with the planner's journal."""
    with _journals() as folder:
        arguments = (*_pools(scale), "--speed", _SLOW)
        left = 0

        async def run(endpoint: MeshEndpoint, shape: StreamShape, answered: Callable[[], Any]) -> StreamResult:
            nonlocal left
            result, left = await run_leaving(endpoint, shape, answered)
            return result

        result = _load(progress, "leaving", scale.leaving, arguments, {"SPOTWISE_JOURNAL": str(folder)}, run=run)
        return WorkersLeft(result, left, *planned(folder))


@contextmanager
def _journals() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="spotwise-journals-") as folder:
        yield Path(folder)


def _through_rows(result: StreamResult) -> list[ReportRow]:
    ttft_s = [outcome.first_s - outcome.sent_s for outcome in result.outcomes if outcome.first_s is not None]
    target = Target(at_most=3.0)
    rows = [
        ReportRow(
            "through: CPU of the mesh per output token, us", result.cpu_us_per_token, _DYNAMO_US_PER_TOKEN, target
        ),
        *(
            ReportRow(f"through: of it {service_id}, us", 1e6 * cpu_s / max(1, result.tokens))
            for service_id, cpu_s in sorted(result.cpu_s.items(), key=lambda item: -item[1])
            if cpu_s > 0.01 * sum(result.cpu_s.values())
        ),
        ReportRow("through: output tokens/s", result.tokens / result.seconds),
    ]
    if ttft_s:
        rows.append(ReportRow("through: TTFT p50, ms", 1000 * statistics.median(ttft_s)))
    return rows


def _open_rows(scale: Scale, result: StreamResult, idle_cores: float) -> list[ReportRow]:
    tpot_s = [outcome.tpot_s for outcome in result.outcomes if outcome.tpot_s is not None]
    gateway_mib = result.peak_bytes["gateway-0"] / 2**20
    most = ReportRow("open streams: most at once", result.most_open, scale.open_streams.streams, Target(at_least=0.9))
    rows = [
        ReportRow("open streams: workers", 2 * scale.workers),
        most,
        ReportRow("open streams: gateway memory, MiB", gateway_mib, _GATEWAY_LIMIT_MIB, Target(at_most=1.0)),
        ReportRow("open streams: scheduler memory, MiB", result.peak_bytes["scheduler-0"] / 2**20),
        ReportRow("open streams: all memory, MiB", sum(result.peak_bytes.values()) / 2**20),
        ReportRow("open streams: CPU of the mesh per output token, us", result.cpu_us_per_token),
        ReportRow("open streams: cores that the mesh takes at rest", idle_cores),
    ]
    if tpot_s:
        rows.append(ReportRow("open streams: TPOT p50, ms", 1000 * statistics.median(tpot_s)))
        rows.append(ReportRow("open streams: TPOT p99, ms", 1000 * percentile(tpot_s, 99)))
    return rows


def _decision_rows(replays: Sequence[Replay]) -> list[ReportRow]:
    scheduler = [each for each in replays if each.source.role == "SchedulerRole"]
    rows = []
    for event_type, title in (("SubmitRequest", "an assignment"), ("Member", "a heartbeat")):
        us = [1e6 * seconds for each in scheduler for seconds in each.decision_s.get(event_type, ())]
        if us:
            limit = (DECISION_US, Target(at_most=1.0))
            rows.append(ReportRow(f"scheduler: {title}, p50 us", statistics.median(us), *limit))
            rows.append(ReportRow(f"scheduler: {title}, p99 us", percentile(us, 99)))
    return rows


def _replay_rows(replays: Sequence[Replay]) -> list[ReportRow]:
    return [
        ReportRow("replay: commands", sum(each.commands for each in replays)),
        ReportRow("replay: journals that differ", sum(each.difference is not None for each in replays)),
    ]


def _as_dict(shape: StreamShape, result: StreamResult) -> dict[str, Any]:
    return {
        "streams": shape.streams,
        "requests": len(result.outcomes),
        "input_tokens": shape.input_tokens,
        "output_tokens": shape.output_tokens,
        "tokens": result.tokens,
        "seconds": result.seconds,
        "most_open": result.most_open,
        "cpu_s": result.cpu_s,
        "cpu_us_per_token": result.cpu_us_per_token,
        "peak_bytes": dict(result.peak_bytes),
        "failures": dict(result.failures),
    }
