"""`spotwise bench dev agreement`: the engine's greedy tokens against those of `transformers`, by number format."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Annotated

import typer

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
from spotwise.cli.errors import CommandError
from spotwise.cli.launch.model_options import resolve_with_progress
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.model_store import DEFAULT_MODEL

_SHORTEST_PROMPT, _LONGEST_PROMPT = 8, 400


def agreement(
    model: Annotated[str, typer.Option(help="A folder, a GGUF file or a hub id.")] = DEFAULT_MODEL,
    prompts: Annotated[int, typer.Option(min=1, help="Random prompts of 8 to 400 tokens.")] = 32,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths and prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Count how often the engine and transformers agree on the likeliest token, in float32 and in bfloat16."""
    from spotwise.benchmarks.engine_agreement import Agreement, compare
    from spotwise.engine.model.loading import EngineConfig

    require_writable(json)
    console = report_console()
    folder = resolve_with_progress(model, console, widens=True).path
    rng = random.Random(seed)
    rows: list[ReportRow] = []
    with progress_bar(console) as progress:
        for dtype, target in (("float32", Target(at_least=1.0)), ("bfloat16", None)):
            task = progress.add_task(dtype, total=prompts)
            config = EngineConfig(folder, dtype, "cpu", threads=len(os.sched_getaffinity(0)))
            found = Agreement(0, 0, 0, 0)
            try:
                for so_far in compare(config, list(_prompts(rng, prompts)), output_tokens):
                    found = so_far
                    progress.advance(task)
            except (ModelError, ValueError) as error:
                raise CommandError(f"{dtype}: {error}") from error
            rows += [
                ReportRow(f"{dtype}: positions with the same likeliest token", found.equal, found.positions, target),
                ReportRow(f"{dtype}: answers that are the same to the end", found.same_texts, found.texts, target),
            ]
    about = environment(model=folder.name, prompts=prompts, output_tokens=output_tokens, seed=seed)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.0f}")


def _prompts(rng: random.Random, count: int) -> list[list[int]]:
    return [random_prompt(rng, rng.randint(_SHORTEST_PROMPT, _LONGEST_PROMPT)) for _ in range(count)]
