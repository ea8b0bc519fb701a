"""`spotwise simulate paper`: a paper's headlines, its numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spotwise.cli.bench.plot import require_plotting
from spotwise.cli.bench.report import environment, report_console, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.documents import run_document, write_document
from spotwise.cli.simulate.options import parse_seeds, processors, told_plainly
from spotwise.cli.simulate.paper_figures import draw_figures
from spotwise.cli.simulate.progress import runs_bar
from spotwise.simulator.designs import DESIGNS
from spotwise.simulator.machine_costs import DecodeModel
from spotwise.simulator.parallel import drive
from spotwise.simulator.published_runs import Comparison, PublishedCluster, compare, read_published_runs
from spotwise.simulator.search import Grid, Limit, Search
from spotwise.simulator.splitwise_headlines import Headline, headlines
from spotwise.simulator.splitwise_paper import (
    Cluster,
    Findings,
    Scope,
    clusters,
    limit_searches,
    provisioning_searches,
    saturation_searches,
)
from spotwise.simulator.workload import Workload

_SECONDS = 120.0
_QUICK_SECONDS = 20.0


class Paper(StrEnum):
    """Which paper."""

    SPLITWISE = "splitwise"


class Data:
    """The files of a folder with `traces/` and `profiles/`, as far as they are there.

    Raises:
        OptionError: the folder is none, or has none of the files.
    """

    def __init__(self, folder: Path | None) -> None:
        self.traces = {
            name: None if folder is None else _file(folder / "traces" / f"AzureLLMInferenceTrace_{name}.csv")
            for name in ("code", "conv")
        }
        self.profile = None if folder is None else _file(folder / "profiles" / "splitwise_perf_model.csv")
        self.published = None if folder is None else _file(folder / "profiles" / "splitwise_sim_replay.csv")
        if folder is not None and not any((*self.traces.values(), self.profile, self.published)):
            raise OptionError(f"--data {folder}: neither traces/ nor profiles/ with the published files are there")

    def workloads(self) -> dict[str, Workload]:
        """The trace where there is one, otherwise sizes with its percentiles."""
        return {name: Workload(name, path) for name, path in self.traces.items()}


def paper(
    which: Annotated[Paper, typer.Argument(help="Which paper: splitwise.")],
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="SPOTWISE_DATA", help="Folder with traces/ and profiles/ as published; else what comes along."
        ),
    ] = None,
    decode_model: Annotated[
        DecodeModel, typer.Option(help="How iterations are timed: as measured, or as the published simulator has it.")
    ] = DecodeModel.HONEST,
    published_runs: Annotated[
        bool, typer.Option("--published-runs", help="Check against the published simulator's runs in --data instead.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=1, help="How long requests arrive; by default 120.")] = None,
    step: Annotated[float | None, typer.Option(min=0.1, help="Rates are multiples of this; by default 10.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Limits are means over so many; by default 3.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, 20 seconds, steps of 20: minutes instead of hours, and coarse.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a processor.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Draw the paper's figures into this folder.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure the headlines of a paper in the simulator, and put them beside the paper's."""
    if figures is not None:
        require_plotting(figures / "figure.png")
    require_writable(json)
    files = Data(data)
    console = report_console()
    about = environment(simulation=f"paper {which.value}", decode_model=decode_model.value, quick=quick)
    if published_runs:
        if files.published is None:
            raise OptionError("--published-runs: needs --data with profiles/splitwise_sim_replay.csv")
        _check_published(files, files.published, processors(jobs), console, json, about)
        return
    step = step or (20.0 if quick else 10.0)
    scope = Scope(
        files.workloads(),
        seconds or (_QUICK_SECONDS if quick else _SECONDS),
        Grid(step, 100 * step, 80.0 if step <= 80 else step),
        parse_seeds(seeds or (1 if quick else 3)),
        decode_model=decode_model,
        profile=files.profile,
    )
    limits, provisioning, saturation = (
        limit_searches(scope, clusters()),
        provisioning_searches(scope),
        saturation_searches(scope),
    )
    searches: dict[tuple[str, Cluster | str], Search[Any]] = {}
    searches |= {("limit", cluster): limit for cluster, limit in limits.items()}
    searches |= {("provisioning", question): machines for question, machines in provisioning.items()}
    searches |= {("saturation", design): throughput for design, throughput in saturation.items()}
    with told_plainly(), runs_bar(console, "splitwise") as finished:
        results = drive(searches, processors(jobs), finished)
    found = Findings(
        {cluster: results["limit", cluster] for cluster in limits},
        {design: results["saturation", design] for design in saturation},
        {question: results["provisioning", question] for question in provisioning},
    )
    rows = headlines(found, decode_model)
    console.print(limits_table(found.limits))
    console.print(headline_table(rows))
    document = {
        "environment": about,
        "headlines": [_headline_document(row) for row in rows],
        "limits": [_limit_document(cluster, limit) for cluster, limit in found.limits.items()],
    }
    write_document(document, json, console)
    if figures is not None:
        for path in draw_figures(scope, found, figures, processors(jobs)):
            console.print(f"drawn into {path}", style="dim")


def limits_table(limits: Mapping[Cluster, Limit]) -> Table:
    """The highest rate of every cluster, requests a second: a row a question, a column a design."""
    table = Table(
        header_style="bold", title="highest rate that keeps all nine objectives, requests/s", title_justify="left"
    )
    table.add_column("machines for, and asked")
    for design in DESIGNS:
        table.add_column(design.removeprefix("Splitwise-"), justify="right")
    questions = dict.fromkeys((cluster.budget, cluster.made_for, cluster.asked) for cluster in limits)
    for question in questions:
        cells = []
        for design in DESIGNS:
            limit = limits.get(Cluster(*question, design))
            if limit is None:
                cells.append("")
            else:
                width = limit.half_width
                cells.append(f"{limit.mean:.0f}" if not width else f"{limit.mean:.0f} ± {width:.0f}")
        budget, made_for, asked = question
        table.add_row(f"{budget}, {made_for}" + ("" if asked == made_for else f", asked {asked}"), *cells)
    return table


def headline_table(rows: list[Headline]) -> Table:
    """The paper's number, ours, and what to know where they differ."""
    table = Table(header_style="bold")
    table.add_column("headline")
    for heading in ("paper", "ours", "ours/paper"):
        table.add_column(heading, justify="right")
    table.add_column("ours rests on", max_width=60)
    for row in rows:
        if row.ours is None:
            table.add_row(row.name, f"{row.paper:g}", "none", "", row.about)
            continue
        ours = f"{row.ours:.2f}" + ("" if row.spread is None else f" ({row.spread[0]:.2f}–{row.spread[1]:.2f})")
        ratio = row.ours / row.paper
        colour = "yellow" if row.differs else "green"
        table.add_row(row.name, f"{row.paper:g}", ours, f"[{colour}]{ratio:.2f}[/]", row.about)
    return table


def _check_published(
    files: Data, published: Path, jobs: int, console: Console, json: Path | None, about: dict[str, Any]
) -> None:
    with told_plainly(), runs_bar(console, "published runs") as finished:
        lines = read_published_runs(published)
        searches = {
            cluster: compare(cluster, runs, Workload(cluster.workload, files.traces[cluster.workload]), files.profile)
            for cluster, runs in lines.items()
        }
        results = drive(searches, jobs, finished)
    console.print(comparison_table(results))
    agreeing = sum(comparison.agrees for comparison in results.values())
    console.print(f"{agreeing} of {len(results)} limits agree within one step of 10 requests/s.")
    document = {
        "environment": about,
        "agree": agreeing,
        "clusters": [_comparison_document(cluster, comparison) for cluster, comparison in results.items()],
    }
    write_document(document, json, console)


def comparison_table(results: Mapping[PublishedCluster, Comparison]) -> Table:
    """The published simulator's limits and ours."""
    table = Table(
        header_style="bold", title="highest rate that keeps all nine objectives, requests/s", title_justify="left"
    )
    for heading in ("decode model", "workload", "design", "machines"):
        table.add_column(heading)
    for heading in ("published", "ours", "agrees"):
        table.add_column(heading, justify="right")
    for cluster, comparison in results.items():
        split = cluster.split
        table.add_row(
            cluster.decode_model.value,
            cluster.workload,
            cluster.design,
            f"{split.prompt}, {split.token}" if split.token else str(split.prompt),
            _interval(comparison),
            "none" if comparison.ours is None else f"{comparison.ours:g}",
            "[green]yes" if comparison.agrees else "[red]no",
        )
    return table


def _interval(comparison: Comparison) -> str:
    if comparison.holds is None:
        return f"< {comparison.breaks:g}"
    return f"{comparison.holds:g}" if comparison.breaks is not None else f">= {comparison.holds:g}"


def _headline_document(row: Headline) -> dict[str, Any]:
    return {
        "name": row.name,
        "paper": row.paper,
        "ours": row.ours,
        "ratio": None if row.ours is None else row.ours / row.paper,
        "spread": row.spread,
        "about": row.about,
    }


def _limit_document(cluster: Cluster, limit: Limit) -> dict[str, Any]:
    return {
        "budget": cluster.budget,
        "made_for": cluster.made_for,
        "asked": cluster.asked,
        "design": cluster.design,
        "prompt_machines": cluster.split.prompt,
        "token_machines": cluster.split.token,
        "rates": limit.rates,
        "mean": limit.mean,
        "half_width_95": limit.half_width,
        "runs": [run_document(run) for run in limit.runs],
    }


def _comparison_document(cluster: PublishedCluster, comparison: Comparison) -> dict[str, Any]:
    return {
        "decode_model": cluster.decode_model.value,
        "workload": cluster.workload,
        "design": cluster.design,
        "prompt_machines": cluster.split.prompt,
        "token_machines": cluster.split.token,
        "published_holds": comparison.holds,
        "published_breaks": comparison.breaks,
        "ours": comparison.ours,
        "agrees": comparison.agrees,
        "runs": [run_document(run) for run in comparison.runs],
    }


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None
