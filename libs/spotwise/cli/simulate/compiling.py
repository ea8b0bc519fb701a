"""`spotwise simulate compile`."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spotwise.cli.errors import CommandError
from spotwise.simulator.compiled.build import CannotCompileError, ensure_compiled
from spotwise.simulator.compiled.modules import compiled_folder


def compile_simulator() -> None:
    """Compile the simulator, once: it is three times as fast then, with equal results. Needs a C compiler, and mypy."""
    if (there := compiled_folder()) is not None:
        _say(f"it is compiled: {there}")
        return
    console = Console(stderr=True)
    began_s = time.monotonic()
    columns = (
        TextColumn("compiling the simulator"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=None)
            folder = ensure_compiled(lambda done, total: progress.update(task, completed=done, total=total))
    except CannotCompileError as error:
        raise CommandError(str(error)) from error
    _say(f"compiled in {time.monotonic() - began_s:.0f} s: {folder}")


def _say(what: str) -> None:
    Console(highlight=False).print(what, markup=False, soft_wrap=True)
