"""`spotwise bench dev groups`: workers of several processes beside one process, and what the loss of each process costs.

Every shape has a mesh of its own, of one worker that computes both phases, and the same load on the same cores. A shape's
bubble share is the part of its processes' time in which they had nothing to compute: no iteration, or none of the stage before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from spotwise.benchmarks.gather_time import COLUMNS, gather_us
from spotwise.benchmarks.group_faults import SIGNALS, Fault, fault_rows, prompts_of, run_faults, undisturbed
from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.cli.bench.load import RoundMeasurements, StreamShape, run_round
from spotwise.cli.bench.report import (
    ReportRow,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import MeshEndpoint, running_mesh, up_arguments
from spotwise.cli.errors import OptionError
from spotwise.cli.mesh.status_table import gather_status
from spotwise.cli.quantities import ascending
from spotwise.core.messages.groups import GroupExchange
from spotwise.core.messages.members import MemberKind
from spotwise.core.percentile import percentile
from spotwise.mesh.grpc.control import GroupTimes

_ONE = (1, 1)
Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """One load of one shape; `gather_us`, `gather_share` and `bubble_share` of a group only."""

    load: RoundMeasurements
    gather_us: float | None
    gather_share: float | None
    bubble_share: float | None

    @property
    def figures(self) -> dict[str, float]:
        """What is compared with one process, by name."""
        return {
            "TTFT p50, ms": 1000 * percentile(self.load.ttft_s, 50),
            "TPOT p50, ms": 1000 * percentile(self.load.tpot_s, 50),
            "tokens/s": self.load.output_tokens / self.load.elapsed_s,
        }


def groups(
    shapes: Annotated[str, typer.Option(help="Stages x shards, beside 1x1.")] = "1x3,2x1,3x1,2x3",
    faults: Annotated[
        str, typer.Option(help="Shapes whose processes are lost one after the other; '' for none.")
    ] = "2x3",
    streams: Annotated[str, typer.Option(help="Numbers of streams, one load each.")] = "1,4",
    input_tokens: Annotated[int, typer.Option(min=1)] = 128,
    output_tokens: Annotated[int, typer.Option(min=2)] = 64,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each stream.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Meshes of each shape.")] = 2,
    tokens: Annotated[int, typer.Option(min=16, help="Output tokens of each stream while a process is lost.")] = 48,
    exchange: Annotated[GroupExchange, typer.Option(help="What processes exchange through.")] = GroupExchange.AUTO,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of the random prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure workers of P x M processes beside one process, and lose each of their processes."""
    require_writable(json)
    measured_shapes, fault_shapes = parse_shapes(shapes, "--shapes"), parse_shapes(faults, "--faults")
    counts = ascending(streams, int, "--streams", "numbers of streams like 1,4")
    load = StreamShape(counts[0], requests, input_tokens, output_tokens, seed)
    extra = up_arguments(up_args)
    env = {"SPOTWISE_GROUP_EXCHANGE": str(exchange)}
    console = report_console()
    measured: dict[tuple[Shape, int], list[Measured]] = {}
    lost: dict[Shape, list[Fault]] = {}
    prompts = prompts_of(counts[-1], input_tokens, seed)
    expected: list[list[int]] = []
    all_shapes = (_ONE, *measured_shapes)
    with progress_bar(console) as progress:
        task = progress.add_task("shapes", total=rounds * len(all_shapes) * len(counts))
        for number in range(1, rounds + 1):
            for shape in in_order_of_round(number, all_shapes):
                progress.update(task, description=f"round {number}: {shape_name(shape)}")
                with running_mesh((*_arguments(shape), *extra), env) as endpoint:
                    if shape == _ONE and not expected:
                        expected = uvloop.run(undisturbed(endpoint, prompts, tokens))
                    for count in counts:
                        own = StreamShape(count, load.requests, load.input_tokens, load.output_tokens, load.seed)
                        measured.setdefault((shape, count), []).append(uvloop.run(_measure(endpoint, own)))
                        progress.advance(task)
        for shape in fault_shapes:
            task = progress.add_task(
                f"losing processes of {shape_name(shape)}", total=shape[0] * shape[1] * len(SIGNALS)
            )
            with running_mesh((*_arguments(shape), *extra), env) as endpoint:
                lost[shape] = uvloop.run(run_faults(endpoint, prompts, expected, partial(progress.advance, task)))
    rows = [row for shape in measured_shapes for count in counts for row in _rows(measured, shape, count)]
    for shards in sorted({shards for _, shards in measured_shapes if shards > 1}):
        name = f"a gather of {4 * COLUMNS:,} bytes among {shards} processes that do nothing else, us"
        rows.append(ReportRow(name, gather_us(shards, exchange)))
    for shape, of_shape in lost.items():
        rows += fault_rows(shape_name(shape), of_shape)
    settings = {"streams": counts, "input_tokens": input_tokens, "output_tokens": output_tokens, "requests": requests}
    about = environment(**settings, exchange=str(exchange), rounds=rounds, seed=seed, tokens=tokens, up_args=up_args)
    figures = {shape_name(shape): [fault.as_dict() for fault in of_shape] for shape, of_shape in lost.items()}
    write_report(rows, about, json, console, lambda figure: f"{figure:,.2f}", faults=figures)
    if any(fault.lost or fault.doubled or fault.wrong for of_shape in lost.values() for fault in of_shape):
        raise typer.Exit(1)


def parse_shapes(text: str, option: str) -> list[Shape]:
    """Return shapes like `1x3,2x1`; one of a single process, or anything else, raises `OptionError`."""
    shapes = []
    for part in filter(None, text.replace(" ", "").split(",")):
        stages, _, shards = part.partition("x")
        if not (stages.isdigit() and shards.isdigit() and int(stages) * int(shards) > 1):
            raise OptionError(f"{option} {text!r}: name stages x shards, more than one process, like 1x3,2x1")
        shapes.append((int(stages), int(shards)))
    return shapes


def shape_name(shape: Shape) -> str:
    """Return P x M, like `2x3`."""
    return f"{shape[0]}x{shape[1]}"


def _arguments(shape: Shape) -> tuple[str, ...]:
    if shape == _ONE:
        return ("--mixed-workers", "1")
    return ("--parallel", f"1,{shape[0]},{shape[1]}")


async def _measure(endpoint: MeshEndpoint, load: StreamShape) -> Measured:
    before, began_s = await _times(endpoint), time.perf_counter()
    answers = await run_round(endpoint.url, load, lambda: None)
    seconds, after = time.perf_counter() - began_s, await _times(endpoint)
    if not before:
        return Measured(answers, None, None, None)
    spent = [_difference(after[name], earlier) for name, earlier in before.items()]
    gathers, gather_s = sum(each.gathers for each in spent), sum(each.gather_s for each in spent)
    busy_s, waited_s = sum(each.busy_s for each in spent), sum(each.waited_s for each in spent)
    return Measured(
        answers,
        1e6 * gather_s / gathers if gathers else None,
        gather_s / busy_s if gathers else None,
        1 - (busy_s - waited_s) / (seconds * len(spent)),
    )


async def _times(endpoint: MeshEndpoint) -> dict[str, GroupTimes]:
    """Return what the devices of the mesh's group have spent, by id; nothing of one process."""
    statuses = await gather_status(endpoint.redis_url)
    devices = [status for status in statuses if status.member.kind is MemberKind.DEVICE]
    engines = {status.member.id: status.engine for status in devices if status.engine is not None}
    return {name: engine.times for name, engine in engines.items() if engine.times is not None}


def _difference(after: GroupTimes, before: GroupTimes) -> GroupTimes:
    return GroupTimes(
        after.busy_s - before.busy_s,
        after.waited_s - before.waited_s,
        after.gathers - before.gathers,
        after.gather_s - before.gather_s,
    )


def _rows(measured: dict[tuple[Shape, int], list[Measured]], shape: Shape, count: int) -> list[ReportRow]:
    ours, theirs = measured[shape, count], measured[_ONE, count]
    what = f"{shape_name(shape)}, {count} streams"
    rows = [
        row_of_rounds(
            f"{what}: {figure}",
            [each.figures[figure] for each in ours],
            [each.figures[figure] for each in theirs],
        )
        for figure in ours[0].figures
    ]
    for name, values in (
        ("a gather, waiting for the slowest included, us", [each.gather_us for each in ours]),
        ("gathers' share of iterations", [each.gather_share for each in ours]),
        ("bubble share", [each.bubble_share for each in ours]),
    ):
        rows += _median_row(f"{what}: {name}", [value for value in values if value is not None])
    return rows


def _median_row(name: str, values: Sequence[float]) -> list[ReportRow]:
    return [ReportRow(name, percentile(values, 50))] if values else []
