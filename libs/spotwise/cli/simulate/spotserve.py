"""`spotwise simulate paper spotserve`: serving on machines that are taken away, beside the paper's figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.options import told_plainly
from spotwise.cli.simulate.progress import Runs, Simulations
from spotwise.cli.simulate.spotserve_placement import placement_document, placement_table
from spotwise.cli.simulate.spotserve_tables import (
    LEGEND,
    alone_table,
    findings_document,
    golden_document,
    golden_table,
    headline_table,
    study_table,
    within_line,
)
from spotwise.simulator.runs.plots import save
from spotwise.simulator.spotserve.cases import SpotSummary, simulate_spot
from spotwise.simulator.spotserve.findings import Findings, headlines
from spotwise.simulator.spotserve.golden import alone_answers, golden_answers, read_all_tables
from spotwise.simulator.spotserve.placement_traces import placements
from spotwise.simulator.spotserve.plots import plot_study
from spotwise.simulator.spotserve.studies import Scope, Study, studies

#: The study that needs no runs, and the one that takes minutes and is made only where it is named.
GOLDEN, PLACEMENT = "golden", "placement"
_FOLDER = "spot-traces"


def _told(run: SpotSummary) -> str:
    return f"{run.case.system.name} on {run.case.availability.name}"


SPOT = Runs(simulate_spot, SpotSummary, _told)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for.

    Attributes:
        data: folder with `spotserve/` and `bamboo/`.
        studies: what is run.
        is_golden: whether the optimizer's answers are compared.
        placement_seeds: with which ways of placing are compared; none: they are not.
        figures: a folder for drawings; `None` draws none.
    """

    data: Path
    studies: tuple[Study, ...]
    is_golden: bool
    placement_seeds: tuple[int, ...]
    figures: Path | None


def published_folder(data: Path | None) -> Path:
    """Return the folder with the published traces of machines.

    Raises:
        OptionError: none is given, or they are not in it.
    """
    if data is None:
        raise OptionError("spotserve: needs --data, a folder with spot-traces/spotserve/ as published")
    folder = data / _FOLDER
    if not (folder / "spotserve").is_dir():
        raise OptionError(f"--data {data}: {_FOLDER}/spotserve/ is not there")
    return folder


def scope_of(folder: Path, quick: bool, seeds: int | None) -> Scope:
    """Return how much is run: all of it, or one seed and two hours of whole traces."""
    whole = Scope(folder)
    return Scope(folder, tuple(range(seeds or (1 if quick else len(whole.seeds)))), 2.0 if quick else None)


def parse_asked(text: str | None, scope: Scope, figures: Path | None) -> Asked:
    """Studies by their names; without, all but that of placing.

    Raises:
        OptionError: one of them is none.
    """
    known = {study.name: study for study in studies(scope)}
    every = (GOLDEN, *known, PLACEMENT)
    names = [GOLDEN, *known] if text is None else list(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [name for name in names if name not in every]:
        raise OptionError(f"--studies {unknown[0]!r}: choose some of {', '.join(every)}")
    chosen = tuple(known[name] for name in names if name in known)
    seeds = tuple(range(max(2, len(scope.seeds)))) if PLACEMENT in names else ()  # an interval needs two
    return Asked(scope.data, chosen, GOLDEN in names, seeds, figures)


def measure(asked: Asked, simulations: Simulations) -> dict[str, Any]:
    """Run all studies, print them and what they say of the paper's claims, and return them for a document.

    Raises:
        CommandError: a file of the data is wrong, or the file of runs cannot be used.
    """
    console = simulations.console
    document: dict[str, Any] = {}
    if asked.is_golden:
        with told_plainly():
            tables = read_all_tables(asked.data / "spotserve")
        answers, alone = golden_answers(tables), alone_answers(tables)
        console.print(golden_table(answers))
        console.print(alone_table(alone))
        document |= golden_document(answers, alone)
    cases = [case for study in asked.studies for point in study.points for case in point.cases]
    runs = simulations.run_all(cases, SPOT, "preemptible machines") if cases else {}
    found = {study.name: Findings.of(study, runs) for study in asked.studies}
    for findings in found.values():
        console.print(study_table(findings))
    if found:
        console.print(LEGEND, style="dim")
    if line := within_line(found):
        console.print(line)
    if rows := headlines(found):
        console.print(headline_table(rows))
    if asked.placement_seeds:
        with told_plainly(), console.status("placing requests"):
            placed = placements(asked.data, asked.placement_seeds)
        console.print(placement_table(placed))
        document["placement"] = placement_document(placed)
    if asked.figures is not None:
        for name, findings in found.items():
            path = asked.figures / f"spotserve-{name}.png"
            save(plot_study(findings), path)
            console.print(f"drawn into {path}", style="dim")
    return document | findings_document(found, rows)
