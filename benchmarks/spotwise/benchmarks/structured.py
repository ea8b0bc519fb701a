"""`spotwise bench dev structured`: what a schema costs: streams with one and without, in turns, on one mesh."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from spotwise.benchmarks.rounds import medians_ms, row_of_rounds, run_rounds
from spotwise.cli.bench.load import StreamShape
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
_SIDES: Mapping[str, Mapping[str, object]] = {
    "with a schema": {"options": {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}},
    "without": {},
}
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
    shape = StreamShape(streams, requests, input_tokens, output_tokens, seed)
    with mesh_of(name, up_args) as mesh:
        measured = run_rounds(console, mesh.url, shape, rounds, _SIDES)
    (tpot_ms, ttft_ms), (plain_tpot_ms, plain_ttft_ms) = map(medians_ms, measured.values())
    rows = [
        row_of_rounds("TPOT p50, ms", tpot_ms, plain_tpot_ms, _TARGET),
        row_of_rounds("TTFT p50, ms", ttft_ms, plain_ttft_ms),
    ]
    about = environment(streams=streams, input_tokens=input_tokens, output_tokens=output_tokens, rounds=rounds)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.1f}")
