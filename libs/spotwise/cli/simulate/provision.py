"""`spotwise simulate provision`: searches which machines to buy, and how many of each (Splitwise, section 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from spotwise.cli.bench.plot import require_plotting
from spotwise.cli.bench.report import environment, report_console, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.options import (
    ArrivalsOption,
    DecodeModelOption,
    JobsOption,
    JointlyOption,
    JsonOption,
    ModelOption,
    RunsOption,
    TraceOption,
    WorkloadOption,
    parse_designs,
    parse_model,
    parse_split,
    parse_workload,
    recorded_profile,
)
from spotwise.cli.simulate.progress import Simulations
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.clusters import Design, Split
from spotwise.simulator.runs.designs import DESIGNS, SPLITWISE_HA
from spotwise.simulator.runs.experiment import Case
from spotwise.simulator.runs.plots import plot_bars, save
from spotwise.simulator.runs.provisioning import (
    BestSplit,
    Objective,
    Provisioned,
    best_split,
    cheapest_split,
    splits_within,
)
from spotwise.simulator.runs.search import Grid
from spotwise.simulator.runs.workload import ArrivalKind


class Aim(StrEnum):
    """What to optimise."""

    THROUGHPUT = "throughput"
    COST = "cost"
    POWER = "power"
    MACHINES = "machines"


def provision(
    objective: Annotated[Aim, typer.Option(help="Minimum of this for --rate, or maximum throughput of a budget.")],
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests per second that must be served.")] = None,
    max_cost: Annotated[float | None, typer.Option(min=0, help="Budget: US dollars an hour.")] = None,
    max_power: Annotated[float | None, typer.Option(min=0, help="Budget: power, one DGX-A100 is 1.")] = None,
    max_machines: Annotated[int | None, typer.Option(min=1, help="Budget: machines.")] = None,
    designs: Annotated[str, typer.Option(help="Designs, separated by commas; by default all.")] = ",".join(DESIGNS),
    most: Annotated[str, typer.Option(help="Upper bounds of prompt and token machines, for --rate.")] = "100,60",
    workload: WorkloadOption = "conv",
    trace: TraceOption = None,
    arrivals: ArrivalsOption = ArrivalKind.POISSON,
    jointly: JointlyOption = False,
    seconds: Annotated[float, typer.Option(min=0.001, help="Seconds of arrivals.")] = 120.0,
    step: Annotated[float, typer.Option(min=0.001, help="Rates are multiples of this.")] = 10.0,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds: a rate must hold in all; limits are means.")] = 1,
    model: ModelOption = "bloom-176b",
    decode_model: DecodeModelOption = DecodeModel.HONEST,
    profile: Annotated[Path | None, typer.Option(help="Fit the machines' costs to this CSV.")] = None,
    jobs: JobsOption = None,
    runs: RunsOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the designs side by side into FILE.png, .svg or .pdf.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Search numbers of machines, design by design, for an objective under all nine latency objectives."""
    chosen = parse_designs(designs)
    bounds = parse_split(most, SPLITWISE_HA, "--most")
    if recorded_profile(profile) is not None:
        raise OptionError(
            f"--profile {profile}: a recorded profile; provisioning is among the paper's machines, so give a CSV of their costs"
        )
    load = parse_workload(workload, trace, arrivals, jointly=jointly)
    name = parse_model(model)
    if plot is not None:
        require_plotting(plot)
    require_writable(json)
    require_writable(runs, "--runs")
    console = report_console()
    simulations = Simulations(console, jobs, runs)

    def case(design: Design, at_rate: float | None) -> Case:
        smallest = Split(1) if design.token is None else Split(1, 1)
        return Case(design.cluster(smallest), load, at_rate, seconds, 0, name, decode_model, profile)

    if objective is Aim.THROUGHPUT:
        if rate is not None:
            raise OptionError("--rate: not with --objective throughput, which searches the rate; give a budget")
        within = _budget(max_cost, max_power, max_machines)
        # The search converges from any guess; this one is near typical answers.
        grid = Grid(step, 1000 * step, 8 * step)
        searches = {
            design.name: best_split(case(design, None), design, within(design), grid, tuple(range(seeds)))
            for design in chosen
        }
        found = simulations.carry_out(searches, "searching")
        rows: dict[str, ProvisionRow | None] = {key: _carried(DESIGNS[key], best) for key, best in found.items()}
        tried = {
            key: [_split(split) | {"rates": limit.rates} for split, limit in best.tried] for key, best in found.items()
        }
    else:
        if rate is None:
            raise OptionError("--rate: missing; give the requests per second that must be served")
        if (max_cost, max_power, max_machines) != (None, None, None):
            raise OptionError(
                "--max-cost, --max-power, --max-machines: not with a rate; budgets are for --objective throughput"
            )
        minimised = Objective(objective.value)
        fits = {design.name: _within(design, bounds) for design in chosen}
        needed = simulations.carry_out(
            {
                design.name: cheapest_split(
                    case(design, rate), design, minimised, tuple(range(seeds)), fits[design.name]
                )
                for design in chosen
            },
            "searching",
        )
        rows = {key: _served(DESIGNS[key], rate, answer) for key, answer in needed.items()}
        tried = {
            key: [_split(split) | {"holds": holds} for split, holds in answer.tried] for key, answer in needed.items()
        }
    console.print(_table(rows, objective))
    document = {"environment": environment(simulation="provision"), "designs": rows, "tried": tried}
    write_document(document, json, console)
    if plot is not None:
        shown = {key: row for key, row in rows.items() if row is not None}
        save(plot_bars({figure: {key: row[figure] for key, row in shown.items()} for figure in _FIGURES}), plot)
        console.print(f"drawn into {plot}", style="dim")


#: A design's figures by name.
ProvisionRow = Mapping[str, float]

_FIGURES = {
    "requests/s": "{:,.1f}",
    "prompt machines": "{:,.0f}",
    "token machines": "{:,.0f}",
    "cost, $/h": "{:,.0f}",
    "power, DGX-A100": "{:,.1f}",
}


def _budget(
    max_cost: float | None, max_power: float | None, max_machines: int | None
) -> Callable[[Design], Sequence[Split]]:
    measures: list[tuple[float | None, Objective]] = [
        (max_cost, Objective.COST),
        (max_power, Objective.POWER),
        (max_machines, Objective.MACHINES),
    ]
    given = [(budget, measure) for budget, measure in measures if budget is not None]
    if len(given) != 1:
        raise OptionError("--objective throughput: give one of --max-cost, --max-power and --max-machines")
    budget, measure = given[0]

    def within(design: Design) -> Sequence[Split]:
        try:
            return splits_within(design, budget, lambda split: measure.of(design, split))
        except ValueError as error:
            raise OptionError(f"--max-{measure.value}: {error}") from error

    return within


def _within(design: Design, most: Split) -> Split:
    """Return the bounds of a design; a baseline may have as many machines as both kinds together."""
    return most if design.token is not None else Split(most.machines)


def _carried(design: Design, best: BestSplit) -> ProvisionRow:
    return _row(design, best.split, best.limit.mean) | {"95 % of the mean, +-": best.limit.half_width or 0.0}


def _served(design: Design, rate: float, answer: Provisioned) -> ProvisionRow | None:
    return None if answer.split is None else _row(design, answer.split, rate)


def _split(split: Split) -> dict[str, Any]:
    return {"prompt_machines": split.prompt, "token_machines": split.token}


def _row(design: Design, split: Split, rate: float) -> dict[str, float]:
    figures = (rate, split.prompt, split.token, design.price_per_hour(split), design.power(split))
    return dict(zip(_FIGURES, map(float, figures), strict=True))


def _table(rows: Mapping[str, ProvisionRow | None], objective: Aim) -> Table:
    table = Table(header_style="bold")
    table.add_column("design")
    for heading in (*_FIGURES, "per $/h", "per DGX-A100 of power"):
        table.add_column(heading, justify="right")
    figure = {Aim.THROUGHPUT: "requests/s", Aim.COST: "cost, $/h", Aim.POWER: "power, DGX-A100"}.get(objective)
    sign = -1 if objective is Aim.THROUGHPUT else 1

    def rank(item: tuple[str, ProvisionRow | None]) -> float:
        row = item[1]
        if row is None:
            return float("inf")
        return sign * (row["prompt machines"] + row["token machines"] if figure is None else row[figure])

    for name, row in sorted(rows.items(), key=rank):
        if row is None:
            table.add_row(name, "no split holds within --most")
            continue
        cells = [shown.format(row[heading]) for heading, shown in _FIGURES.items()]
        per_dollar = row["requests/s"] / row["cost, $/h"]
        per_power = row["requests/s"] / row["power, DGX-A100"]
        table.add_row(name, *cells, f"{per_dollar:.4f}", f"{per_power:.2f}")
    return table
