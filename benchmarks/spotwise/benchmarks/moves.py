"""`spotwise bench moves`: what clients see when a worker is taken away under their streams, three ways.

Each way has a mesh of its own, one prompt worker and two token workers, and the same streams. Once each stream has some tokens,
one token worker has to leave. *Move*: it gets a few seconds, and the planner moves what it has. *Recompute*: it gets none, so
that its requests are computed again on the other one, as before there were moves. *Restart*: its clients send their requests
anew, as they have to with servers that recover nothing. Only streams that the worker had are counted.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from spotwise.benchmarks.moved_streams import WAYS, Interrupted, Way, run_way
from spotwise.cli.bench.completion import random_prompt
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import SPLIT_ALWAYS, running_mesh
from spotwise.cli.errors import OptionError
from spotwise.cli.quantities import ascending

_TOKEN_WORKERS = 2
#: What a move may cost beside three iterations, milliseconds.
_ALLOWANCE_MS = 50.0


def moves(
    streams: Annotated[int, typer.Option(min=1, help="Open at once.")] = 16,
    contexts: Annotated[str, typer.Option(help="Prompt tokens, one stream after the other.")] = "64,256,1024",
    tokens: Annotated[int, typer.Option(min=64, help="Output tokens of each stream.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Meshes of each way.")] = 2,
    ways: Annotated[str, typer.Option(help="Of move, recompute and restart.")] = ",".join(WAYS),
    prefix_caching: Annotated[
        bool, typer.Option(help="Workers keep prompts: computing one again may find it in a cache.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the random prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure the pauses of streams whose worker leaves: moved, computed again, or sent anew."""
    require_writable(json)
    lengths = ascending(contexts, int, "--contexts", "numbers of tokens like 64,256,1024")
    chosen = _ways(ways)
    rng = random.Random(seed)
    prompts = [random_prompt(rng, lengths[number % len(lengths)]) for number in range(streams)]
    console = report_console()
    interrupted: list[Interrupted] = []
    texts: dict[int, tuple[int, ...]] = {}
    differing = 0
    with progress_bar(console) as progress:
        task = progress.add_task("rounds", total=rounds * len(chosen))
        for number in range(rounds):
            for way in chosen:
                progress.update(task, description=f"round {number + 1}: {way}")
                arguments = ("--prompt-workers", "1", "--token-workers", str(_TOKEN_WORKERS))
                env = SPLIT_ALWAYS | {"SPOTWISE_PREFIX_CACHING": str(prefix_caching).lower()}
                with running_mesh(arguments, env) as endpoint:
                    leaving = f"token-{number % _TOKEN_WORKERS}"
                    result = uvloop.run(run_way(endpoint, way, leaving, prompts, tokens))
                interrupted += result.interrupted
                for index, token_ids in enumerate(result.token_ids):
                    differing += texts.setdefault(index, token_ids) != token_ids
                progress.advance(task)
    rows = [
        *_rows(interrupted, chosen, max(lengths)),
        ReportRow("streams whose tokens differ between the ways", differing),
    ]
    settings = {"streams": streams, "contexts": lengths, "tokens": tokens, "rounds": rounds, "seed": seed}
    about = environment(**settings, prefix_caching=prefix_caching)
    figures = [each.as_dict() for each in interrupted]
    write_report(rows, about, json, console, lambda figure: f"{figure:,.2f}", interrupted=figures)
    if differing:
        raise typer.Exit(1)


def _ways(text: str) -> list[Way]:
    chosen = [way for way in WAYS if way in text.split(",")]
    if len(chosen) != len(text.split(",")):
        raise OptionError(f"--ways {text!r}: name some of {', '.join(WAYS)}")
    return chosen


def _rows(interrupted: Sequence[Interrupted], ways: Sequence[Way], longest: int) -> list[ReportRow]:
    rows = []
    for way in ways:
        of_way = [each for each in interrupted if each.way == way]
        rows.append(ReportRow(f"{way}: interrupted streams", len(of_way)))
        for context in sorted({each.prompt_tokens for each in of_way}):
            gaps = [1000 * each.gap_s for each in of_way if each.prompt_tokens == context]
            rows.append(ReportRow(f"{way}: longest gap, prompt of {context}, median ms", statistics.median(gaps)))
            rows.append(ReportRow(f"{way}: longest gap, prompt of {context}, max ms", max(gaps)))
        if of_way:
            rows.append(ReportRow(f"{way}: tokens computed again", sum(each.recomputed_tokens for each in of_way)))
        if moved := [each for each in of_way if each.moved is not None]:
            rows += _moved_rows(moved)
    return rows + _compared(interrupted, longest)


def _moved_rows(moved: Sequence[Interrupted]) -> list[ReportRow]:
    facts = [each.moved for each in moved if each.moved is not None]
    shares = [each["copied_before"] / each["tokens"] for each in facts]
    return [
        ReportRow("move: requests that moved", len(moved)),
        ReportRow("move: MB moved", sum(each["kv_bytes"] for each in facts) / 1e6),
        ReportRow("move: share of tokens copied before the pause, median", statistics.median(shares)),
        ReportRow("move: pause by the ledger, median ms", 1000 * statistics.median(each["pause_s"] for each in facts)),
    ]


def _compared(interrupted: Sequence[Interrupted], longest: int) -> list[ReportRow]:
    """Compare with recomputing at the longest context, and with the usual gap between tokens."""
    moved = [each for each in interrupted if each.way == "move" and each.moved is not None]
    rows = []
    again = [each.gap_s for each in interrupted if each.way == "recompute" and each.prompt_tokens == longest]
    at_longest = [each.gap_s for each in moved if each.prompt_tokens == longest]
    if again and at_longest:
        ours, theirs = 1000 * statistics.median(at_longest), 1000 * statistics.median(again)
        rows.append(ReportRow(f"move against recompute, prompt of {longest}, ms", ours, theirs, Target(at_most=0.2)))
    if moved:
        beyond_ms = 1000 * statistics.median(each.gap_s for each in moved) - _ALLOWANCE_MS
        usual_ms = 1000 * statistics.median(each.usual_gap_s for each in moved)
        name = f"move: longest gap beyond {_ALLOWANCE_MS:g} ms, in iterations of the time"
        rows.append(ReportRow(name, beyond_ms, usual_ms, Target(at_most=3.0)))
    return rows
