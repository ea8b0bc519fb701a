"""`spotwise simulate provision`: searches which machines to buy, and how many of each (Splitwise, section 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from spotwise.cli.bench.report import environment, report_console, require_plotting, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.option_groups import OptionGroup, with_option_groups
from spotwise.cli.simulate.candidates import CandidateOptions, Candidates, FittedCostOptions, chosen_candidates
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.options import JobsOption, JsonOption, LoadOptions, RunsOption, parse_split
from spotwise.cli.simulate.progress import Simulations
from spotwise.cli.simulate.run_marks import beyond_marks
from spotwise.simulator.runs.clusters import SPLITWISE_HA, Design, Split
from spotwise.simulator.runs.plots import plot_bars, save
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.provisioning import (
    BestSplit,
    Objective,
    Provisioned,
    best_split,
    cheapest_split,
    splits_within,
)
from spotwise.simulator.searches.search import Grid

#: A design's figures by name.
ProvisionRow = Mapping[str, float]
ROW_FIGURES = {
    "requests/s": "{:,.1f}",
    "prompt machines": "{:,.0f}",
    "token machines": "{:,.0f}",
    "cost, $/h": "{:,.0f}",
    "power, DGX-A100": "{:,.1f}",
}


class Aim(StrEnum):
    """What to optimise."""

    THROUGHPUT = "throughput"
    COST = "cost"
    POWER = "power"
    MACHINES = "machines"


def carried_row(design: Design, best: BestSplit) -> ProvisionRow:
    """Return the split that carries most."""
    return _row(design, best.split, best.limit.mean) | {"95 % of the mean, +-": best.limit.half_width or 0.0}


def served_row(design: Design, rate: float, answer: Provisioned) -> ProvisionRow | None:
    """Return the best split for a rate, if there is one."""
    return None if answer.split is None else _row(design, answer.split, rate)


def split_document(split: Split) -> dict[str, Any]:
    """Return a split as part of a document."""
    return {"prompt_machines": split.prompt, "token_machines": split.token}


def _row(design: Design, split: Split, rate: float) -> dict[str, float]:
    figures = (rate, split.prompt, split.token, design.price_per_hour(split), design.power(split))
    return dict(zip(ROW_FIGURES, map(float, figures), strict=True))


def provision_table(rows: Mapping[str, ProvisionRow | None], objective: Aim) -> Table:
    """Return a row for each design, the best first."""
    table = Table(header_style="bold")
    table.add_column("design")
    for heading in (*ROW_FIGURES, "per $/h", "per DGX-A100 of power"):
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
        cells = [shown.format(row[heading]) for heading, shown in ROW_FIGURES.items()]
        table.add_row(name, *cells, _per(row, "cost, $/h", "{:.4f}"), _per(row, "power, DGX-A100", "{:.2f}"))
    return table


def _per(row: ProvisionRow, figure: str, shown: str) -> str:
    """Return requests a second for each unit of a figure; nothing where it is unknown."""
    return shown.format(row["requests/s"] / row[figure]) if row[figure] else ""


class GoalOptions(OptionGroup):
    """The options that say what is sought."""

    objective: Annotated[Aim, typer.Option(help="Minimum of this for --rate, or maximum throughput of a budget.")]
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests per second that must be served.")] = None
    max_cost: Annotated[float | None, typer.Option(min=0, help="Budget: US dollars an hour.")] = None
    max_power: Annotated[float | None, typer.Option(min=0, help="Budget: power, one DGX-A100 is 1.")] = None
    max_machines: Annotated[int | None, typer.Option(min=1, help="Budget: machines.")] = None

    @property
    def budgets(self) -> list[tuple[float, Objective]]:
        """The budgets that were given, and what each is of."""
        measures: list[tuple[float | None, Objective]] = [
            (self.max_cost, Objective.COST),
            (self.max_power, Objective.POWER),
            (self.max_machines, Objective.MACHINES),
        ]
        return [(budget, measure) for budget, measure in measures if budget is not None]


@with_option_groups
def provision(
    *,
    goal: GoalOptions,
    among: CandidateOptions,
    load: LoadOptions,
    seconds: Annotated[float, typer.Option(min=0.001, help="Seconds of arrivals.")] = 120.0,
    step: Annotated[float, typer.Option(min=0.001, help="Rates are multiples of this.")] = 10.0,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds: a rate must hold in all; limits are means.")] = 1,
    costs: FittedCostOptions,
    jobs: JobsOption = None,
    runs: RunsOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the designs side by side into FILE.png, .svg or .pdf.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Search numbers of machines, design by design, for an objective under all latency objectives."""
    bounds = parse_split(among.most, SPLITWISE_HA, "--most")
    chosen = chosen_candidates(among, load.cluster_workload(), seconds, costs)
    objective, rate = goal.objective, goal.rate
    if plot is not None:
        require_plotting(plot)
    require_writable(json)
    require_writable(runs, "--runs")
    console = report_console()
    simulations = Simulations(console, jobs, runs)

    if objective is Aim.THROUGHPUT:
        if rate is not None:
            raise OptionError("--rate: not with --objective throughput, which searches the rate; give a budget")
        within = _budget(goal, chosen)
        # The search converges from any guess; this one is near typical answers.
        grid = Grid(step, 1000 * step, 8 * step)
        searches = {
            design.name: best_split(chosen.case(design, None), design, within(design), grid, tuple(range(seeds)))
            for design in chosen.designs
        }
        found = simulations.carry_out(searches, "searching")
        rows: dict[str, ProvisionRow | None] = {
            design.name: carried_row(design, found[design.name]) for design in chosen.designs
        }
        tried = {
            key: [split_document(split) | {"rates": limit.rates} for split, limit in best.tried]
            for key, best in found.items()
        }
        best_runs: dict[str, Sequence[RunSummary]] = {key: best.limit.runs_there for key, best in found.items()}
    else:
        if rate is None:
            raise OptionError("--rate: missing; give the requests per second that must be served")
        if goal.budgets:
            raise OptionError(
                "--max-cost, --max-power, --max-machines: not with a rate; budgets are for --objective throughput"
            )
        minimised = Objective(objective.value)
        chosen.require_known(minimised, f"--objective {minimised.value}")
        needed = simulations.carry_out(
            {
                design.name: cheapest_split(
                    chosen.case(design, rate), design, minimised, tuple(range(seeds)), _within(design, bounds)
                )
                for design in chosen.designs
            },
            "searching",
        )
        rows = {design.name: served_row(design, rate, needed[design.name]) for design in chosen.designs}
        tried = {
            key: [split_document(split) | {"holds": holds} for split, holds in answer.tried]
            for key, answer in needed.items()
        }
        best_runs = {key: answer.runs for key, answer in needed.items()}
    console.print(provision_table(rows, objective))
    lines, beyond = beyond_marks(best_runs)
    for line in lines:
        console.print(line, style="yellow", highlight=False)
    about = environment(simulation="provision")
    document = {"environment": about, "designs": rows, "tried": tried, "beyond_profile": beyond}
    write_document(document, json, console)
    if plot is not None:
        shown = {key: row for key, row in rows.items() if row is not None}
        save(plot_bars({figure: {key: row[figure] for key, row in shown.items()} for figure in ROW_FIGURES}), plot)
        console.print(f"drawn into {plot}", style="dim")


def _budget(goal: GoalOptions, chosen: Candidates) -> Callable[[Design], Sequence[Split]]:
    if len(goal.budgets) != 1:
        raise OptionError("--objective throughput: give one of --max-cost, --max-power and --max-machines")
    ((budget, measure),) = goal.budgets
    chosen.require_known(measure, f"--max-{measure.value}")

    def within(design: Design) -> Sequence[Split]:
        try:
            return splits_within(design, budget, lambda split: measure.of(design, split))
        except ValueError as error:
            raise OptionError(f"--max-{measure.value}: {error}") from error

    return within


def _within(design: Design, most: Split) -> Split:
    """Return the bounds of a design; a baseline may have as many machines as both kinds together."""
    return most if design.token is not None else Split(most.machines)
