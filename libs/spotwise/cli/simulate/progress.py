"""Simulations under a progress bar: one step a run, labelled with the last run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spotwise.cli.errors import CommandError
from spotwise.cli.simulate.options import command_errors, processors
from spotwise.simulator.compiled.loading import VARIABLE, is_compiled
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.kept_runs import Describing, KeptRuns
from spotwise.simulator.searches.parallel import drive
from spotwise.simulator.searches.search import Search

#: Seconds between two lines of progress, at least.
_LINE_EVERY_S = 15.0
_HINT = "the simulator is interpreted, at a third of its speed; this compiles it, in a minute or two: spotwise simulate compile"

_Key = TypeVar("_Key", bound=Hashable)
_Case = TypeVar("_Case", bound=Describing)
_Plain = TypeVar("_Plain", bound=Hashable)
_Run = TypeVar("_Run")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Runs(Generic[_Case, _Run]):
    """A kind of run: `run` simulates a case (must be picklable), `describe` names a finished run beside the bar."""

    run: Callable[[_Case], _Run]
    summary: type[_Run]
    describe: Callable[[_Run], str]


def _describe_run(run: RunSummary) -> str:
    rate = "" if run.case.rate is None else f" at {run.case.rate:g}/s"
    verdict = "holds" if run.verdict.holds else "breaks " + ", ".join(run.verdict.broken or ["a request"])
    return f"{run.case.label}{rate} {verdict}"


CLUSTERS = Runs(simulate, RunSummary, _describe_run)


class _ProgressLines(Generic[_Run]):
    """Lines for an output without a bar: at a run's end, `_LINE_EVERY_S` after the line before at the earliest."""

    def __init__(self, description: str, describe: Callable[[_Run], str], total: int | None) -> None:
        self._description, self._describe = description, describe
        self._of = "" if total is None else f" of {total}"
        self._runs = 0
        self._began_s = self._shown_s = time.monotonic()

    def finished(self, run: _Run) -> None:
        """Count a run."""
        self._runs += 1
        now = time.monotonic()
        if now - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = now
            after = f"{self._runs}{self._of} runs after {now - self._began_s:.0f} s"
            typer.echo(f"{self._description}: {after}, last {self._describe(run)}", err=True)


@contextmanager
def runs_bar(
    console: Console, description: str, describe: Callable[[_Run], str], total: int | None
) -> Iterator[Callable[[_Run], None]]:
    """Show the count of finished runs; the total of a search is unknown, so its bar has no end.
    Where the console is no terminal, a line on stderr now and then says how far it is.
    """
    hint_at_compiling()
    if not console.is_terminal:
        yield _ProgressLines(description, describe, total).finished
        return
    count = "{task.completed} runs" if total is None else "{task.completed} of {task.total} runs"
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(count), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)

        def finished(run: _Run) -> None:
            progress.update(task, advance=1, description=f"{description}: {describe(run)}")

        yield finished


def hint_at_compiling() -> None:
    """Tell who sits before the terminal that the simulator could be faster, unless the environment wants it interpreted."""
    if sys.stderr.isatty() and not is_compiled() and os.environ.get(VARIABLE) != "0":
        Console(stderr=True, highlight=False).print(_HINT, style="dim", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Simulations:
    """Runs simulations under a bar in `jobs` processes (`None`: one a processor); `kept`: file of runs to reuse and extend."""

    console: Console
    jobs: int | None
    kept: Path | None = None

    def carry_out(self, searches: Mapping[_Key, Search[_Result]], description: str) -> dict[_Key, _Result]:
        """Run searches among clusters to their ends under a bar.
        A wrong trace or profile, or a file of runs that cannot be used, raises `CommandError`.
        """
        return self._carry_out(searches, CLUSTERS, description, None)

    def run_all(self, cases: Sequence[_Case], kind: Runs[_Case, _Run], description: str) -> dict[_Case, _Run]:
        """Run all cases, each once, under a bar; raises `CommandError` as `carry_out`."""
        once = list(dict.fromkeys(cases))
        (runs,) = self._carry_out({"": _single_step(once, kind)}, kind, description, len(once)).values()
        return dict(zip(once, runs, strict=True))

    def each(
        self,
        cases: Sequence[_Plain],
        run: Callable[[_Plain], _Run],
        describe: Callable[[_Run], str],
        description: str,
    ) -> list[_Run]:
        """Run cases, all different, under a bar, and keep none in a file; raises `CommandError` as `carry_out`."""

        def once() -> Generator[Sequence[_Plain], Sequence[_Run], Sequence[_Run]]:
            return (yield cases)

        with command_errors(), runs_bar(self.console, description, describe, len(cases)) as finished:
            return list(drive({"": once()}, processors(self.jobs), run, finished)[""])

    def _carry_out(
        self,
        searches: Mapping[_Key, Generator[Sequence[_Case], Sequence[_Run], _Result]],
        kind: Runs[_Case, _Run],
        description: str,
        total: int | None,
    ) -> dict[_Key, _Result]:
        run = kind.run if self.kept is None else KeptRuns(self.kept, kind.run, kind.summary)
        try:
            with command_errors(), runs_bar(self.console, description, kind.describe, total) as finished:
                return drive(searches, processors(self.jobs), run, finished)
        except OSError as error:
            raise CommandError(f"{error.filename or self.kept or description}: {error.strerror or error}") from error


def _single_step(
    cases: Sequence[_Case], kind: Runs[_Case, _Run]
) -> Generator[Sequence[_Case], Sequence[_Run], Sequence[_Run]]:
    return (yield cases)
