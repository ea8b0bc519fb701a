"""Simulations under a bar: one step a run, and what the last one was."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spotwise.cli.errors import CommandError
from spotwise.cli.simulate.options import processors, told_plainly
from spotwise.simulator.experiment import RunSummary, simulate
from spotwise.simulator.kept_runs import KeptRuns
from spotwise.simulator.parallel import drive
from spotwise.simulator.search import Search

_Key = TypeVar("_Key", bound=Hashable)
_Result = TypeVar("_Result")


@contextmanager
def runs_bar(console: Console, description: str) -> Iterator[Callable[[RunSummary], None]]:
    """Show how many runs are over; a search does not know beforehand how many it needs, so the bar has no end."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} runs"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=None)

        def finished(run: RunSummary) -> None:
            rate = "" if run.case.rate is None else f" at {run.case.rate:g}/s"
            verdict = "holds" if run.verdict.holds else "breaks " + ", ".join(run.verdict.broken or ["a request"])
            progress.update(task, advance=1, description=f"{description}: {run.case.label}{rate} {verdict}")

        yield finished


@dataclass(frozen=True, slots=True)
class Simulations:
    """How searches are carried to their ends.

    Attributes:
        console: has the bar.
        jobs: processes; `None` for as many as processors.
        kept: a file of runs, which spares those that are in it and gets the others; `None` keeps none.
    """

    console: Console
    jobs: int | None
    kept: Path | None = None

    def carry_out(self, searches: Mapping[_Key, Search[_Result]], description: str) -> dict[_Key, _Result]:
        """Carry searches to their ends under a bar.

        Raises:
            CommandError: a trace or a profile is none, or the file of runs cannot be used.
        """
        run = simulate if self.kept is None else KeptRuns(self.kept)
        try:
            with told_plainly(), runs_bar(self.console, description) as finished:
                return drive(searches, processors(self.jobs), finished, run)
        except OSError as error:
            raise CommandError(f"{error.filename or self.kept or description}: {error.strerror or error}") from error
