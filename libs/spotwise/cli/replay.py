"""`spotwise replay`: replays the journals of a mesh and compares its decisions."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spotwise.cli.bench.report import report_console
from spotwise.cli.errors import CommandError
from spotwise.core.percentile import percentile
from spotwise.mesh.replay.journal_replay import (
    Difference,
    JournalError,
    Replay,
    find_journals,
    recorded_requests,
    replay,
    write_requests,
)

_SHOWN_CHARACTERS = 600


def replay_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the journals: SPOTWISE_JOURNAL of the mesh.")],
    requests: Annotated[
        Path | None, typer.Option(help="Write the answered requests to this trace (CSV), with TTFT, TPOT and E2E.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
) -> None:
    """Feed journals to fresh roles and compare every command. Exit status 1 where a command differs."""
    console = report_console()
    try:
        journals = find_journals(folder)
        done = [replay(journal) for journal in journals]
        answered = recorded_requests(journals) if requests is not None else []
    except JournalError as error:
        raise CommandError(str(error)) from error
    console.print(_table(done))
    for each in done:
        if each.difference is not None:
            _show(console, each.source.member_id, each.difference)
    try:
        if requests is not None:
            write_requests(answered, requests)
            console.print(f"{len(answered):,} requests written to {requests}", style="dim")
        if json is not None:
            json.write_text(json_text.dumps([*map(_as_dict, done)], indent=2), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"the result cannot be written: {error}") from error
    if any(each.difference is not None for each in done):
        raise typer.Exit(1)


def _table(done: Iterable[Replay]) -> Table:
    table = Table(header_style="bold")
    for heading in ("member", "role"):
        table.add_column(heading, no_wrap=True)
    for heading in ("events", "commands", "decision p50, us", "p99, us"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("commands are", no_wrap=True)
    for each in done:
        seconds = [value for values in each.decision_s.values() for value in values]
        times = [f"{1e6 * percentile(seconds, percent):,.0f}" if seconds else "" for percent in (50, 99)]
        verdict = "[green]identical" if each.difference is None else "[red]different"
        counts = (f"{each.events:,}", f"{each.commands:,}")
        table.add_row(each.source.member_id, each.source.role, *counts, *times, verdict)
    return table


def _show(console: Console, member_id: str, difference: Difference) -> None:
    entry = difference.entry
    lines = [
        f"{member_id}: the first difference is in line {entry.number}, a {entry.event_type} at {entry.now:.6f}",
        f"  event:    {_shortened(entry.event)}",
    ]
    if difference.index is None:
        lines += [f"  then it raised {difference.recorded}, now {difference.replayed}"]
    else:
        lines += [
            f"  command {difference.index}",
            f"    then:   {_shortened(difference.recorded)}",
            f"    now:    {_shortened(difference.replayed)}",
        ]
    for line in lines:
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _shortened(value: Any) -> str:
    text = "nothing" if value is None else json_text.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


def _as_dict(done: Replay) -> dict[str, Any]:
    difference = done.difference
    return {
        "member": done.source.member_id,
        "incarnation": done.source.incarnation,
        "role": done.source.role,
        "events": done.events,
        "commands": done.commands,
        "identical": difference is None,
        "decision_us": {
            event_type: {
                "count": len(seconds),
                "p50": 1e6 * percentile(seconds, 50),
                "p99": 1e6 * percentile(seconds, 99),
                "max": 1e6 * max(seconds),
            }
            for event_type, seconds in done.decision_s.items()
        },
        "difference": None
        if difference is None
        else {
            "line": difference.entry.number,
            "event": difference.entry.event_type,
            "command": difference.index,
            "recorded": difference.recorded,
            "replayed": difference.replayed,
        },
    }
