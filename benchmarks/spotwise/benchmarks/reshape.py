"""`spotwise bench reshape`: what clients see while a mesh takes another shape, beside a restart and beside rerouting.

One mesh of one worker goes through all pairs of shapes, each under streams that decode before, during and after it.
*Restart*: the mesh is stopped and started in the other shape, and clients send their requests anew. *Rerouting*: one of two
workers leaves without notice, and its requests are computed again on the other one.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from spotwise.benchmarks.group_faults import undisturbed
from spotwise.benchmarks.groups import Shape, shape_name
from spotwise.benchmarks.moved_streams import run_way
from spotwise.benchmarks.reshaped_streams import Reshaped, reshaped, restarted
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
from spotwise.cli.bench.servers import running_mesh, up_arguments
from spotwise.cli.errors import OptionError
from spotwise.core.parallel.config import ParallelConfig

#: SmolLM2's: its three KV heads allow one shard or three.
_SHAPES: tuple[Shape, ...] = ((1, 1), (1, 3), (2, 1), (2, 3), (3, 1), (3, 3))
#: Times the tokens that streams have in a mesh that stops, which lets them end for some seconds.
_OUTLASTS = 6


def reshape(
    pairs: Annotated[
        str, typer.Option(help="all: every ordered pair of P in 1 to 3 and M of 1 and 3; or 1x1>2x1,2x1>1x3.")
    ] = "all",
    streams: Annotated[int, typer.Option(min=1, help="Open at once.")] = 4,
    input_tokens: Annotated[int, typer.Option(min=1)] = 128,
    tokens: Annotated[int, typer.Option(min=64, help="Output tokens of each stream.")] = 192,
    baselines: Annotated[int, typer.Option(min=0, help="Restarts and reroutings, of so many pairs.")] = 2,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of the random prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure the pauses of streams while their mesh is re-shaped, restarted, or loses a worker."""
    require_writable(json)
    walk = parse_walk(pairs)
    extra = tuple(up_arguments(up_args))
    rng = random.Random(seed)
    prompts = [random_prompt(rng, input_tokens) for _ in range(streams)]
    console = report_console()
    done: list[Reshaped] = []
    restart_s: list[float] = []
    rerouting_s: list[float] = []
    devices = max(stages * shards for stages, shards in walk)
    steps = list(itertools.pairwise(walk))
    with progress_bar(console) as progress:
        task = progress.add_task("shapes", total=len(steps) + 2 * min(baselines, len(steps)))
        with running_mesh((*_arguments(walk[0]), "--devices", str(devices), *extra)) as endpoint:
            expected = uvloop.run(undisturbed(endpoint, prompts, tokens))
            for before, after in steps:
                pair = f"{shape_name(before)} > {shape_name(after)}"
                progress.update(task, description=pair)
                done.append(uvloop.run(reshaped(endpoint, pair, ParallelConfig(1, *after), prompts, expected)))
                progress.advance(task)
        for before, after in steps[:baselines]:
            progress.update(task, description=f"restart, {shape_name(before)} > {shape_name(after)}")
            restart_s += uvloop.run(
                restarted((*_arguments(before), *extra), (*_arguments(after), *extra), prompts, _OUTLASTS * tokens)
            )
            progress.update(task, description=f"rerouting, two of {shape_name(before)}")
            with running_mesh((*_arguments(before, data=2), *extra)) as endpoint:
                way = uvloop.run(run_way(endpoint, "recompute", "mixed-0", prompts, tokens))
            rerouting_s += [each.gap_s for each in way.interrupted]
            progress.advance(task, 2)
    settings = {
        "streams": streams,
        "input_tokens": input_tokens,
        "tokens": tokens,
        "seed": seed,
        "baselines": baselines,
    }
    figures = {"reshapes": [each.as_dict() for each in done], "restart_s": restart_s, "rerouting_s": rerouting_s}
    rows = _rows(done, restart_s, rerouting_s)
    write_report(
        rows,
        environment(**settings, pairs=pairs, up_args=up_args),
        json,
        console,
        lambda figure: f"{figure:,.2f}",
        **figures,
    )
    if any(each.wrong for each in done):
        raise typer.Exit(1)


def parse_walk(text: str) -> list[Shape]:
    """Return the shapes to go through, one after the other; pairs that do not follow one another raise `OptionError`."""
    if text == "all":
        return all_pairs(_SHAPES)
    walk: list[Shape] = []
    for part in text.replace(" ", "").split(","):
        sides = [tuple(int(number) for number in side.split("x") if number.isdigit()) for side in part.split(">")]
        if len(sides) != 2 or any(len(side) != 2 or min(side) < 1 for side in sides) or sides[0] == sides[1]:
            raise OptionError(f"--pairs {text!r}: write all, or pairs like 1x1>2x1,2x1>1x3")
        before, after = ((side[0], side[1]) for side in sides)
        if walk and walk[-1] != before:
            raise OptionError(f"--pairs {text!r}: {shape_name(before)} does not follow {shape_name(walk[-1])}")
        walk += [after] if walk else [before, after]
    return walk


def all_pairs(shapes: Sequence[Shape]) -> list[Shape]:
    """Return a closed walk that takes each ordered pair of different shapes once (an Eulerian circuit, by Hierholzer)."""
    left = {shape: [other for other in reversed(shapes) if other != shape] for shape in shapes}
    stack, walk = [shapes[0]], list[Shape]()
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            walk.append(stack.pop())
    return walk[::-1]


def _arguments(shape: Shape, data: int = 1) -> tuple[str, ...]:
    return ("--parallel", f"{data},{shape[0]},{shape[1]}")


def _rows(done: Sequence[Reshaped], restart_s: Sequence[float], rerouting_s: Sequence[float]) -> list[ReportRow]:
    rows = []
    for each in done:
        gaps_ms = [1000 * gap_s for gap_s in each.gaps_s]
        rows.append(ReportRow(f"{each.pair}: longest gap, median ms", statistics.median(gaps_ms)))
        rows.append(ReportRow(f"{each.pair}: longest gap, max ms", max(gaps_ms)))
    gaps_s = [gap_s for each in done for gap_s in each.gaps_s]
    pauses_s = [pause_s for each in done for pause_s in each.pauses_s]
    if restart_s:
        ours, theirs = 1000 * statistics.median(gaps_s), 1000 * statistics.median(restart_s)
        rows.append(
            ReportRow("all pairs: longest gap against a restart's, medians, ms", ours, theirs, Target(at_most=0.2))
        )
        rows.append(ReportRow("all pairs: largest gap against a restart's median, ms", 1000 * max(gaps_s), theirs))
    if rerouting_s:
        ours, theirs = 1000 * statistics.median(gaps_s), 1000 * statistics.median(rerouting_s)
        rows.append(ReportRow("all pairs: longest gap against rerouting's, medians, ms", ours, theirs))
    rows.append(
        ReportRow(
            "all pairs: gap between tokens before, median ms", 1000 * statistics.median(e.usual_gap_s for e in done)
        )
    )
    if pauses_s:
        predicted_ms = 1000 * statistics.median(each.predicted_s for each in done)
        rows.append(
            ReportRow(
                "moves: pause by the ledger against the predicted, medians, ms",
                1000 * statistics.median(pauses_s),
                predicted_ms,
            )
        )
    forming_s = statistics.median(each.forming_s for each in done)
    rows.append(
        ReportRow(
            "forming the new groups against the predicted, medians, s",
            forming_s,
            statistics.median(each.predicted_forming_s for each in done) or None,
        )
    )
    rows.append(
        ReportRow("a re-shape, from its order to its end, median s", statistics.median(each.seconds for each in done))
    )
    rows += _byte_rows(done)
    rows.append(ReportRow("requests moved, all pairs", len(pauses_s)))
    rows.append(ReportRow("requests given back", sum(each.given_back for each in done)))
    rows.append(ReportRow("tokens computed again", sum(each.recomputed for each in done)))
    rows.append(ReportRow("tokens lost, doubled or wrong", sum(each.wrong for each in done)))
    return rows


def _byte_rows(done: Sequence[Reshaped]) -> list[ReportRow]:
    """Bytes beside those of the plan, and of a restart."""

    def megabytes(name: str) -> float:
        return float(sum(getattr(each, name) for each in done)) / 1e6

    moved = megabytes("moved_bytes")
    return [
        ReportRow(
            "MB of KV moved, beside the predicted, all pairs", megabytes("kv_bytes"), megabytes("predicted_kv_bytes")
        ),
        ReportRow(
            "MB of weights that devices got, beside the predicted, all pairs", moved, megabytes("predicted_bytes")
        ),
        ReportRow(
            "MB of weights that devices got, beside what a restart reads, all pairs", moved, megabytes("restart_bytes")
        ),
        ReportRow("MB of weights from others than planned", megabytes("unplanned_bytes")),
        ReportRow("MB of weights from model folders", megabytes("read_bytes")),
    ]
