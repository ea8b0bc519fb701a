"""`spotwise simulate spot`: one's own fleet of instances that come and go, under one's own load, served by several systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.bench.report import environment, report_console, require_plotting, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.option_groups import given_flags, with_option_groups
from spotwise.cli.plan.model_shapes import parse_model_shape
from spotwise.cli.profile_files import load_lines, read_profile
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.market_options import PurchaseOptions, purchase_terms
from spotwise.cli.simulate.options import JobsOption, JsonOption, command_errors
from spotwise.cli.simulate.progress import Simulations
from spotwise.cli.simulate.spot_options import (
    InstanceOptions,
    PriceOptions,
    SpotLoadOptions,
    SurroundingsOptions,
)
from spotwise.cli.simulate.spot_report import (
    FleetInputs,
    fleet_document,
    fleet_table,
    input_lines,
    plot_fleet,
    unserved_lines,
)
from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.core.messages.fleet import Market
from spotwise.files.spot_traces import SpotTrace, read_spot_trace
from spotwise.simulator.runs.plots import save
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
from spotwise.simulator.spotserve.pricing import read_nodes
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.serving import simulate_fleet


@with_option_groups
def spot(
    *,
    given: SpotLoadOptions,
    purchase: PurchaseOptions,
    instance: InstanceOptions,
    paid: PriceOptions,
    between: Annotated[str | None, typer.Option(help="Only this part of the trace, seconds like 600,4200.")] = None,
    drain: Annotated[
        float, typer.Option(min=0, max=1e7, help="Seconds after the trace's end at which a run ends, served or not.")
    ] = 600.0,
    around: SurroundingsOptions,
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
    market = purchase_terms(purchase, [*given_flags(instance, ("profile", "devices", "memory")), *given_flags(paid)])
    names = _system_names(systems, is_bought=market is not None)
    if plot is not None:
        require_plotting(plot)
    require_writable(json)
    console = report_console()
    requests = given.cluster_workload()
    described = instance.profile or purchase.fleet
    costs = BUILT_IN if instance.profile is None else read_profile(instance.profile, "--profile")
    devices = instance.devices or 1
    if market is not None:
        costs, devices = market.kind.profile, market.kind.devices
    surroundings = around.surroundings(costs)
    with command_errors():
        whole = read_spot_trace(given.trace)
        begins_s, nodes_trace = (0.0, whole) if between is None else _part(whole, between)
        if nodes_trace.end_s <= 0:
            raise OptionError(
                f'--trace {given.trace}: it ends at 0 s; write a last line [milliseconds, "DONE", {{}}], or later events'
            )
        places = {} if paid.nodes is None else read_nodes(paid.nodes, whole)
        pricing = paid.pricing(places, begins_s)
        if pricing is not None:
            pricing.require_prices(nodes_trace)
        size = usual_size(requests, seed)
        shape = parse_model_shape(
            instance.model_of(described), lambda text: console.print(text, style="yellow", highlight=False)
        )
        try:
            served = own_model(
                costs,
                shape,
                size,
                surroundings,
                devices=devices,
                device_bytes=instance.device_bytes(market),
                max_batch=instance.max_batch,
            )
        except ValueError as error:
            raise OptionError(f"--model {shape.name}: {error}") from error
        least = least_pipeline(nodes_trace, served, size)
        rate = usual_rate(nodes_trace, served, size) if given.rate is None and given.load is None else given.rate
        arrivals = own_arrivals(requests, rate, nodes_trace.end_s, seed, size)
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
        trace=nodes_trace,
        arrivals=arrivals,
        model=served,
        machine=costs,
        surroundings=surroundings,
        drain_s=drain,
        pricing=pricing,
        seed=seed,
        rate=rate,
        least_instances=None if least is None else least[0],
        market=market,
    )
    inputs_given = {"the machine (--profile)": described, "the load (--load, --rate)": given.load or given.rate}
    assumed = [what for what, option in inputs_given.items() if option is None]
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


def _part(trace: SpotTrace, text: str) -> tuple[float, SpotTrace]:
    start, _, end = text.partition(",")
    try:
        from_s, to_s = float(start), float(end)
        return from_s, trace.part(from_s, min(to_s, trace.end_s))
    except ValueError:
        raise OptionError(
            f"--between {text!r}: write two times within the trace's {trace.end_s:g} s, like 600,4200"
        ) from None
