"""Simulations under a bar: one step a run, and what the last one was."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spotwise.cli.simulate.options import processors, told_plainly
from spotwise.simulator.experiment import RunSummary
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


def carry_out(
    searches: Mapping[_Key, Search[_Result]], jobs: int | None, console: Console, description: str
) -> dict[_Key, _Result]:
    """Carry searches to their ends under a bar, over so many processes, or the processors.

    Raises:
        CommandError: a trace or a profile is none.
    """
    with told_plainly(), runs_bar(console, description) as finished:
        return drive(searches, processors(jobs), finished)
