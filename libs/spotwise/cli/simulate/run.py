"""`spotwise simulate run`: one cluster under one load, with all its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.bench.plot import require_plotting
from spotwise.cli.bench.report import report_console, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.quantities import ascending
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.market_options import InstanceTypeOption, PricesOption, ZoneOption, parse_prices
from spotwise.cli.simulate.options import (
    ArrivalsOption,
    BlockTokensOption,
    BreakEvenOption,
    ChunkTokensOption,
    DecodeModelOption,
    DecodeQueueOption,
    JobsOption,
    JointlyOption,
    JsonOption,
    ModelOption,
    RepurposeOption,
    ReserveOption,
    SchedulingOption,
    TraceOption,
    WorkloadOption,
    command_errors,
    parse_model,
    parse_workload,
    recorded_profile,
    with_options,
)
from spotwise.cli.simulate.progress import Simulations
from spotwise.cli.simulate.request_files import require_request_file, simulated
from spotwise.cli.simulate.run_machines import (
    cluster_scenario,
    leaving_machines,
    paper_machines,
    recorded_machines,
    refuse_beside_a_profile,
    require_case,
)
from spotwise.cli.simulate.run_report import report, runs_document
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import Market
from spotwise.simulator.costs.hardware import BLOOM_176B
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.loads.trace_files import MOONCAKE_BLOCK_TOKENS
from spotwise.simulator.loads.workload import ArrivalKind
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.plots import plot_batch_sizes, plot_latencies, save

_SECONDS, _RATE = 120.0, 50.0


def run(
    design: Annotated[
        str | None, typer.Option(help="Baseline-A100, Baseline-H100, Splitwise-AA, -HH, -HA or -HHcap; by default HA.")
    ] = None,
    machines: Annotated[
        str | None, typer.Option(help="Prompt and token machines, like 25,15; by default the paper's, at equal power.")
    ] = None,
    workload: WorkloadOption = "conv",
    trace: TraceOption = None,
    arrivals: ArrivalsOption = ArrivalKind.POISSON,
    jointly: JointlyOption = False,
    block_tokens: BlockTokensOption = MOONCAKE_BLOCK_TOKENS,
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
    model: ModelOption = "bloom-176b",
    decode_model: DecodeModelOption = DecodeModel.HONEST,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Fit the machines' costs to this CSV; or, where it is a file of `spotwise profile`, all are that machine."
        ),
    ] = None,
    price: Annotated[float, typer.Option(min=0, help="Price of a recorded machine, US dollars an hour.")] = 0.0,
    prices: PricesOption = None,
    instance_type: InstanceTypeOption = None,
    zone: ZoneOption = None,
    market: Annotated[Market, typer.Option(help="How the machines are bought, of those in --prices.")] = Market.SPOT,
    chunk_tokens: ChunkTokensOption = None,
    policy: SchedulingOption = None,
    reserve: ReserveOption = None,
    decode_queue: DecodeQueueOption = None,
    break_even: BreakEvenOption = None,
    repurpose_window: RepurposeOption = None,
    leaving: Annotated[
        str | None, typer.Option(help="Machines that get notice, and when: 4@60 is four of them after a minute.")
    ] = None,
    notice: Annotated[
        float | None, typer.Option(min=0, help="Seconds from the notice until they are gone; 30 by default.")
    ] = None,
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
    is_own = arrivals is ArrivalKind.TRACE
    load = parse_workload(workload, trace, arrivals, jointly=jointly, block_tokens=block_tokens)
    scenario = cluster_scenario(
        cluster,
        {
            "--design": design,
            "--machines": machines,
            "--profile": profile,
            "--price": price,
            "--prices": prices,
            "--leaving": leaving,
            "--notice": notice,
            "--model": model != BLOOM_176B.name,
            "--decode-model": decode_model is not DecodeModel.HONEST,
        },
    )
    if is_own and seeds > 1 and (scenario is None or not scenario.priorities):
        raise OptionError(
            "--seeds: a trace's own arrivals are the same with every seed; leave it out, or --arrivals trace"
        )
    own_seconds = seconds if seconds is not None or is_own else _SECONDS
    if scenario is not None:
        case = scenario.case(load, None, own_seconds, seed)
    else:
        recorded = recorded_profile(profile)
        if recorded is None:
            chosen = paper_machines(design, machines, workload, price, prices)
        else:
            refuse_beside_a_profile(profile, design, model, decode_model)
            chosen = recorded_machines(machines, recorded, price)
        case = Case(
            chosen,
            load,
            None,
            own_seconds,
            seed,
            parse_model(model),
            decode_model,
            None if recorded is not None else profile,
            changes=leaving_machines(leaving, notice, chosen.split),
        )
    case = replace(
        case,
        prefix_caching=prefix_caching,
        policy=with_options(
            case.policy,
            chunk_tokens=chunk_tokens,
            scheduling=policy,
            reserve=reserve,
            decode_queue=decode_queue,
            break_even=break_even,
            repurpose_window_s=repurpose_window,
        ),
    )
    with command_errors():
        paid = _price_series(prices, price, instance_type, zone, market)
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


def _price_series(
    prices: Path | None, price: float, instance_type: str | None, zone: str | None, market: Market
) -> PriceSeries | None:
    if prices is not None and price:
        raise OptionError("--price: --prices has all prices; leave one of the two out")
    listed = parse_prices(prices, instance_type, zone)
    return None if listed is None else listed[0].of(listed[1], zone, market, 0.0)
