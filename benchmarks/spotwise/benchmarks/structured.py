"""`spotwise bench structured`: what a schema costs: streams with one and without, in turns, on one mesh."""

from __future__ import annotations

import asyncio
import functools
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.cli.bench.closed_loop import StreamShape
from spotwise.cli.bench.load import RoundMeasurements, run_round
from spotwise.cli.bench.progress import progress_bar
from spotwise.cli.bench.report import Target, environment, report_console, require_writable, write_report
from spotwise.cli.bench.servers import mesh_of

#: A person with a list that is longer than any answer: its grammar never ends, and every stream has as many tokens as without.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "orders": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "article": {"type": "string", "maxLength": 24},
                    "state": {"enum": ["open", "sent", "returned"]},
                    "price": {"type": "number"},
                    "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
                },
                "required": ["article", "state", "price", "tags"],
                "additionalProperties": False,
            },
            "minItems": 1000,
        },
    },
    "required": ["name", "age", "orders"],
    "additionalProperties": False,
}
_SIDES: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("with", {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}),
    ("without", {}),
)
_TARGET = Target(at_most=1.15)


def structured(
    streams: Annotated[int, typer.Option(min=1, help="Streams at a time.")] = 16,
    output_tokens: Annotated[int, typer.Option(min=2)] = 96,
    input_tokens: Annotated[int, typer.Option(min=1)] = 64,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each stream, in each round.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of both, in alternating order.")] = 5,
    name: Annotated[str | None, typer.Option(help="A running mesh of this machine; by default one of its own.")] = None,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up` for a mesh of its own.")] = "",
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random prompts.")] = 1,
) -> None:
    """Compare TPOT and TTFT with a JSON schema and without, side by side; target: TPOT within 1.15 times."""
    require_writable(json)
    console = report_console()
    measured: dict[str, list[RoundMeasurements]] = {side: [] for side, _ in _SIDES}
    with mesh_of(name, up_args) as mesh, progress_bar(console) as progress:
        task = progress.add_task("structured", total=rounds * len(_SIDES) * streams * requests)
        answered = functools.partial(progress.advance, task)
        for number in range(1, rounds + 1):
            for turn, (side, options) in enumerate(in_order_of_round(number, _SIDES)):
                # prompts of its own, of which nothing is cached
                shape = StreamShape(streams, requests, input_tokens, output_tokens, seed + 2 * number + turn)
                measured[side].append(asyncio.run(run_round(mesh.url, shape, answered, options=options)))
    schema, plain = measured["with"], measured["without"]
    tpot_ms = [_medians_ms(each.tpot_s for each in side) for side in (schema, plain)]
    ttft_ms = [_medians_ms(each.ttft_s for each in side) for side in (schema, plain)]
    rows = [
        row_of_rounds("TPOT p50, ms", tpot_ms[0], tpot_ms[1], _TARGET),
        row_of_rounds("TTFT p50, ms", ttft_ms[0], ttft_ms[1]),
    ]
    about = environment(streams=streams, input_tokens=input_tokens, output_tokens=output_tokens, rounds=rounds)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.1f}")


def _medians_ms(rounds: Iterable[list[float]]) -> list[float]:
    return [1000 * statistics.median(times_s) for times_s in rounds]
