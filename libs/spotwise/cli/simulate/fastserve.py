"""`spotwise simulate paper fastserve`: queues, preemption and swapping on one engine, beside the paper's figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.fastserve_tables import LEGEND, findings_document, headline_table, study_table
from spotwise.cli.simulate.progress import Runs, Simulations
from spotwise.simulator.fastserve.findings import Findings, headlines
from spotwise.simulator.fastserve.job_runs import JobSummary, simulate_jobs
from spotwise.simulator.fastserve.plots import plot_peaks, plot_study
from spotwise.simulator.fastserve.studies import Scope, Study, studies
from spotwise.simulator.runs.plots import save


def _told(run: JobSummary) -> str:
    return f"{run.case.scheduler.value} on {run.case.engine} at {run.case.rate:g}/s"


JOBS = Runs(simulate_jobs, JobSummary, _told)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for.

    Attributes:
        studies: what is run.
        figures: a folder for drawings; `None` draws none.
    """

    studies: tuple[Study, ...]
    figures: Path | None


def scope_of(quick: bool, seeds: int | None, jobs: int | None, conv: Path | None) -> Scope:
    """Return how much is run: all of it, or coarsely; with other numbers of jobs all runs are longer or shorter."""
    whole = Scope()
    count = jobs or (400 if quick else whole.jobs)
    share = count / whole.jobs
    return Scope(
        jobs=count,
        artifact_jobs=whole.artifact_jobs if jobs is None else max(2, round(whole.artifact_jobs * share)),
        long_jobs=max(8, round(whole.long_jobs * share)),
        seeds=tuple(range(seeds or (1 if quick else len(whole.seeds)))),
        thin=quick,
        conv=conv,
    )


def parse_studies(text: str | None, scope: Scope) -> tuple[Study, ...]:
    """Studies by their names; all without.

    Raises:
        OptionError: one of them is none.
    """
    known = {study.name: study for study in studies(scope)}
    names = list(known) if text is None else list(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise OptionError(f"--studies {unknown[0]!r}: choose some of {', '.join(known)}")
    return tuple(known[name] for name in names)


def measure(asked: Asked, simulations: Simulations) -> dict[str, Any]:
    """Run all studies, print them and what they say of the paper's claims, and return them for a document.

    Raises:
        CommandError: a trace is none, or the file of runs cannot be used.
    """
    console = simulations.console
    cases = [case for study in asked.studies for point in study.points for case in point.cases]
    runs = simulations.run_all(cases, JOBS, "jobs")
    found = {study.name: Findings.of(study, runs) for study in asked.studies}
    for findings in found.values():
        console.print(study_table(findings))
    console.print(LEGEND, style="dim")
    if rows := headlines(found):
        console.print(headline_table(rows))
    if asked.figures is not None:
        for name, findings in found.items():
            path = asked.figures / f"{name}.png"
            save(plot_peaks(findings) if name == "peak-kv" else plot_study(findings), path)
            console.print(f"drawn into {path}", style="dim")
    return findings_document(found, rows)
