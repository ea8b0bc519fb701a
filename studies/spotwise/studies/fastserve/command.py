"""`spotwise simulate paper fastserve`: queues, preemption and swapping on one engine, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from spotwise.cli.bench.report import environment, report_console
from spotwise.cli.simulate.documents import write_document
from spotwise.cli.simulate.options import JobsOption, JsonOption, RunsOption
from spotwise.cli.simulate.progress import Runs, Simulations
from spotwise.studies.fastserve.engines import ENGINES, Scheduler
from spotwise.studies.fastserve.findings import JobFinding, JobFindings, headlines
from spotwise.studies.fastserve.job_runs import JobCase, JobSummary, simulate_jobs
from spotwise.studies.fastserve.plots import plot_study
from spotwise.studies.fastserve.studies import STEADY, JobScope, JobStudy, sizes_name, studies
from spotwise.studies.options import (
    CheckOption,
    DataOption,
    FiguresOption,
    PublishedFiles,
    QuickOption,
    SeedsOption,
    StudiesOption,
    require_outputs,
)
from spotwise.studies.study import Headline
from spotwise.studies.study_tables import (
    Column,
    StudyPaper,
    check_headlines,
    choose_studies,
    headline_documents,
    range_headline_table,
)

_QUICK_JOBS = 400
_FCFS = Scheduler.FCFS.value
_LEGEND = (
    "JCT: mean, median and percentiles, seconds; the same per output token. FCFS /: mean JCT of FCFS over this. busy: share of "
    "the time in which the engine computed. left: jobs not ended when the last one came. peak KV: tokens, device and host. GB: "
    "KV swapped, both ways. again: jobs computed again."
)


def fastserve(
    data: DataOption = None,
    seeds: SeedsOption = None,
    requests: Annotated[
        int | None, typer.Option(min=10, help="Requests of a run; by default 1000, and more or fewer in some studies.")
    ] = None,
    studies: StudiesOption = None,
    quick: QuickOption = False,
    jobs: JobsOption = None,
    runs: RunsOption = None,
    figures: FiguresOption = None,
    json: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Measure the FastServe paper's headlines in the simulator: queues, preemption and swapping on one engine."""
    require_outputs(json, runs, figures)
    scope = scope_of(quick, seeds, requests, PublishedFiles(data).traces["conv"])
    chosen = parse_studies(studies, scope)
    simulations = Simulations(report_console(), jobs, runs)
    found = PAPER.measure(chosen, simulations)
    if rows := headlines(found):
        simulations.console.print(range_headline_table(rows))
    if figures is not None:
        PAPER.draw(found, figures, simulations)
    about = environment(simulation="paper fastserve", quick=quick)
    write_document({"environment": about, **findings_document(found, rows)}, json, simulations.console)
    if check:
        check_headlines(rows)


def scope_of(quick: bool, seeds: int | None, requests: int | None, conv: Path | None) -> JobScope:
    """Return how much is run: all of it, or coarsely; another number of requests scales all runs."""
    whole = JobScope()
    jobs = requests or (_QUICK_JOBS if quick else whole.jobs)
    share = jobs / whole.jobs
    return JobScope(
        jobs=jobs,
        artifact_jobs=whole.artifact_jobs if requests is None else max(2, round(whole.artifact_jobs * share)),
        long_jobs=max(8, round(whole.long_jobs * share)),
        seeds=tuple(range(seeds or (1 if quick else len(whole.seeds)))),
        thin=quick,
        conv=conv,
    )


def parse_studies(text: str | None, scope: JobScope) -> list[JobStudy]:
    """Return studies by their names, all without any; an unknown name raises `OptionError`."""
    known = {study.name: study for study in studies(scope)}
    return [known[name] for name in choose_studies(text, list(known), list(known))]


def _describe(run: JobSummary) -> str:
    return f"{run.case.scheduler.value} on {run.case.engine} at {run.case.rate:g}/s"


def _title(found: JobFindings) -> str:
    case = found.points[0].runs[0].case
    engine, queues, seeds = case.built_engine, case.queues, len(found.points[0].runs)
    limit = "no promotion" if queues.starve_limit_s is None else f"promoted after {queues.starve_limit_s:g} s"
    parts = (
        engine.name,
        f"batch {engine.batch}" + (f" in each of {engine.stages} stages" if engine.stages > 1 else ""),
        f"KV {engine.kv_tokens:,} tokens",
        sizes_name(case.sizes),
        f"{case.rate:g} jobs/s, CV {case.cv:g}",
        f"{case.jobs} jobs, {seeds} seed" + ("" if seeds == 1 else "s"),
        f"quantum ratio {queues.quantum_ratio:g}, {limit}, {queues.when_full.value}, K {queues.spare_slots}",
    )
    return f"{found.study.title} ({found.study.name})\n{'; '.join(parts)}"


def _columns(found: JobFindings) -> list[Column[JobFinding]]:
    columns = [
        (name, _jct(figure)) for name, figure in (("JCT s", "mean"), ("p50", "p50"), ("p95", "p95"), ("p99", "p99"))
    ]
    columns += [
        (name, _jct_per_token(figure)) for name, figure in (("s/token", "mean"), ("p95", "p95"), ("p99", "p99"))
    ]
    if any(finding.published_per_token_s is not None for finding in found.points):
        columns.append(("published", _published))
    if _FCFS in found.study.lines:
        fcfs = found.line(_FCFS)
        columns.append(("FCFS /", lambda own: f"{fcfs[own.point.place].jct_s['mean'] / own.jct_s['mean']:.2f}x"))
    return [
        *columns,
        ("busy", lambda finding: f"{finding.mean('utilisation'):.0%}"),
        ("left", lambda finding: f"{finding.mean('live_at_last_arrival'):.0f}"),
        ("peak KV", lambda finding: f"{finding.mean('peak_kv_tokens'):,.0f}"),
        ("GB", lambda finding: f"{finding.mean('swapped_bytes') / 1e9:,.0f}"),
        ("again", lambda finding: f"{finding.mean('preemptions'):.0f}"),
    ]


def _jct(figure: str) -> Callable[[JobFinding], str]:
    return lambda finding: _seconds(finding.jct_s[figure])


def _jct_per_token(figure: str) -> Callable[[JobFinding], str]:
    return lambda finding: f"{finding.jct_per_token_s[figure]:.3f}"


def _published(finding: JobFinding) -> str:
    published = finding.published_per_token_s
    return "" if published is None else f"{published:.3f}"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


PAPER = StudyPaper(
    Runs(simulate_jobs, JobSummary, _describe),
    "jobs",
    JobFinding,
    _title,
    _columns,
    _LEGEND,
    plot_study,
    is_numeric=True,
)


def findings_document(found: Mapping[str, JobFindings], rows: Sequence[Headline]) -> dict[str, Any]:
    """Return all headlines, and the studies behind them with every parameter."""
    return {
        "headlines": headline_documents(rows),
        "engines": {
            name: asdict(engine) | {"kv_token_bytes": engine.model.kv_token_bytes} for name, engine in ENGINES.items()
        },
        "studies": [
            {
                "name": findings.study.name,
                "title": findings.study.title,
                "axis": findings.study.axes[0],
                "jobs_in_the_middle_only": findings.study.name in STEADY,
                "points": [_point_document(finding) for finding in findings.points],
            }
            for findings in found.values()
        ],
    }


def _point_document(finding: JobFinding) -> dict[str, Any]:
    means = ("utilisation", "live_at_last_arrival", "peak_kv_tokens", "swapped_bytes", "preemptions")
    return {
        "at": finding.at,
        "line": finding.point.line,
        "steady_state": finding.is_steady,
        "jct_s": finding.jct_s,
        "jct_per_token_s": finding.jct_per_token_s,
        "published_per_token_s": finding.published_per_token_s,
        **{figure: finding.mean(figure) for figure in means},
        "runs": [asdict(run) | {"case": _case_document(run.case)} for run in finding.runs],
    }


def _case_document(case: JobCase) -> dict[str, Any]:
    described = asdict(case)
    path = described["sizes"].pop("path", None)
    return described | {"sizes": described["sizes"] | {"is": sizes_name(case.sizes), "trace": path and path.name}}
