"""`spotwise explain`: a request's ledger, member by member."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.mesh.access import open_store
from spotwise.cli.mesh.options import MeshName, RedisUrl
from spotwise.cli.mesh.running import find_store
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.wire import subjects

_SWAPS = ("swapped_out", "swapped_in")


def explain(
    request_id: Annotated[
        str,
        typer.Argument(help="Id of the answer, or the client's own X-Request-Id."),
    ],
    name: MeshName = DEFAULT_NAME,
    redis_url: RedisUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what every member did for a request: workers, queues, KV moved and over what, TTFT, TPOT, tokens."""
    url = find_store(name, redis_url)
    entries = asyncio.run(_ledger(url, request_id))
    if not entries:
        raise CommandError(
            f"nothing is known of {request_id!r}; ledgers are kept for an hour, "
            "and written a moment after the member did its part"
        )
    console = Console()
    if as_json:
        shown = [{**dataclasses.asdict(e), "facts": dict(e.facts)} for e in entries]
        console.print_json(json.dumps(shown))
        return
    choices = sorted({entry.choice_id for entry in entries})
    for choice in choices:
        console.print(_table(choice, [entry for entry in entries if entry.choice_id == choice]))


async def _ledger(redis_url: str, request_id: str) -> list[LedgerEntry]:
    async with open_store(redis_url) as store:
        if entries := await store.get_ledger(request_id):
            return entries
        named = await store.get_ledger(subjects.clients_name(request_id))
        choices = [str(fact) for entry in named for name, fact in entry.facts if name == "request_id"]
        requests = dict.fromkeys(map(subjects.request_id_of, choices))
        return [entry for request in requests for entry in await store.get_ledger(request)]


def _table(request_id: str, entries: list[LedgerEntry]) -> Table:
    table = Table(title=request_id, title_justify="left", title_style="bold", header_style="bold")
    table.add_column("at", justify="right")
    table.add_column("attempt", justify="right")
    for heading in ("what", "member", "facts"):
        table.add_column(heading)
    completed = [dict(entry.facts) for entry in entries if entry.stage == "completed"]
    start_s = min(
        [entry.at_s for entry in entries]
        + [entry.at_s - float(facts["e2e_s"]) for entry, facts in zip(entries[-1:], completed[-1:], strict=False)]
    )
    for together in _swaps_together(entries):
        entry = together[0]
        facts = "\n".join(f"{_label(name)}: {_figure(name, value)}" for name, value in _facts(together))
        at = f"+{(entry.at_s - start_s) * 1000:,.1f} ms"
        stages = "\n".join(dict.fromkeys(each.stage for each in together))
        table.add_row(at, str(entry.epoch), stages, entry.member_id, facts)
    return table


def _swaps_together(entries: list[LedgerEntry]) -> list[list[LedgerEntry]]:
    """Group a worker's consecutive swaps: a request may be swapped out after any token."""
    grouped = groupby(entries, lambda entry: (entry.stage in _SWAPS, entry.member_id, entry.epoch))
    return [together for (swaps, *_), run in grouped for together in ([[*run]] if swaps else [[each] for each in run])]


def _facts(together: list[LedgerEntry]) -> list[tuple[str, str | int | float]]:
    """Return the facts of one entry, or the totals of several: count, blocks copied, and end."""
    if len(together) == 1:
        return [*together[0].facts]
    times = Counter(entry.stage for entry in together)
    blocks = sum(int(dict(entry.facts).get("blocks", 0)) for entry in together)
    lasted_s = together[-1].at_s - together[0].at_s
    return [*((stage, f"{count} times") for stage, count in times.items()), ("blocks", blocks), ("within_s", lasted_s)]


def _label(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def _figure(name: str, value: str | int | float) -> str:
    if name.endswith("_s") and isinstance(value, int | float):
        return f"{value * 1000:,.1f} ms"
    if name.endswith("_bytes") and isinstance(value, int | float):
        return f"{value:,} bytes"
    return str(value)
