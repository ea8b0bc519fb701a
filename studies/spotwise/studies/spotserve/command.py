"""`spotwise simulate paper spotserve`: serving on preemptible instances, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spotwise.cli.bench.report import environment, report_console
from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.options import JobsOption, JsonOption, RunsOption, command_errors
from spotwise.cli.simulate.progress import Runs, Simulations
from spotwise.studies.options import (
    CheckOption,
    DataOption,
    FiguresOption,
    QuickOption,
    SeedsOption,
    StudiesOption,
    require_outputs,
)
from spotwise.studies.spotserve.cases import HISTOGRAM_S, SpotSummary, simulate_spot
from spotwise.studies.spotserve.findings import SpotFinding, SpotFindings, headlines, is_close, within
from spotwise.studies.spotserve.golden import alone_answers, golden_answers, read_all_tables
from spotwise.studies.spotserve.golden_tables import alone_table, golden_document, golden_table
from spotwise.studies.spotserve.placement_tables import placement_document, placement_table
from spotwise.studies.spotserve.placement_traces import placements
from spotwise.studies.spotserve.plots import plot_study
from spotwise.studies.spotserve.studies import BURSTY, HYSTERESIS, SpotScope, SpotStudy, studies
from spotwise.studies.study import Headline
from spotwise.studies.study_tables import (
    Column,
    StudyPaper,
    check_headlines,
    choose_studies,
    coloured,
    headline_documents,
    range_headline_table,
)

#: Without runs: the optimizer's answers. Only by name, since they take minutes and more traces: placement, and hysteresis.
GOLDEN, PLACEMENT = "golden", "placement"
_FOLDER = "spot-traces"
_QUICK_HOURS = 2.0
_LEGEND = (
    "mean, p50, p99: latency of all requests that were answered, seconds, from arrival to last token. paper: what it prints, "
    "and ours over it; green is within 15 %. counted: only of requests answered before the trace ended, as the artifact "
    "counts. cut: requests whose batch a change stopped. again: tokens computed more than once. changes: of the "
    "configuration. $: of machines until the trace ended. in time: answered within three times what one takes alone; the "
    "same for each dollar."
)


def spotserve(
    data: DataOption = None,
    seeds: SeedsOption = None,
    studies: StudiesOption = None,
    quick: QuickOption = False,
    jobs: JobsOption = None,
    runs: RunsOption = None,
    figures: FiguresOption = None,
    json: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Measure the SpotServe paper's headlines in the simulator: serving on preemptible instances; needs --data."""
    require_outputs(json, runs, figures)
    scope = scope_of(published_folder(data), quick, seeds)
    known = known_studies(scope)
    names = choose_studies(
        studies, (GOLDEN, *known, PLACEMENT), (GOLDEN, *(name for name in known if name != HYSTERESIS))
    )
    simulations = Simulations(report_console(), jobs, runs)
    document: dict[str, Any] = {"environment": environment(simulation="paper spotserve", quick=quick)}
    if GOLDEN in names:
        document |= _compare_golden(scope.data, simulations)
    found = PAPER.measure([known[name] for name in names if name in known], simulations)
    for line in unanswered_lines(found):
        simulations.console.print(line, style="yellow", highlight=False)
    if line := within_line(found):
        simulations.console.print(line)
    if rows := headlines(found):
        simulations.console.print(range_headline_table(rows, name_width=50))
    if PLACEMENT in names:
        placement_seeds = range(max(2, len(scope.seeds)))  # an interval needs two
        with command_errors(), simulations.console.status("placing requests"):
            placed = placements(scope.data, tuple(placement_seeds))
        simulations.console.print(placement_table(placed))
        document["placement"] = placement_document(placed)
    if figures is not None:
        PAPER.draw(found, figures, simulations)
    write_document(document | findings_document(found, rows), json, simulations.console)
    if check:
        inexact = [cell for cell in document.get("golden", ()) if not cell["exact"]]
        optimizer = [f"{len(inexact)} of the optimizer's answers"] if inexact else []
        check_headlines(rows, optimizer, int(GOLDEN in names))


def published_folder(data: Path | None) -> Path:
    """Return the folder with the published availability traces; without them raise `OptionError`."""
    if data is None:
        raise OptionError("spotserve: needs --data, a folder with spot-traces/spotserve/ as published")
    folder = data / _FOLDER
    if not (folder / "spotserve").is_dir():
        raise OptionError(f"--data {data}: {_FOLDER}/spotserve/ is not there")
    return folder


def scope_of(folder: Path, quick: bool, seeds: int | None) -> SpotScope:
    """Return how much is run: all of it, or one seed and two hours of whole traces."""
    whole = SpotScope(folder)
    return SpotScope(folder, tuple(range(seeds or (1 if quick else len(whole.seeds)))), _QUICK_HOURS if quick else None)


def _compare_golden(folder: Path, simulations: Simulations) -> dict[str, Any]:
    with command_errors():
        tables = read_all_tables(folder / "spotserve")
    answers, alone = golden_answers(tables), alone_answers(tables)
    simulations.console.print(golden_table(answers))
    simulations.console.print(alone_table(alone))
    return golden_document(answers, alone)


def _describe(run: SpotSummary) -> str:
    return f"{run.case.system.name} on {run.case.availability.name}"


def _title(found: SpotFindings) -> str:
    return f"{found.study.title} ({found.study.name})"


def _columns(found: SpotFindings) -> list[Column[SpotFinding]]:
    columns: list[Column[SpotFinding]] = [(name, _latency("latency_s", name)) for name in ("mean", "p50", "p99")]
    if any(finding.paper_s for finding in found.points):
        for heading, figure in (("paper", "mean"), ("p99", "p99")):
            columns += [(heading, _latency("paper_s", figure)), ("x", _ratio(figure))]
    columns += [
        (heading, _latency("counted_latency_s", name)) for heading, name in (("counted", "mean"), ("p99", "p99"))
    ]
    if any(finding.unanswered for finding in found.points):
        columns.append(("unanswered", lambda finding: f"{finding.mean('unanswered'):,.0f}"))
    return [
        *columns,
        ("cut", lambda finding: f"{finding.mean('interrupted'):.0f}"),
        ("again", lambda finding: f"{finding.mean('recomputed_tokens'):,.0f}"),
        ("changes", lambda finding: f"{finding.mean_changes:.0f}"),
        ("$", lambda finding: f"{finding.mean('cost_usd'):.2f}"),
        ("in time", _in_time),
        ("per $", _per_dollar),
    ]


def _latency(attribute: str, figure: str) -> Callable[[SpotFinding], str]:
    def cell(finding: SpotFinding) -> str:
        seconds = getattr(finding, attribute).get(figure)
        if seconds is None:
            return ""
        return f"{seconds:.1f}" if seconds < 1000 else f"{seconds:.0f}"

    return cell


def _ratio(figure: str) -> Callable[[SpotFinding], str]:
    def cell(finding: SpotFinding) -> str:
        ratio = finding.ratio(figure)
        return "" if ratio is None else coloured(f"{ratio:.2f}", is_close(ratio))

    return cell


def _in_time(finding: SpotFinding) -> str:
    requests = finding.mean("requests")
    return f"{finding.mean('in_time') / requests:.0%}" if requests else ""


def _per_dollar(finding: SpotFinding) -> str:
    goodput = finding.goodput_per_dollar
    return "" if goodput is None else f"{goodput:.1f}"


PAPER = StudyPaper(
    Runs(simulate_spot, SpotSummary, _describe),
    "preemptible machines",
    SpotFinding,
    _title,
    _columns,
    _LEGEND,
    plot_study,
    figure_prefix="spotserve-",
)


def known_studies(scope: SpotScope) -> dict[str, SpotStudy]:
    """Return all studies by name."""
    return {study.name: study for study in studies(scope)}


def within_line(found: Mapping[str, SpotFindings]) -> str:
    """Return how many of the paper's latencies are reproduced; empty where none was measured."""
    close, printed = within(found)
    if not printed:
        return ""
    counted, _ = within(found, counted=True)
    bursty, _ = within(found, BURSTY)
    return (
        f"Of the {printed} latencies that the paper prints, {close} are within 15 % with the published requests, {counted} if "
        f"only those answered in time count, {bursty} with requests of the CV that the paper names."
    )


def unanswered_lines(found: Mapping[str, SpotFindings]) -> list[str]:
    """Return how many requests of each finding have no answer, and why."""
    return [
        f"{findings.study.name}, {finding.trace}, {finding.load}: {finding.point.line} leaves {finding.unanswered:,} of "
        f"{sum(run.requests for run in finding.runs):,} requests unanswered: {finding.why_unanswered}"
        for findings in found.values()
        for finding in findings.points
        if finding.unanswered
    ]


def findings_document(found: Mapping[str, SpotFindings], rows: Sequence[Headline]) -> dict[str, Any]:
    """Return all headlines, and the studies behind them with every parameter."""
    close, printed = within(found)
    return {
        "headlines": headline_documents(rows),
        "within_15_percent": {"latencies": printed, "published_requests": close},
        "histogram_bounds_s": HISTOGRAM_S,
        "studies": [
            {
                "name": findings.study.name,
                "title": findings.study.title,
                "model": findings.points[0].model,
                "points": [_point_document(finding) for finding in findings.points],
            }
            for findings in found.values()
        ],
    }


def _point_document(finding: SpotFinding) -> dict[str, Any]:
    return {
        "trace": finding.trace,
        "requests": finding.load,
        "line": finding.point.line,
        "steady_state": finding.is_steady,
        "latency_s": finding.latency_s,
        "counted_latency_s": finding.counted_latency_s,
        "paper_s": finding.paper_s,
        "goodput_per_dollar": finding.goodput_per_dollar,
        "runs": [_run_document(run) for run in finding.runs],
    }


def _run_document(run: SpotSummary) -> dict[str, Any]:
    described = asdict(run)
    del described["case"]["data"]  # a path of this machine
    return described
