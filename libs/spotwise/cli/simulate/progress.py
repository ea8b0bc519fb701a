"""The bar of a simulation: one step a run, and what the last one was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spotwise.simulator.experiment import RunSummary


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
