"""`spotwise simulate run`: one cluster under one load, with all its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.bench.plot import require_plotting
from spotwise.cli.bench.report import environment, report_console, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.number_lists import ascending
from spotwise.cli.simulate.documents import run_document, write_document
from spotwise.cli.simulate.options import (
    ArrivalsOption,
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
from spotwise.cli.simulate.run_tables import bill, bill_line, latency_table, pool_table, sentences
from spotwise.core.cost_profile import CostProfile
from spotwise.core.fleet.market import Market
from spotwise.core.fleet.prices import PriceSeries
from spotwise.simulator.costs.hardware import BLOOM_176B
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.clusters import Cluster, Design, Split
from spotwise.simulator.runs.designs import PAPER_SPLITS
from spotwise.simulator.runs.experiment import Case, RunSummary
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.plots import plot_batch_sizes, plot_latencies, save
from spotwise.simulator.runs.search import Search
from spotwise.simulator.runs.serving_policy import USUAL_POLICY
from spotwise.simulator.runs.workload import ArrivalKind

_NOTICE_S = 30.0
#: Name of a cluster of recorded machines.
_RECORDED = "Recorded"


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
    json: JsonOption = None,
) -> None:
    """Simulate one design, and report latencies, objectives, utilisation, cost and power."""
    load = parse_workload(workload, trace, arrivals, jointly=jointly)
    recorded = recorded_profile(profile)
    if recorded is None:
        cluster = _paper_machines(design, machines, workload, price, prices)
    else:
        if design is not None:
            raise OptionError(
                f"--design {design!r}: {profile} has one kind of machine; give only their numbers, --machines 4,2"
            )
        if model != BLOOM_176B.name or decode_model is not DecodeModel.HONEST:
            raise OptionError(
                f"--model, --decode-model: {profile} already has its model's iteration times; leave them out"
            )
        cluster = _recorded_machines(machines, recorded, price)
    with command_errors():
        paid = _price_series(prices, price, instance_type, zone, market)
    is_own = arrivals is ArrivalKind.TRACE
    case = Case(
        cluster,
        load,
        None,
        seconds if seconds is not None or is_own else 120.0,
        seed,
        parse_model(model),
        decode_model,
        None if recorded is not None else profile,
        replace(USUAL_POLICY, chunk_tokens=chunk_tokens),
        changes=_leaving_machines(leaving, notice, cluster.split),
    )
    if plot is not None:
        require_plotting(plot)
    require_writable(json)
    console = report_console()
    swept: list[float | None] = [None if is_own else 50.0]
    if rates is not None:
        swept = [*ascending(rates, float, "--rates", "requests per second like 40,60,80")]
    cases = [replace(case, rate=rate) for rate in swept]
    runs = list(Simulations(console, jobs).carry_out(dict(enumerate(map(_single, cases))), "simulating").values())
    for summary in runs:
        console.print(latency_table(summary))
        console.print(pool_table(summary))
        for line in [*sentences(summary), *bill_line(summary, paid)]:
            console.print(line)
    about = environment(simulation="run")
    documents = [run_document(summary) | {"bill_usd": bill(summary, paid)} for summary in runs]
    write_document({"environment": about, "runs": documents}, json, console)
    if plot is not None:
        figure = plot_latencies({case.label: runs}) if len(runs) > 1 else plot_batch_sizes(runs, case.label)
        save(figure, plot)
        console.print(f"drawn into {plot}", style="dim")


def _leaving_machines(text: str | None, notice: float | None, split: Split) -> tuple[MachineChange, ...]:
    if text is None and notice is not None:
        raise OptionError("--notice: no machine leaves; say which with --leaving 4@60, or leave it out")
    if text is None:
        return ()
    machines, _, at_s = text.partition("@")
    try:
        leaving = MachineChange(
            float(at_s), MachineChangeKind.NOTICE, int(machines), notice_s=_NOTICE_S if notice is None else notice
        )
    except ValueError:
        leaving = None
    if leaving is None or leaving.machines >= split.machines:
        raise OptionError(f"--leaving {text!r}: write how many machines and when, like 4@60; at least one must stay")
    return (leaving,)


def _paper_machines(
    design: str | None, machines: str | None, workload: str, price: float, prices: Path | None
) -> Cluster:
    if price or prices is not None:
        option = "--price" if price else "--prices"
        raise OptionError(
            f"{option}: only for a recorded machine; give its --profile, or leave it out for the paper's machines"
        )
    chosen = parse_design(design or "HA")
    if machines is not None:
        return chosen.cluster(parse_split(machines, chosen))
    splits = PAPER_SPLITS["iso-power", workload if workload in ("code", "conv") else "conv"]
    return chosen.cluster(splits[chosen.name])


def _recorded_machines(machines: str | None, recorded: CostProfile, price: float) -> Cluster:
    split = parse_recorded_split(machines, recorded)
    kind = OwnMachine(recorded.name, recorded, price)
    return Design(_RECORDED, kind, kind if split.token else None).cluster(split)


def _price_series(
    prices: Path | None, price: float, instance_type: str | None, zone: str | None, market: Market
) -> PriceSeries | None:
    if prices is not None and price:
        raise OptionError("--price: --prices has all prices; leave one of the two out")
    listed = parse_prices(prices, instance_type, zone)
    return None if listed is None else listed[0].of(listed[1], zone, market, 0.0)


def _single(case: Case) -> Search[RunSummary]:
    (summary,) = yield [case]
    return summary
