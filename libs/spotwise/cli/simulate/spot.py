"""`spotwise simulate spot`: one's own fleet of instances that come and go, under one's own load, served by several systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.bench.plot import require_plotting
from spotwise.cli.bench.report import environment, report_console, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import parse_size
from spotwise.cli.plan.model_shapes import parse_model_shape
from spotwise.cli.profile_files import load_lines, read_profile
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.fleet_plot import plot_fleet
from spotwise.cli.simulate.market_options import (
    BudgetOption,
    FleetFileOption,
    FloorOption,
    HoldOption,
    InstanceTypeOption,
    LatencyTargetOption,
    PricesOption,
    SparesOption,
    ZoneOption,
    parse_prices,
    purchase_terms,
)
from spotwise.cli.simulate.options import JobsOption, JsonOption, WorkloadOption, command_errors, parse_workload
from spotwise.cli.simulate.progress import Simulations
from spotwise.cli.simulate.spot_report import FleetInputs, fleet_document, fleet_table, input_lines, unserved_lines
from spotwise.core.costs.cost_profile import BUILT_IN, CostProfile
from spotwise.core.messages.fleet import Market
from spotwise.files.prices import PriceList
from spotwise.files.spot_traces import SpotTrace, read_spot_trace
from spotwise.simulator.loads.workload import ArrivalKind
from spotwise.simulator.runs.plots import save
from spotwise.simulator.spotserve.fleet_results import simulate_fleet
from spotwise.simulator.spotserve.own_fleet import (
    COMPARED,
    USUALLY_COMPARED,
    compared_systems,
    least_pipeline,
    own_arrivals,
    own_model,
    usual_rate,
    usual_size,
)
from spotwise.simulator.spotserve.pricing import FleetPricing, NodePlace, PurchaseTerms, read_nodes
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.systems import SpotSurroundings

#: The model of the built-in profile.
_BUILT_IN_MODEL = "llama2-70b"
_USUAL = SpotSurroundings()


def spot(
    trace: Annotated[
        Path, typer.Option(help="Availability: lines of milliseconds,add|remove,node, or SpotServe's JSON lists.")
    ],
    load: Annotated[Path | None, typer.Option(help="Requests of this trace, at their own times and sizes.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Requests a second, at random; with --load, its gaps are scaled to this rate."),
    ] = None,
    workload: WorkloadOption = "conv",
    fleet: FleetFileOption = None,
    budget: BudgetOption = None,
    on_demand_floor: FloorOption = None,
    spares: SparesOption = None,
    latency_target: LatencyTargetOption = None,
    hold: HoldOption = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="Costs of one device, a file of `spotwise profile`; by default a built-in DGX-H100."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The profiled model: a name that `spotwise plan` knows, or its folder.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, max=8, help="Devices of an instance, each as profiled; by default 1.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Of a device, for weights and KV, like 80GiB; by default as the profiled worker had."),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Requests of a pipeline at once; by default up to 32, as fit its KV cache."),
    ] = None,
    prices: PricesOption = None,
    price: Annotated[
        float | None,
        typer.Option(min=0, help="One price for every instance, US dollars an hour, in place of --prices."),
    ] = None,
    instance_type: InstanceTypeOption = None,
    zone: ZoneOption = None,
    nodes: Annotated[
        Path | None,
        typer.Option(help="CSV node,zone,market of the trace's nodes; others are spot instances in --zone."),
    ] = None,
    between: Annotated[str | None, typer.Option(help="Only this part of the trace, seconds like 600,4200.")] = None,
    drain: Annotated[
        float, typer.Option(min=0, max=1e7, help="Seconds after the trace's end at which a run ends, served or not.")
    ] = 600.0,
    notice: Annotated[
        float, typer.Option(min=0, help="Seconds from an instance's notice until it is gone.")
    ] = _USUAL.grace_s,
    restart: Annotated[
        float, typer.Option(min=0, help="Seconds of an engine's restart, without the loading of weights.")
    ] = _USUAL.restart_s,
    network: Annotated[
        str | None, typer.Option(help="Bytes a second of an instance's network; by default the profile's link, or 5GB.")
    ] = None,
    within: Annotated[str, typer.Option(help="Bytes a second between devices of an instance.")] = "10GB",
    storage: Annotated[str, typer.Option(help="Bytes a second from storage into an instance.")] = "1GB",
    systems: Annotated[
        str | None,
        typer.Option(
            help=f"Which of {', '.join(COMPARED)} to compare, separated by commas; by default all but eager that can be."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals and sizes.")] = 0,
    jobs: JobsOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw instances, configurations and open requests over time into this file.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Serve a load on instances that come and go; compare spotwise with restarts and with rerouting, and bill each."""
    market = purchase_terms(
        fleet,
        {
            "budget_per_h": budget,
            "on_demand_floor": on_demand_floor,
            "spare_instances": spares,
            "latency_target_s": latency_target,
            "hold_s": hold,
        },
        {
            "--profile": profile,
            "--devices": devices,
            "--memory": memory,
            "--prices": prices,
            "--price": price,
            "--instance-type": instance_type,
            "--zone": zone,
            "--nodes": nodes,
        },
    )
    names = _system_names(systems, is_bought=market is not None)
    if plot is not None:
        require_plotting(plot)
    require_writable(json)
    console = report_console()
    arrive = ArrivalKind.POISSON if load is None else ArrivalKind.TRACE
    requests = parse_workload(workload, load, arrive, jointly=False)
    costs = BUILT_IN if profile is None else read_profile(profile, "--profile")
    if market is not None:
        costs, devices = market.kind.profile, market.kind.devices
    surroundings = SpotSurroundings(
        grace_s=notice,
        restart_s=restart,
        network_bytes_per_s=_network(network, costs),
        local_bytes_per_s=parse_size(within, "--within"),
        storage_bytes_per_s=parse_size(storage, "--storage"),
    )
    with command_errors():
        whole = read_spot_trace(trace)
        begins_s, nodes_trace = (0.0, whole) if between is None else _part(whole, between)
        if nodes_trace.end_s <= 0:
            raise OptionError(
                f'--trace {trace}: it ends at 0 s; write a last line [milliseconds, "DONE", {{}}], or later events'
            )
        places = {} if nodes is None else read_nodes(nodes, whole)
        pricing = _pricing(prices, price, instance_type, zone, places, begins_s)
        if pricing is not None:
            pricing.require_prices(nodes_trace)
        size = usual_size(requests, seed)
        shape = parse_model_shape(
            _model_name(profile or fleet, model), lambda text: console.print(text, style="yellow", highlight=False)
        )
        try:
            served = own_model(
                costs,
                shape,
                size,
                surroundings,
                devices=devices or 1,
                device_bytes=_device_bytes(memory, market),
                max_batch=max_batch,
            )
        except ValueError as error:
            raise OptionError(f"--model {shape.name}: {error}") from error
        least = least_pipeline(nodes_trace, served, size)
        assumed_rate = usual_rate(nodes_trace, served, size) if rate is None and load is None else rate
        arrivals = own_arrivals(requests, assumed_rate, nodes_trace.end_s, seed, size)
    on_demand = tuple(node for node, place in places.items() if place.market is Market.ON_DEMAND)
    runs = [
        SpotRun(
            nodes_trace,
            arrivals,
            served,
            system,
            surroundings,
            on_demand_nodes=on_demand,
            drain_s=drain,
            keeps_rate=True,
            market=market,
        )
        for system in compared_systems(names, None if least is None else least[1])
    ]
    inputs = FleetInputs(
        nodes_trace,
        arrivals,
        served,
        costs,
        surroundings,
        drain,
        pricing,
        seed,
        assumed_rate,
        None if least is None else least[0],
        market,
    )
    given = {"the machine (--profile)": profile or fleet, "the load (--load, --rate)": load or rate}
    assumed = [what for what, option in given.items() if option is None]
    for line in input_lines(inputs, assumed):
        console.print(line, highlight=False)
    for line in load_lines(costs, inputs.beyond):
        console.print(line, style="yellow", highlight=False)
    results = Simulations(console, jobs).each(runs, simulate_fleet, lambda result: result.system, "simulating")
    console.print(fleet_table(inputs, results))
    for line in unserved_lines(inputs, results):
        console.print(line, style="yellow", highlight=False)
    write_document({"environment": environment(simulation="spot"), **fleet_document(inputs, results)}, json, console)
    if plot is not None:
        save(plot_fleet(nodes_trace, results), plot)
        console.print(f"drawn into {plot}", style="dim")


def _system_names(text: str | None, *, is_bought: bool) -> list[str]:
    possible = [name for name, system in COMPARED.items() if system.adapts or not is_bought]
    usual = [name for name in possible if name in USUALLY_COMPARED]
    names = usual if text is None else list(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [name for name in names if name not in COMPARED]:
        raise OptionError(f"--systems {unknown[0]!r}: choose of {', '.join(COMPARED)}")
    if fixed := [name for name in names if name not in possible]:
        raise OptionError(
            f"--systems {fixed[0]}: it chooses no configuration, by which --fleet buys; choose of {', '.join(possible)}"
        )
    return names


def _device_bytes(memory: str | None, market: PurchaseTerms | None) -> int | None:
    if market is not None:
        return market.kind.memory_bytes
    return None if memory is None else parse_size(memory, "--memory")


def _network(text: str | None, costs: CostProfile) -> float:
    if text is not None:
        return parse_size(text, "--network")
    return _USUAL.network_bytes_per_s if costs.link is None else costs.link.bytes_per_s


def _part(trace: SpotTrace, text: str) -> tuple[float, SpotTrace]:
    start, _, end = text.partition(",")
    try:
        from_s, to_s = float(start), float(end)
        return from_s, trace.part(from_s, min(to_s, trace.end_s))
    except ValueError:
        raise OptionError(
            f"--between {text!r}: write two times within the trace's {trace.end_s:g} s, like 600,4200"
        ) from None


def _model_name(profile: Path | None, model: str | None) -> str:
    if model is None and profile is not None:
        raise OptionError(f"{profile}: say which model was profiled with --model, its folder or its name")
    return model or _BUILT_IN_MODEL


def _pricing(
    prices: Path | None,
    price: float | None,
    instance_type: str | None,
    zone: str | None,
    places: dict[str, NodePlace],
    begins_s: float,
) -> FleetPricing | None:
    if prices is not None and price is not None:
        raise OptionError("--price: --prices has all prices; leave one of the two out")
    listed = parse_prices(prices, instance_type, zone)
    if listed is not None:
        return FleetPricing(*listed, zone, places, begins_s)
    return None if price is None else FleetPricing(PriceList.flat(price), "", None, places)
