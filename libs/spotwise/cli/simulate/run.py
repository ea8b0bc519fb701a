"""`spotwise simulate run`: one cluster under one load, with all its figures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from spotwise.cli.bench.plot import require_plotting
from spotwise.cli.bench.report import environment, report_console, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.number_lists import ascending
from spotwise.cli.profile_reach import extrapolation_lines
from spotwise.cli.simulate.documents import run_document, write_document
from spotwise.cli.simulate.options import (
    ArrivalsOption,
    BlockTokensOption,
    DecodeModelOption,
    JobsOption,
    JointlyOption,
    JsonOption,
    ModelOption,
    TraceOption,
    WorkloadOption,
    command_errors,
    parse_design,
    parse_model,
    parse_recorded_split,
    parse_split,
    parse_workload,
    recorded_profile,
)
from spotwise.cli.simulate.price_options import InstanceTypeOption, PricesOption, ZoneOption, parse_prices
from spotwise.cli.simulate.progress import Simulations
from spotwise.cli.simulate.request_files import require_request_file, simulate_with_requests
from spotwise.cli.simulate.run_marks import prefix_lines, steady_lines
from spotwise.core.fleet.market import Market
from spotwise.core.fleet.prices import PriceSeries
from spotwise.simulator.costs.hardware import BLOOM_176B
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.designs import PAPER_SPLITS, Split
from spotwise.simulator.runs.experiment import Case, LeavingMachines, RunSummary
from spotwise.simulator.runs.metrics import METRICS
from spotwise.simulator.runs.plots import plot_batch_sizes, plot_latencies, save
from spotwise.simulator.runs.recorded import RECORDED
from spotwise.simulator.runs.search import Search
from spotwise.simulator.runs.slo import PERCENTS
from spotwise.simulator.runs.trace_files import MOONCAKE_BLOCK_TOKENS
from spotwise.simulator.runs.workload import ArrivalKind

_NOTICE_S = 30.0


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
    chunk_tokens: Annotated[
        int | None, typer.Option(min=256, help="Chunked prefill: most tokens of an iteration.")
    ] = None,
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
    """Simulate one design, and report latencies, objectives, utilisation, cost and power."""
    load = parse_workload(workload, trace, arrivals, jointly=jointly, block_tokens=block_tokens)
    recorded = recorded_profile(profile)
    if recorded is None:
        name, split = _paper_machines(design, machines, workload, price, prices)
    else:
        if design is not None:
            raise OptionError(
                f"--design {design!r}: {profile} has one kind of machine; give only their numbers, --machines 4,2"
            )
        if model != BLOOM_176B.name or decode_model is not DecodeModel.HONEST:
            raise OptionError(
                f"--model, --decode-model: {profile} already has its model's iteration times; leave them out"
            )
        name, split = RECORDED, parse_recorded_split(machines, recorded)
    with command_errors():
        paid = _price_series(prices, price, instance_type, zone, market)
    is_own = arrivals is ArrivalKind.TRACE
    case = Case(
        name,
        split,
        load,
        None,
        seconds if seconds is not None or is_own else 120.0,
        seed,
        parse_model(model),
        decode_model,
        None if recorded is not None else profile,
        chunk_tokens,
        recorded,
        price,
        leaving=_leaving_machines(leaving, notice, split),
        prefix_caching=prefix_caching,
    )
    if plot is not None:
        require_plotting(plot)
    require_writable(json)
    require_request_file(requests)
    console = report_console()
    swept: list[float | None] = [None if is_own else 50.0]
    if rates is not None:
        swept = [*ascending(rates, float, "--rates", "requests per second like 40,60,80")]
    cases = [replace(case, rate=rate) for rate in swept]
    simulations = Simulations(console, jobs)
    if requests is None:
        runs = list(simulations.carry_out(dict(enumerate(map(_single, cases))), "simulating").values())
    else:
        runs = simulate_with_requests(simulations, cases, requests)
    for summary in runs:
        console.print(latency_table(summary))
        console.print(pool_table(summary))
        for line in [*sentences(summary), *_bill_line(summary, paid)]:
            console.print(line)
    about = environment(simulation="run")
    documents = [run_document(summary) | {"bill_usd": _bill(summary, paid)} for summary in runs]
    write_document({"environment": about, "runs": documents}, json, console)
    if requests is not None:
        console.print(f"requests written to {requests}", style="dim")
    if plot is not None:
        figure = plot_latencies({case.label: runs}) if len(runs) > 1 else plot_batch_sizes(runs, case.label)
        save(figure, plot)
        console.print(f"drawn into {plot}", style="dim")


def _leaving_machines(text: str | None, notice: float | None, split: Split) -> LeavingMachines | None:
    if text is None and notice is not None:
        raise OptionError("--notice: no machine leaves; say which with --leaving 4@60, or leave it out")
    if text is None:
        return None
    notice_s = _NOTICE_S if notice is None else notice
    machines, _, at_s = text.partition("@")
    try:
        leaving = LeavingMachines(int(machines), float(at_s), notice_s)
    except ValueError:
        leaving = LeavingMachines(0, 0.0, notice_s)
    if not (0 < leaving.machines < split.prompt + split.token and 0.0 <= leaving.at_s < math.inf):
        raise OptionError(f"--leaving {text!r}: write how many machines and when, like 4@60; at least one must stay")
    return leaving


def _paper_machines(
    design: str | None, machines: str | None, workload: str, price: float, prices: Path | None
) -> tuple[str, Split]:
    if price or prices is not None:
        option = "--price" if price else "--prices"
        raise OptionError(
            f"{option}: only for a recorded machine; give its --profile, or leave it out for the paper's machines"
        )
    chosen = parse_design(design or "HA")
    if machines is not None:
        return chosen.name, parse_split(machines, chosen)
    splits = PAPER_SPLITS["iso-power", workload if workload in ("code", "conv") else "conv"]
    return chosen.name, splits[chosen.name]


def _price_series(
    prices: Path | None, price: float, instance_type: str | None, zone: str | None, market: Market
) -> PriceSeries | None:
    if prices is not None and price:
        raise OptionError("--price: --prices has all prices; leave one of the two out")
    listed = parse_prices(prices, instance_type, zone)
    return None if listed is None else listed[0].of(listed[1], zone, market, 0.0)


def _bill(run: RunSummary, paid: PriceSeries | None) -> float | None:
    """Return the dollars until the last request's end; machines that leave are paid until they are gone."""
    if paid is None:
        return None
    split, leaving = run.case.split, run.case.leaving
    machines, gone = split.prompt + split.token, 0 if leaving is None else leaving.machines
    left_s = run.ended_s if leaving is None else min(run.ended_s, leaving.at_s + leaving.notice_s)
    return (machines - gone) * paid.cost(0.0, run.ended_s) + gone * paid.cost(0.0, left_s)


def _bill_line(run: RunSummary, paid: PriceSeries | None) -> list[str]:
    dollars = _bill(run, paid)
    if dollars is None:
        return []
    per_1000 = f", {1000 * dollars / run.completed:,.2f} $ per 1,000 requests" if run.completed else ""
    return [f"Bill: {dollars:,.2f} $ at the prices of {run.ended_s:,.1f} s{per_1000}."]


def _single(case: Case) -> Search[RunSummary]:
    (summary,) = yield [case]
    return summary


def latency_table(run: RunSummary) -> Table:
    """Return latencies in seconds, and as slowdowns beside their bounds."""
    rate = "its own rate" if run.case.rate is None else f"{run.case.rate:g} requests/s"
    table = Table(
        header_style="bold", title=f"{run.case.label}, {run.case.workload.name}, {rate}", title_justify="left"
    )
    table.add_column("latency")
    for heading in (
        "mean",
        *(f"p{percent}" for percent in PERCENTS),
        *(f"slowdown p{percent}" for percent in PERCENTS),
    ):
        table.add_column(heading, justify="right")
    for metric in (*METRICS, "itl"):
        seconds = run.latencies_s[metric]
        cells = [_time(seconds.get(name)) for name in ("mean", *(f"p{percent}" for percent in PERCENTS))]
        for ours, bound in run.verdict.slowdowns.get(metric, ()):
            colour = "green" if ours < bound else "red"
            cells.append(f"[{colour}]{ours:.2f}[/] of {bound:g}")
        table.add_row(metric.upper(), *cells)
    return table


def pool_table(run: RunSummary) -> Table:
    """Return the figures of each pool's machines."""
    table = Table(header_style="bold")
    table.add_column("pool")
    for heading in ("machines", "busy", "iterations", "decodes per iteration", "tokens per iteration, median of time"):
        table.add_column(heading, justify="right")
    for name, pool in run.pools.items():
        median = next(tokens for tokens, share in zip(pool.tokens, pool.time_shares, strict=True) if share >= 0.5)
        table.add_row(
            name,
            str(pool.machines),
            f"{pool.utilisation:.0%}",
            f"{pool.iterations:,}",
            f"{pool.mean_decodes:.1f}",
            f"{median:,}",
        )
    return table


def sentences(run: RunSummary) -> list[str]:
    """Return the other figures in words."""
    verdict = (
        "All nine objectives hold." if run.verdict.holds else f"Objectives broken: {', '.join(run.verdict.broken)}."
    )
    if run.failed:
        verdict += f" {run.failed} requests failed, the first of them because {run.first_failure}."
    price = run.dollars_per_1000_requests
    per_request = "" if price is None else f", {price:.2f} $ per 1,000 requests"
    power = f"; power of {run.power:.1f} DGX-A100" if run.power else ""
    return [
        verdict,
        f"{run.completed:,} requests in {run.ended_s:,.1f} simulated seconds; in the middle of them {run.requests_per_s:.1f} "
        f"requests/s, {run.output_tokens_per_s:,.0f} output tokens/s.",
        *([f"{run.price_per_hour:,.0f} $ an hour{per_request}{power}."] if run.price_per_hour else []),
        *_left(run),
        *steady_lines(run),
        *prefix_lines(run),
        *extrapolation_lines(run.case.recorded, run.beyond_profile),
        f"{run.handoffs:,} hand-offs, {run.handoff_bytes / 1e9:,.0f} GB; {run.preemptions:,} preemptions; "
        f"simulated in {run.wall_s:.1f} s.",
    ]


def _left(run: RunSummary) -> list[str]:
    leaving = run.case.leaving
    if leaving is None:
        return []
    return [
        f"{leaving.machines} machines left, {leaving.notice_s:g} s after their notice: {run.moved:,} requests moved with their "
        f"KV, {run.recomputed:,} were computed again."
    ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1000 * seconds:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"
