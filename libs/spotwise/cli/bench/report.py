"""The format of every benchmark's result, a table for people and one JSON document; its progress bar; and the check that a
plot can be drawn.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spotwise.cli.errors import CommandError, OptionError
from spotwise.worker.machine import processor_name

_PIPE_WIDTH = 150

_FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the ratio of ours to the reference."""

    at_most: float | None = None
    at_least: float | None = None

    def holds(self, ratio: float) -> bool:
        """Whether the ratio keeps the bound."""
        return (self.at_most is None or ratio <= self.at_most) and (self.at_least is None or ratio >= self.at_least)

    def __str__(self) -> str:
        bounds = [f"<= {self.at_most:g}x"] if self.at_most is not None else []
        return " and ".join(bounds + ([f">= {self.at_least:g}x"] if self.at_least is not None else []))


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One figure; `ratio` and `holds` are computed, never given.

    Attributes:
        name: the measured quantity, with its unit.
        reference: the peer's or the paper's figure, if any.
        target: bound on the ratio ours / reference.
        ours_spread, ratio_spread: smallest and largest over several rounds.
    """

    name: str
    ours: float
    reference: float | None = None
    target: Target | None = None
    ours_spread: tuple[float, float] | None = None
    ratio_spread: tuple[float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the reference."""
        return self.ours / self.reference if self.reference else None

    @property
    def holds(self) -> bool | None:
        """Whether the target is reached; `None` without a target or a reference."""
        return self.target.holds(self.ratio) if self.target is not None and self.ratio is not None else None


def environment(**more: Any) -> dict[str, Any]:
    """Describe the machine and the versions, and add `more`."""
    return {
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("spotwise", "torch", "transformers", "ucxx-cu12")},
        **more,
    }


def require_writable(path: Path | None, option: str = "--json") -> None:
    """Check before the measurement that the result can be written; makes the folder. Raises `OptionError` where it cannot."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{option} {path}: its folder cannot be made: {error.strerror}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OptionError(f"{option} {path}: no file can be written there")


def report_console() -> Console:
    """A benchmark's console; a pipe has no width, and its reader wants whole rows."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def write_report(
    rows: Sequence[ReportRow],
    about: dict[str, Any],
    path: Path | None,
    console: Console,
    cell: Callable[[float], str],
    **more: Any,
) -> None:
    """Print the table, and write the JSON to `path` if given; `more` goes beside the rows."""
    console.print(_table(rows, cell))
    if path is not None:
        document = {"environment": about, "rows": [_as_dict(row) for row in rows], **more}
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        console.print(f"written to {path}", style="dim")


def _table(rows: Sequence[ReportRow], cell: Callable[[float], str]) -> Table:
    def ranged(text: str, spread: tuple[float, float] | None, shown: Callable[[float], str]) -> str:
        return text if spread is None else f"{text} ({shown(spread[0])}–{shown(spread[1])})"

    compares = any(row.reference is not None for row in rows)
    table = Table(header_style="bold")
    table.add_column("figure")
    for heading in ("ours", *(("reference", "ratio", "target", "holds") if compares else ())):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [row.name, ranged(cell(row.ours), row.ours_spread, cell)]
        if compares:
            cells += [
                "" if row.reference is None else cell(row.reference),
                ""
                if row.ratio is None
                else ranged(f"{row.ratio:.2f}x", row.ratio_spread, lambda ratio: f"{ratio:.2f}"),
                str(row.target or ""),
                {None: "", True: "[green]yes", False: "[red]no"}[row.holds],
            ]
        table.add_row(*cells)
    return table


def _as_dict(row: ReportRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "reference": row.reference,
        "ours": row.ours,
        "ratio": row.ratio,
        "target": str(row.target) if row.target else None,
        "holds": row.holds,
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def require_plotting(path: Path, option: str = "--plot") -> None:
    """Check that an option's plot can be written, before the measurement starts.

    Raises:
        CommandError: matplotlib is missing.
        OptionError: the file's name has no format that matplotlib writes.
    """
    if path.suffix not in _FORMATS:
        raise OptionError(f"{option} {path}: give it a name that ends in {', '.join(_FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(f"{option} needs matplotlib; install it with: pip install 'spotwise[bench]'")


def progress_bar(console: Console) -> Progress:
    """A bar with the current step, the share done and the elapsed time; removed at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)
