"""`spotwise simulate paper`: a paper's headlines, its numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from spotwise.cli.bench.plot import require_plotting
from spotwise.cli.bench.report import environment, report_console, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.simulate import fastserve, spotserve
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.options import (
    TIMED,
    JobsOption,
    JsonOption,
    RunsOption,
    parse_seeds,
    told_plainly,
)
from spotwise.cli.simulate.paper_figures import draw_figures
from spotwise.cli.simulate.paper_tables import (
    comparison_document,
    comparison_table,
    headline_table,
    headlines_document,
    limits_table,
)
from spotwise.cli.simulate.progress import Simulations
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.search import Grid, Search
from spotwise.simulator.runs.workload import Workload
from spotwise.simulator.splitwise.headlines import headlines
from spotwise.simulator.splitwise.paper import (
    Cluster,
    Findings,
    Scope,
    clusters,
    limit_searches,
    provisioning_searches,
    saturation_searches,
)
from spotwise.simulator.splitwise.published_runs import compare, read_published_runs

_SECONDS = 120.0
_QUICK_SECONDS = 20.0


class Paper(StrEnum):
    """Which paper."""

    SPLITWISE = "splitwise"
    FASTSERVE = "fastserve"
    SPOTSERVE = "spotserve"


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
    which: Annotated[Paper, typer.Argument(help="Which paper: splitwise, fastserve or spotserve.")],
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="SPOTWISE_DATA",
            help="Folder with traces/ and profiles/ as published, else what comes along; for spotserve with spot-traces/.",
        ),
    ] = None,
    decode_models: Annotated[
        list[DecodeModel] | None,
        typer.Option(
            "--decode-model",
            help=f"A column each; by default published and honest. {TIMED}",
        ),
    ] = None,
    measure_headlines: Annotated[
        bool, typer.Option("--headlines/--no-headlines", help="Measure the headlines; without, only --published-runs.")
    ] = True,
    published_runs: Annotated[
        bool, typer.Option("--published-runs", help="Check against the published simulator's runs in --data, too.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=1, help="How long requests arrive; by default 120.")] = None,
    step: Annotated[float | None, typer.Option(min=0.1, help="Rates are multiples of this; by default 10.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Limits are means over so many; by default 3.")] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=10, help="fastserve: how many come in a run; by default 1000, and more or fewer in some."),
    ] = None,
    studies: Annotated[
        str | None,
        typer.Option(help="fastserve, spotserve: which studies, by their names, with commas between; all without."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, short runs, few values: minutes instead of hours, and coarse.")
    ] = False,
    jobs: JobsOption = None,
    runs: RunsOption = None,
    figures: Annotated[Path | None, typer.Option(help="Draw the paper's figures into this folder.")] = None,
    json: JsonOption = None,
) -> None:
    """Measure the headlines of a paper in the simulator, and put them beside the paper's."""
    if figures is not None:
        require_plotting(figures / "figure.png", "--figures")
    require_writable(json)
    require_writable(runs, "--runs")
    if which is Paper.FASTSERVE:
        _refuse(which, decode_model=decode_models, no_headlines=not measure_headlines, published_runs=published_runs)
        _refuse(which, seconds=seconds, step=step)
        own_scope = fastserve.scope_of(quick, seeds, requests, Data(data).traces["conv"])
        asked = fastserve.Asked(fastserve.parse_studies(studies, own_scope), figures)
        simulations = Simulations(report_console(), jobs, runs)
        _write(which, fastserve.measure(asked, simulations), simulations, quick, json)
        return
    if which is Paper.SPOTSERVE:
        _refuse(which, decode_model=decode_models, no_headlines=not measure_headlines, published_runs=published_runs)
        _refuse(which, seconds=seconds, step=step, requests=requests)
        of_machines = spotserve.scope_of(spotserve.published_folder(data), quick, seeds)
        wanted = spotserve.parse_asked(studies, of_machines, figures)
        simulations = Simulations(report_console(), jobs, runs)
        _write(which, spotserve.measure(wanted, simulations), simulations, quick, json)
        return
    _refuse(which, requests=requests, studies=studies)
    files = Data(data)
    if published_runs and files.published is None:
        raise OptionError("--published-runs: needs --data with profiles/splitwise_sim_replay.csv")
    if not measure_headlines and not published_runs:
        raise OptionError("--no-headlines: nothing is left to do without --published-runs")
    console = report_console()
    simulations = Simulations(console, jobs, runs)
    models = list(dict.fromkeys(decode_models or (DecodeModel.PUBLISHED, DecodeModel.HONEST)))
    document: dict[str, Any] = {
        "environment": environment(simulation=f"paper {which.value}", decode_models=models, quick=quick)
    }
    if published_runs:
        assert files.published is not None
        document |= _check_published(files, files.published, simulations)
    if measure_headlines:
        step = step or (20.0 if quick else 10.0)
        scope = Scope(
            files.workloads(),
            seconds or (_QUICK_SECONDS if quick else _SECONDS),
            Grid(step, 100 * step, 80.0 if step <= 80 else step),
            parse_seeds(seeds or (1 if quick else 3)),
            profile=files.profile,
        )
        scopes = {model: replace(scope, decode_model=model) for model in models}
        found = _measure(scopes, simulations)
        document |= headlines_document(found)
        if figures is not None:
            for model, of_model in found.items():
                for path in draw_figures(scopes[model], of_model, figures / model.value, simulations):
                    console.print(f"drawn into {path}", style="dim")
    write_document(document, json, console)


def _write(which: Paper, found: dict[str, Any], simulations: Simulations, quick: bool, json: Path | None) -> None:
    document = {"environment": environment(simulation=f"paper {which.value}", quick=quick)}
    write_document(document | found, json, simulations.console)


def _refuse(which: Paper, **options: object) -> None:
    """Refuse options that say nothing of a paper.

    Raises:
        OptionError: one of them was given.
    """
    for name, given in options.items():
        if given:
            raise OptionError(f"--{name.replace('_', '-')}: says nothing of the paper {which.value}")


def _measure(scopes: Mapping[DecodeModel, Scope], simulations: Simulations) -> dict[DecodeModel, Findings]:
    """Carry out all searches at once, by whatever model of time, and print what came out."""
    searches: dict[tuple[DecodeModel, str, Cluster | str], Search[Any]] = {}
    for model, scope in scopes.items():
        asked: dict[str, Mapping[Any, Search[Any]]] = {
            "limit": limit_searches(scope, clusters()),
            "cheapest": provisioning_searches(scope),
            "saturated": saturation_searches(scope),
        }
        searches |= {(model, kind, key): search for kind, some in asked.items() for key, search in some.items()}
    results = simulations.carry_out(searches, "headlines")

    def of(model: DecodeModel, kind: str) -> dict[Any, Any]:
        return {key: result for (by, what, key), result in results.items() if (by, what) == (model, kind)}

    found = {model: Findings(of(model, "limit"), of(model, "saturated"), of(model, "cheapest")) for model in scopes}
    for model, of_model in found.items():
        simulations.console.print(limits_table(of_model.limits, model))
    simulations.console.print(headline_table(headlines(found), list(found)))
    return found


def _check_published(files: Data, published: Path, simulations: Simulations) -> dict[str, Any]:
    """Search our limits beside the published simulator's, print them, and return them for the document."""
    with told_plainly():
        lines = read_published_runs(published)
    searches = {
        cluster: compare(cluster, runs, Workload(cluster.workload, files.traces[cluster.workload]), files.profile)
        for cluster, runs in lines.items()
    }
    results = simulations.carry_out(searches, "published runs")
    simulations.console.print(comparison_table(results))
    agreeing = sum(comparison.agrees for comparison in results.values())
    simulations.console.print(f"{agreeing} of {len(results)} limits agree within one step of 10 requests/s.")
    clusters_found = [comparison_document(cluster, comparison) for cluster, comparison in results.items()]
    return {"published_runs": {"agree": agreeing, "clusters": clusters_found}}


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None
