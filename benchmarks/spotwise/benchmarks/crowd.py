"""`spotwise bench dev crowd`: many streams through one gateway: alone, beside bad clients, and while workers die.

Workers are simulated, so that streams and not tokens are the load. All situations happen to one mesh, in turn; the streams that
are measured are the same in each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from spotwise.benchmarks.bad_clients import half_open, slow_readers
from spotwise.benchmarks.open_loop import print_failures
from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
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
from spotwise.cli.mesh.running import running_state
from spotwise.core.percentile import percentile

#: Tokens of a prompt and of an answer; a token takes some 1.5 s, so that an answer takes longer than all streams to begin, and
#: a gateway on two cores shared with everything else is not busy with tokens.
_INPUT_TOKENS, _OUTPUT_TOKENS = 64, 160
_SLOW = "0.02"
#: So many prompt workers that all streams begin before the first ends. More token workers than one process simulates: one of
#: their processes is killed.
_PROMPT_WORKERS, _TOKEN_WORKERS = 100, 60
#: A gap above this many times the median token is a pause.
_PAUSE = 3.0
_GATEWAY_LIMIT_MIB = 300.0

_Situation = Callable[[MeshEndpoint], AbstractAsyncContextManager[None]]


def crowd(
    streams: Annotated[int, typer.Option(min=10, help="Streams at once that are measured.")] = 3000,
    bad: Annotated[int, typer.Option(min=1, help="Clients that behave badly, of each kind.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="Of each situation, in turn.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the random prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure what bad clients and dead workers cost the other streams. Exit status 1 where one of these failed."""
    require_writable(json)
    console = report_console()
    shape = StreamShape(streams, 1, _INPUT_TOKENS, _OUTPUT_TOKENS, seed)
    situations = _situations(bad)
    results: dict[str, list[StreamResult]] = {name: [] for name in (*situations, "worker killed")}
    pools = ("--prompt-workers", str(_PROMPT_WORKERS), "--token-workers", str(_TOKEN_WORKERS))
    room = {"SPOTWISE_MAX_QUEUED": str(4 * streams), "SPOTWISE_MAX_CONNECTIONS": str(2 * (streams + bad))}
    with (
        progress_bar(console) as progress,
        running_mesh(("--engine", "simulated", "--speed", _SLOW, *pools), room) as endpoint,
    ):
        total = streams * (rounds * len(situations) + 1)
        task = progress.add_task("starting", total=total)

        def run(name: str, situation: _Situation) -> None:
            progress.update(task, description=name)
            results[name].append(uvloop.run(_run(endpoint, shape, situation, partial(progress.advance, task))))

        for number in range(1, rounds + 1):
            for name in in_order_of_round(number, list(situations)):
                run(name, situations[name])
        run("worker killed", _killed)
    rows = result_rows(results)
    failures = [result.failures for each in results.values() for result in each]
    failed = sum(map(sum, (each.values() for each in failures)))
    rows.append(ReportRow("streams that failed", failed, 1.0, Target(at_most=0.0)))
    for each in failures:
        print_failures(console, each)
    write_report(rows, environment(streams=streams, bad=bad, rounds=rounds, seed=seed), json, console, "{:,.1f}".format)
    if failed:
        raise typer.Exit(1)


def _situations(bad: int) -> dict[str, _Situation]:
    """Return each situation by name; in all of them as many requests are computed."""

    @contextlib.asynccontextmanager
    async def alone(endpoint: MeshEndpoint) -> AsyncIterator[None]:
        others = StreamShape(bad, 1, _INPUT_TOKENS, _OUTPUT_TOKENS, 7)
        beside = asyncio.create_task(run_streams(endpoint, others, lambda: None))
        try:
            yield
        finally:
            await beside

    @contextlib.asynccontextmanager
    async def beside_half_open(endpoint: MeshEndpoint) -> AsyncIterator[None]:
        async with half_open(endpoint, bad), alone(endpoint):
            yield

    return {
        "alone": alone,
        "half-open clients": beside_half_open,
        "slow clients": lambda endpoint: slow_readers(endpoint, bad, _INPUT_TOKENS, _OUTPUT_TOKENS),
    }


@contextlib.asynccontextmanager
async def _killed(endpoint: MeshEndpoint) -> AsyncIterator[None]:
    yield


async def _run(
    endpoint: MeshEndpoint, shape: StreamShape, situation: _Situation, answered: Callable[[], Any]
) -> StreamResult:
    are_open = asyncio.Event()

    def now_open(count: int) -> None:
        if count >= 0.95 * shape.streams:
            are_open.set()

    async def kill() -> None:
        await are_open.wait()
        services = running_state(endpoint.name).services
        victim = services[max(each for each in services if each.startswith("token-"))].process
        assert victim is not None
        os.kill(victim.pid, signal.SIGKILL)

    killing = asyncio.create_task(kill()) if situation is _killed else None
    try:
        async with situation(endpoint):
            result = await run_streams(endpoint, shape, answered, now_open)
        if killing is not None:
            if not killing.done():
                raise CommandError(
                    f"no worker was killed: {result.most_open} of {shape.streams} streams were open at once"
                )
            killing.result()
        return result
    finally:
        if killing is not None:
            killing.cancel()


def result_rows(results: dict[str, list[StreamResult]]) -> list[ReportRow]:
    """Compare each situation with the streams alone, round by round, and count the pauses of a killed worker's streams.

    A situation in which no stream ended has no rows.
    """
    alone = results["alone"]
    rows = [
        ReportRow("streams open at once", min(each.most_open for each in alone)),
        ReportRow(
            "gateway memory, MiB",
            max(each.peak_bytes["gateway-0"] for every in results.values() for each in every) / 2**20,
            _GATEWAY_LIMIT_MIB,
            Target(at_most=1.0),
        ),
    ]
    for name, ours in results.items():
        theirs = alone[: len(ours)]
        if not all(each.outcomes for each in (*ours, *theirs)):
            continue
        for title, share in (("p50", 50.0), ("p99", 99.0)):
            mine, others = ([1000 * percentile(_tpots(each), share) for each in side] for side in (ours, theirs))
            rows.append(row_of_rounds(f"{name}: TPOT {title}, ms (beside: alone)", mine, others))
        mine, others = ([1000 * percentile(_gaps(each), 99.0) for each in side] for side in (ours, theirs))
        rows.append(row_of_rounds(f"{name}: longest wait of a stream for a token, p99, ms", mine, others))
    (killed,) = results["worker killed"]
    if not killed.outcomes:
        return rows
    token_s = statistics.median(_tpots(killed))
    paused = [gap for gap in _gaps(killed) if gap > _PAUSE * token_s]
    rows.append(ReportRow("worker killed: streams that paused", len(paused)))
    if paused:
        rows.append(ReportRow("worker killed: their pause, p50 ms", 1000 * statistics.median(paused)))
        rows.append(ReportRow("worker killed: their pause, longest, ms", 1000 * max(paused)))
    rows.append(ReportRow("worker killed: streams that did not", len(killed.outcomes) - len(paused)))
    return rows


def _tpots(result: StreamResult) -> Sequence[float]:
    return [each.tpot_s for each in result.outcomes if each.tpot_s is not None]


def _gaps(result: StreamResult) -> Sequence[float]:
    return [each.longest_gap_s for each in result.outcomes]
