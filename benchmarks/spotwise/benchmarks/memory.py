"""`spotwise bench dev memory`: the workers' memory in a storm of requests.

KV use is each worker's own report, sampled during the storm; its budget is its report at rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from spotwise.benchmarks.arrivals import TimedRequest, UniformSizes, storm
from spotwise.benchmarks.memory_samples import Sample, held_by, memory_rows, read_samples, summarize
from spotwise.benchmarks.open_loop import Outcome, failures, print_failures, run_open_loop
from spotwise.benchmarks.sampling import sampled
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import MeshEndpoint, mesh_of
from spotwise.cli.mesh.status_table import gather_status

_SAMPLE_S = 0.25
_IDLE_WAIT_S = 60.0
_QUICK_REQUESTS = 40


def memory(
    requests: Annotated[int, typer.Option(min=1, help="Sent all at once.")] = 500,
    input_tokens: Annotated[int, typer.Option(min=1, help="Of the longest prompt.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of the longest answer.")] = 128,
    name: Annotated[
        str | None, typer.Option(help="A mesh of this machine that runs; by default one of the benchmark's own.")
    ] = None,
    up_args: Annotated[
        str, typer.Option(help="Passed on to `spotwise up`; a small KV budget makes the storm press against it.")
    ] = "--kv-cache 256MiB",
    quick: Annotated[bool, typer.Option("--quick", help="Few requests: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths and prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Watch KV use and resident memory of every worker through a storm of requests."""
    requests = _QUICK_REQUESTS if quick else requests
    sizes = UniformSizes((min(32, input_tokens), input_tokens), (1, output_tokens))
    require_writable(json)
    console = report_console()
    with progress_bar(console) as progress:
        task = progress.add_task("starting a mesh", total=requests)
        with mesh_of(name, up_args) as endpoint:
            progress.update(task, description="requests answered")
            arrivals = storm(requests, seed, sizes)
            watched = asyncio.run(watch_storm(endpoint, arrivals, lambda: progress.advance(task)))
    workers = summarize(watched.before, watched.during, watched.after)
    answered = sum(outcome.latency_s is not None for outcome in watched.outcomes)
    print_failures(console, failures(watched.outcomes))
    about = environment(
        workload=dataclasses.asdict(sizes),
        requests=requests,
        seed=seed,
        up_args=None if name else up_args,
        storm_seconds=round(watched.seconds, 1),
        samples={worker.worker_id: worker.samples for worker in workers},
    )
    rows = [ReportRow("requests answered", answered, requests, Target(at_least=1.0)), *memory_rows(workers)]
    write_report(rows, about, json, console, lambda figure: f"{figure:,.0f}")


@dataclass(frozen=True, slots=True)
class Watched:
    """A storm, and the samples before, during and after it."""

    before: list[Sample]
    during: list[Sample]
    after: list[Sample]
    outcomes: list[Outcome]
    seconds: float


async def watch_storm(endpoint: MeshEndpoint, arrivals: list[TimedRequest], finished: Callable[[], Any]) -> Watched:
    """Send all requests, sample until all are answered, then wait until the workers hold nothing, for a minute at most."""
    before = read_samples(await gather_status(endpoint.redis_url))
    during: list[Sample] = []

    async def sample() -> None:
        during.extend(read_samples(await gather_status(endpoint.redis_url)))

    async with sampled(sample, _SAMPLE_S):
        started_s = time.monotonic()
        outcomes = await run_open_loop(endpoint, arrivals, finished)
        seconds = time.monotonic() - started_s
    deadline_s = time.monotonic() + _IDLE_WAIT_S
    after = read_samples(await gather_status(endpoint.redis_url))
    while held_by(after) and time.monotonic() < deadline_s:
        await asyncio.sleep(_SAMPLE_S)
        after = read_samples(await gather_status(endpoint.redis_url))
    return Watched(before, during, after, outcomes, seconds)
