"""`spotwise simulate run`: one cluster under one load, with all its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.bench.report import report_console, require_plotting, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.option_groups import with_option_groups
from spotwise.cli.quantities import ascending
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.options import JobsOption, JsonOption, LoadOptions, command_errors
from spotwise.cli.simulate.progress import Simulations
from spotwise.cli.simulate.request_files import require_request_file, simulated
from spotwise.cli.simulate.run_options import (
    CostOptions,
    LeavingOptions,
    MachineOptions,
    ServingOptions,
    profile_case,
    require_case,
    run_scenario,
)
from spotwise.cli.simulate.run_report import report, runs_document
from spotwise.simulator.loads.workload import ArrivalKind
from spotwise.simulator.runs.plots import plot_batch_sizes, plot_latencies, save

_SECONDS, _RATE = 120.0, 50.0


@with_option_groups
def run(
    *,
    machines: MachineOptions,
    load: LoadOptions,
    prefix_caching: Annotated[
        bool, typer.Option(help="Reuse equal beginnings of prompts, where the trace has hashes of their blocks.")
    ] = True,
    rates: Annotated[
        str | None, typer.Option(help="Requests per second, several with commas; not given, 50 or the trace's own.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0.001, help="Seconds of arrivals; by default 120.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals and sizes.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds, from --seed on: means, with 95 % intervals.")] = 1,
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="Cluster file: machines of any kinds, their objectives and policies, and what happens to them."
        ),
    ] = None,
    costs: CostOptions,
    serving: ServingOptions,
    leaving: LeavingOptions,
    jobs: JobsOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw latencies (several rates) or batch sizes (one) into this file.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="Write every request's latencies into this file, .csv or .parquet.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Simulate one cluster, and report latencies, objectives, utilisation, cost and power."""
    is_own = load.arrivals is ArrivalKind.TRACE
    workload = load.cluster_workload()
    scenario = run_scenario(cluster, machines, costs, leaving)
    if is_own and seeds > 1 and (scenario is None or not scenario.priorities):
        raise OptionError(
            "--seeds: a trace's own arrivals are the same with every seed; leave it out, or --arrivals trace"
        )
    own_seconds = seconds if seconds is not None or is_own else _SECONDS
    if scenario is not None:
        case = scenario.case(workload, None, own_seconds, seed)
    else:
        case = profile_case(machines, load, costs, leaving, own_seconds, seed)
    case = replace(case, prefix_caching=prefix_caching, policy=serving.changed(case.policy))
    with command_errors():
        paid = costs.price_series()
        require_case(case, case.cluster.name)
    if plot is not None:
        require_plotting(plot)
    require_writable(json)
    require_request_file(requests)
    console = report_console()
    swept: list[float | None] = [None if is_own else _RATE]
    if rates is not None:
        swept = [*ascending(rates, float, "--rates", "requests per second like 40,60,80")]
    cases = {rate: [replace(case, rate=rate, seed=seed + number) for number in range(seeds)] for rate in swept}
    found = simulated(Simulations(console, jobs), cases, requests)
    for summaries in found.values():
        report(console, summaries, paid)
    write_document(runs_document(list(found.values()), paid), json, console)
    if requests is not None:
        console.print(f"requests written to {requests}", style="dim")
    if plot is not None:
        runs = [run for summaries in found.values() for run in summaries]
        figure = plot_latencies({case.label: runs}) if len(found) > 1 else plot_batch_sizes(runs[:1], case.label)
        save(figure, plot)
        console.print(f"drawn into {plot}", style="dim")
