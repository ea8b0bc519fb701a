"""`spotwise bench dev batching`: iteration-level against request-level batches on Orca's workload, on live meshes.

Every server gets the same schedules, is empty before the next rate, and runs alone, after a probe of its batching policy.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TaskID

from spotwise.benchmarks.arrivals import TimedRequest, UniformSizes, poisson_arrivals, storm
from spotwise.benchmarks.batching_report import comparison_rows, curves_table, latency_bound_s, merge_rounds
from spotwise.benchmarks.curve import RatePoint, point_of
from spotwise.benchmarks.open_loop import failures, print_failures, run_open_loop
from spotwise.benchmarks.plot import plot_curves
from spotwise.benchmarks.policy_probe import (
    COMMON_SETTINGS,
    ITERATION_LEVEL,
    POLICY_VARIABLE,
    REQUEST_LEVEL,
    require_policy,
)
from spotwise.benchmarks.rounds import in_order_of_round
from spotwise.benchmarks.yardsticks.vllm_client import find_vllm, vllm_version
from spotwise.benchmarks.yardsticks.vllm_server import dtype_of_both, running_vllm
from spotwise.cli.bench.report import (
    environment,
    progress_bar,
    report_console,
    require_plotting,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import MeshEndpoint, ServerEndpoint, running_mesh, up_arguments
from spotwise.cli.launch.model_options import resolve_with_progress
from spotwise.cli.quantities import ascending
from spotwise.engine.model.model_store import DEFAULT_MODEL

_VLLM = "vllm"
_WARM_UP_REQUESTS = 8
_QUICK_RATES = "1,3"
_QUICK_SECONDS = 8.0


def batching(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each of all servers in alternating order.")] = 3,
    rates: Annotated[str, typer.Option(help="Requests per second, swept upwards.")] = "0.5,1,2,3,4,6",
    seconds: Annotated[float, typer.Option(min=1, help="How long requests arrive at each rate.")] = 30.0,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`, for instance '--mixed-workers 1'.")] = "",
    vllm: Annotated[Path | None, typer.Option(help="Measure vLLM as well: the path of its program.")] = None,
    model: Annotated[str, typer.Option(help="A folder, a GGUF file or a hub id.")] = DEFAULT_MODEL,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round, two rates, seconds each: shows that it runs.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, lengths and prompts.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into FILE.png, .svg or .pdf.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Compare iteration-level and request-level batching: latency against throughput, over a sweep of rates."""
    swept = parse_rates(_QUICK_RATES if quick else rates)
    rounds, seconds = (1, _QUICK_SECONDS) if quick else (rounds, seconds)
    if plot is not None:
        require_plotting(plot)
    program = None if vllm is None else find_vllm(vllm)
    require_writable(json)
    console = report_console()
    located = resolve_with_progress(model, console, widens=True)
    dtype = dtype_of_both(located.path)
    mesh_arguments = ("--model", model, "--dtype", dtype, *up_arguments(up_args))

    def server(label: str) -> AbstractContextManager[ServerEndpoint]:
        if program is not None and label == _VLLM:
            return running_vllm(program, located.path, (), dtype=dtype)
        return running_mesh(mesh_arguments, COMMON_SETTINGS | {POLICY_VARIABLE: label})

    labels = (ITERATION_LEVEL, REQUEST_LEVEL, *((_VLLM,) if program is not None else ()))
    sweeps: dict[str, list[list[RatePoint]]] = {label: [] for label in labels}
    with progress_bar(console) as progress:
        for number in range(1, rounds + 1):
            schedules = [poisson_arrivals(rate, seconds, seed * 1000 + number, UniformSizes()) for rate in swept]
            for label in in_order_of_round(number, labels):
                task = progress.add_task(f"round {number}, {label}: starting", total=sum(map(len, schedules)))
                with server(label) as endpoint:
                    sweeps[label].append(_sweep(endpoint, label, swept, schedules, progress, task))
                progress.remove_task(task)
    curves = {label: merge_rounds(own) for label, own in sweeps.items()}
    console.print(curves_table(curves))
    about = environment(
        model=located.name,
        dtype=dtype,
        workload=dataclasses.asdict(UniformSizes()),
        rounds=rounds,
        rates=swept,
        seconds=seconds,
        seed=seed,
        quick=quick,
        up_args=up_args,
        settings=COMMON_SETTINGS,
        vllm=None if program is None else vllm_version(program),
        latency_bound_s=latency_bound_s(sweeps[ITERATION_LEVEL]),
    )
    points = [
        {"round": number, "server": label, **dataclasses.asdict(point)}
        for label, own in sweeps.items()
        for number, sweep in enumerate(own, start=1)
        for point in sweep
    ]
    write_report(comparison_rows(sweeps), about, json, console, lambda figure: f"{figure:,.2f}", points=points)
    if plot is not None:
        plot_curves(curves, plot)
        console.print(f"drawn into {plot}", style="dim")


def parse_rates(text: str) -> list[float]:
    """Rates in ascending order, each once; raises `OptionError` where they are no positive numbers."""
    return ascending(text, float, "--rates", "requests per second like 0.5,1,2")


def _sweep(
    endpoint: ServerEndpoint,
    label: str,
    rates: Sequence[float],
    schedules: Sequence[Sequence[TimedRequest]],
    progress: Progress,
    task: TaskID,
) -> list[RatePoint]:
    if isinstance(endpoint, MeshEndpoint):
        asyncio.run(require_policy(endpoint, label))
    asyncio.run(run_open_loop(endpoint, storm(_WARM_UP_REQUESTS, 0, UniformSizes())))
    points = []
    for rate, arrivals in zip(rates, schedules, strict=True):
        progress.update(task, description=f"{label}: {rate:g} requests/s")
        outcomes = asyncio.run(run_open_loop(endpoint, arrivals, lambda: progress.advance(task)))
        points.append(point_of(rate, outcomes))
        print_failures(progress.console, failures(outcomes), f"{label}, {rate:g}/s: ")
    return points
