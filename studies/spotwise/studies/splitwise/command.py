"""`spotwise simulate paper splitwise`: clusters with prompt and token machines, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from spotwise.cli.bench.report import environment, report_console
from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.options import TIMED, JobsOption, JsonOption, RunsOption, command_errors
from spotwise.cli.simulate.progress import Simulations
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.searches.search import Grid, Search
from spotwise.studies.options import (
    CheckOption,
    DataOption,
    FiguresOption,
    PublishedFiles,
    QuickOption,
    SeedsOption,
    require_outputs,
)
from spotwise.studies.splitwise.figures import draw_figures
from spotwise.studies.splitwise.headlines import ClusterHeadline, headlines
from spotwise.studies.splitwise.paper import (
    ClusterFindings,
    ClusterScope,
    PaperCluster,
    clusters,
    limit_searches,
    provisioning_searches,
    saturation_searches,
)
from spotwise.studies.splitwise.published_runs import compare, read_published_runs
from spotwise.studies.splitwise.tables import (
    comparison_document,
    comparison_table,
    headlines_document,
    headlines_table,
    limits_table,
    unsteady_limits,
)
from spotwise.studies.study_tables import require_close

_SECONDS, _QUICK_SECONDS = 120.0, 20.0
_STEP, _QUICK_STEP = 10.0, 20.0
_SEEDS = 3
#: Requests per second at which searches start.
_FIRST_GUESS = 80.0


def splitwise(
    data: DataOption = None,
    decode_models: Annotated[
        list[DecodeModel] | None,
        typer.Option("--decode-model", help=f"Timings, a column each; by default published and honest. {TIMED}"),
    ] = None,
    measure_headlines: Annotated[
        bool, typer.Option("--headlines/--no-headlines", help="Measure the headlines; without, only --published-runs.")
    ] = True,
    published_runs: Annotated[
        bool, typer.Option("--published-runs", help="Check against the published simulator's runs in --data, too.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=1, help="Seconds of arrivals; by default 120.")] = None,
    step: Annotated[float | None, typer.Option(min=0.1, help="Rates are multiples of this; by default 10.")] = None,
    seeds: SeedsOption = None,
    quick: QuickOption = False,
    jobs: JobsOption = None,
    runs: RunsOption = None,
    figures: FiguresOption = None,
    json: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Measure the Splitwise paper's headlines in the simulator: clusters with prompt machines and token machines."""
    require_outputs(json, runs, figures)
    files = PublishedFiles(data)
    if published_runs and files.runs is None:
        raise OptionError("--published-runs: needs --data with profiles/splitwise_sim_replay.csv")
    if not measure_headlines and not published_runs:
        raise OptionError("--no-headlines: nothing is left to do without --published-runs")
    if check and not measure_headlines:
        raise OptionError("--check: needs the headlines; leave --no-headlines out")
    simulations = Simulations(report_console(), jobs, runs)
    models = list(dict.fromkeys(decode_models or (DecodeModel.PUBLISHED, DecodeModel.HONEST)))
    document: dict[str, Any] = {
        "environment": environment(simulation="paper splitwise", decode_models=models, quick=quick)
    }
    if published_runs:
        assert files.runs is not None
        document |= _check_published(files, files.runs, simulations)
    rows: list[ClusterHeadline] = []
    if measure_headlines:
        step = step or (_QUICK_STEP if quick else _STEP)
        scope = ClusterScope(
            files.workloads(),
            seconds or (_QUICK_SECONDS if quick else _SECONDS),
            Grid(step, 100 * step, max(_FIRST_GUESS, step)),
            tuple(range(seeds or (1 if quick else _SEEDS))),
            profile=files.profile,
        )
        scopes = {model: replace(scope, decode_model=model) for model in models}
        found = _measure(scopes, simulations)
        document |= headlines_document(found)
        rows = headlines(found)
        if figures is not None:
            for model, of_model in found.items():
                for path in draw_figures(scopes[model], of_model, figures / model.value, simulations):
                    simulations.console.print(f"drawn into {path}", style="dim")
    write_document(document, json, simulations.console)
    if check:
        differing = [f"{row.name} ({model.value})" for row in rows for model in row.measured if row.differs(model)]
        require_close(differing, sum(len(row.measured) for row in rows))


def _measure(
    scopes: Mapping[DecodeModel, ClusterScope], simulations: Simulations
) -> dict[DecodeModel, ClusterFindings]:
    searches: dict[tuple[DecodeModel, str, PaperCluster | str], Search[Any]] = {}
    for model, scope in scopes.items():
        kinds: dict[str, Mapping[Any, Search[Any]]] = {
            "limit": limit_searches(scope, clusters()),
            "cheapest": provisioning_searches(scope),
            "saturated": saturation_searches(scope),
        }
        searches |= {(model, kind, key): search for kind, some in kinds.items() for key, search in some.items()}
    results = simulations.carry_out(searches, "headlines")

    def of(model: DecodeModel, kind: str) -> dict[Any, Any]:
        return {key: result for (by, what, key), result in results.items() if (by, what) == (model, kind)}

    found = {
        model: ClusterFindings(of(model, "limit"), of(model, "saturated"), of(model, "cheapest")) for model in scopes
    }
    for model, of_model in found.items():
        simulations.console.print(limits_table(of_model.limits, model))
        for line in unsteady_limits(of_model.limits, scopes[model].seconds):
            simulations.console.print(line, style="yellow", highlight=False)
    simulations.console.print(headlines_table(headlines(found), list(found)))
    return found


def _check_published(files: PublishedFiles, published: Path, simulations: Simulations) -> dict[str, Any]:
    with command_errors():
        lines = read_published_runs(published)
    searches = {
        cluster: compare(cluster, runs, files.traces[cluster.workload], files.profile)
        for cluster, runs in lines.items()
    }
    results = simulations.carry_out(searches, "published runs")
    simulations.console.print(comparison_table(results))
    agreeing = sum(comparison.agrees for comparison in results.values())
    simulations.console.print(f"{agreeing} of {len(results)} limits agree within half a step of 10 requests/s.")
    clusters_found = [comparison_document(cluster, comparison) for cluster, comparison in results.items()]
    return {"published_runs": {"agree": agreeing, "clusters": clusters_found}}
