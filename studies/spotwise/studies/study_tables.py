"""A paper's studies run, printed, drawn and put into a JSON document; each paper gives its columns, figures and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.table import Table

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.simulate.progress import Runs, Simulations
from spotwise.simulator.runs.plots import save
from spotwise.simulator.runs.run_summary import STEADY_SHARE
from spotwise.simulator.searches.kept_runs import Describing
from spotwise.studies.study import (
    Finding,
    Findings,
    Headline,
    PointPlace,
    Study,
    StudyPoint,
    StudyRun,
    findings_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Case = TypeVar("_Case", bound=Describing)
_Run = TypeVar("_Run", bound=StudyRun)
_Finding = TypeVar("_Finding", bound=Finding[Any, Any])

#: A heading, and a finding's cell below it.
Column = tuple[str, Callable[[_Finding], str]]


@dataclass(frozen=True, slots=True)
class StudyPaper(Generic[_Case, _Run, _Finding]):
    """A paper whose results are studies. `finding` makes a finding of a point's runs; `title` and `columns` are of a study's
    table, `legend` explains them; `is_numeric`: the places of all studies are numbers.
    """

    runs: Runs[_Case, _Run]
    description: str
    finding: Callable[[Study[_Case], StudyPoint[_Case], tuple[_Run, ...]], _Finding]
    title: Callable[[Findings[_Finding]], str]
    columns: Callable[[Findings[_Finding]], Sequence[Column[_Finding]]]
    legend: str
    plot: Callable[[Findings[_Finding]], Figure]
    figure_prefix: str = ""
    is_numeric: bool = False

    def measure(self, studies: Sequence[Study[_Case]], simulations: Simulations) -> dict[str, Findings[_Finding]]:
        """Run studies and print their tables; returns findings by the study's name.
        A wrong file of the data, or a file of runs that cannot be used, raises `CommandError`.
        """
        cases = [case for study in studies for case in study.cases]
        runs = simulations.run_all(cases, self.runs, self.description) if cases else {}
        found = {study.name: findings_of(study, runs, self.finding) for study in studies}
        for findings in found.values():
            simulations.console.print(self.table(findings))
            for line in unsteady_lines(findings):
                simulations.console.print(line, style="yellow", highlight=False)
        if found:
            simulations.console.print(self.legend, style="dim")
        return found

    def table(self, found: Findings[_Finding]) -> Table:
        """Return a row for each line at each place."""
        table = Table(header_style="bold", title=self.title(found), title_justify="left", title_style="")
        for axis in found.study.axes:
            if self.is_numeric:
                table.add_column(axis, justify="right")
            else:
                table.add_column(axis, no_wrap=True)
        table.add_column("", no_wrap=True)
        columns = self.columns(found)
        for heading, _ in columns:
            table.add_column(heading, justify="right")
        previous: PointPlace | None = None
        for finding in found.points:
            place = finding.point.place
            if previous is not None and place != previous:
                table.add_section()
            shown = ["" if place == previous else _value(at) for at in place]
            table.add_row(*shown, finding.point.line, *(cell(finding) for _, cell in columns))
            previous = place
        return table

    def draw(self, found: Mapping[str, Findings[_Finding]], folder: Path, simulations: Simulations) -> None:
        """Draw each study into a file of the folder."""
        for name, findings in found.items():
            path = folder / f"{self.figure_prefix}{name}.png"
            save(self.plot(findings), path)
            simulations.console.print(f"drawn into {path}", style="dim")


def unsteady_lines(found: Findings[Any]) -> list[str]:
    """Return at which places a study's lines reach no steady state."""
    unsteady = [finding.point for finding in found.points if not finding.is_steady]
    if not unsteady:
        return []
    places: dict[str, list[str]] = {}
    for point in unsteady:
        places.setdefault(point.line, []).append(" ".join(map(_value, point.place)))
    lines = "; ".join(f"{line} at {', '.join(at)}" for line, at in places.items())
    return [
        f"{found.study.name}: {len(unsteady)} of {len(found.points)} points reach no steady state (latency is above "
        f"{STEADY_SHARE:g} of the time in which requests arrive, or some have no answer) and depend on its length: {lines}"
    ]


def range_headline_table(rows: Sequence[Headline], name_width: int | None = None) -> Table:
    """Return the paper's range, ours, and why they differ."""
    return headline_table(
        ["ours"],
        (
            [
                row.name,
                "" if row.paper is None else _range(row.paper),
                coloured(_range(row.ours), row.is_close is not False),
                row.why,
            ]
            for row in rows
        ),
        name_width,
        why_width=70,
    )


def headline_table(
    ours: Sequence[str], rows: Iterable[Sequence[str]], name_width: int | None = None, why_width: int = 60
) -> Table:
    """Return a row for each claim: its name, the paper's figure, one or more columns of ours, and why they differ."""
    table = Table(header_style="bold", show_lines=True)
    table.add_column("headline", max_width=name_width)
    table.add_column("paper", justify="right")
    for heading in ours:
        table.add_column(heading, justify="right")
    table.add_column("where they differ, why", max_width=why_width)
    for row in rows:
        table.add_row(*row)
    return table


def coloured(text: str, is_close: bool) -> str:
    """Return a figure in the colour that shows whether it is the paper's."""
    return f"[{'green' if is_close else 'yellow'}]{text}[/]"


def headline_documents(rows: Sequence[Headline]) -> list[dict[str, Any]]:
    """Return headlines as parts of a document."""
    return [
        {"name": row.name, "paper": row.paper, "ours": row.ours, "close": row.is_close, "why": row.why} for row in rows
    ]


def require_close(differing: Sequence[str], measured: int) -> None:
    """Raise `CommandError` where headlines differ from the paper's, or none was measured, for `--check`."""
    if not measured:
        raise CommandError("--check: no headline was measured; choose studies that have one")
    if differing:
        raise CommandError(f"--check: {len(differing)} of {measured} headlines differ: {'; '.join(differing)}")


def check_headlines(rows: Sequence[Headline], differing: Sequence[str] = (), others: int = 0) -> None:
    """Raise `CommandError` where one of the headlines that the paper has a number for differs, or one of `others` besides."""
    stated = [row for row in rows if row.is_close is not None]
    require_close([*differing, *(row.name for row in stated if not row.is_close)], len(stated) + others)


def choose_studies(text: str | None, every: Sequence[str], by_default: Sequence[str]) -> list[str]:
    """Return the names of a comma-separated list, each once; the default without a list; one not in `every`: `OptionError`."""
    names = list(by_default) if text is None else list(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [name for name in names if name not in every]:
        raise OptionError(f"--studies {unknown[0]!r}: choose some of {', '.join(every)}")
    return names


def _value(at: float | str) -> str:
    return at if isinstance(at, str) else f"{at:g}"


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.2f}".rstrip("0").rstrip(".") if end < 100 else f"{end:.0f}" for end in ends)
    return low if low == high else f"{low} to {high}"
