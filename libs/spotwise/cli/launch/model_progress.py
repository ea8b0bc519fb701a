"""Resolves the model before the start, with a progress bar for downloads and conversions."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_folder import cache_folder
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.model_store import ModelLocation, resolve_model


def resolve_with_progress(reference: str, console: Console) -> ModelLocation:
    """Return a model's location, fetched or converted first where needed; raises `CommandError` where it is not available."""
    columns = (TextColumn("model: {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"looking for {reference}", total=None)
        shown: set[str] = set()

        def show(stage: str, done: int, total: int) -> None:
            progress.update(bar, description=stage, completed=done, total=total)
            if not console.is_terminal and stage not in shown:
                shown.add(stage)
                console.print(f"model: {stage}", markup=False, highlight=False)

        try:
            return resolve_model(reference, cache_folder(), show)
        except ModelError as error:
            raise CommandError(str(error)) from error
