"""`spotwise profile`: measures a worker's costs on this machine, as a profile for simulations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
import uvloop
from rich.table import Table

from spotwise.cli.bench.progress import progress_bar
from spotwise.cli.bench.report import environment, report_console, require_writable
from spotwise.cli.bench.servers import SPLIT_ALWAYS, mesh_of
from spotwise.cli.errors import CommandError
from spotwise.cli.profile_run import Measurements, measure_costs, profile_steps
from spotwise.core.costs.cost_model import PiecewiseLinear, TableIterationCost
from spotwise.core.costs.cost_profile import USUAL_MESSAGE_S, CostProfile
from spotwise.core.costs.measured_range import MeasuredRange
from spotwise.files.cost_profile import profile_as_dict
from spotwise.worker.cost_fit import fit_iterations, fit_link

_QUICK_PROMPT, _QUICK_WIDEST, _QUICK_REPEATS = 64, 2, 1


def profile(
    file: Annotated[Path, typer.Argument(help="Where to write the profile (JSON).")],
    name: Annotated[
        str | None, typer.Option(help="An idle mesh of this machine; by default the command starts one.")
    ] = None,
    up_args: Annotated[str, typer.Option(help="Arguments for `spotwise up`, where the command starts the mesh.")] = "",
    longest_prompt: Annotated[int, typer.Option(min=32, help="Tokens of the longest prompt.")] = 2048,
    widest: Annotated[int, typer.Option(min=1, help="Sequences that decode at once, at most.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="How often each prompt length is measured.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Few and short prompts, for a quick check.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random prompts.")] = 1,
) -> None:
    """Record what iterations and KV hand-offs cost on a live mesh; `up --engine simulated` and `simulate run` take it."""
    require_writable(file, "FILE")
    console = report_console()
    if quick:
        longest_prompt, widest, repeats = _QUICK_PROMPT, _QUICK_WIDEST, _QUICK_REPEATS
    steps = profile_steps(longest_prompt, widest, repeats)
    with progress_bar(console) as progress:
        task = progress.add_task("starting a mesh", total=len(steps))
        with mesh_of(name, up_args, SPLIT_ALWAYS) as endpoint:
            progress.update(task, description="prompts and decodes")
            found = uvloop.run(measure_costs(endpoint, steps, seed, lambda: progress.advance(task)))
            model = endpoint.model
    about = environment()
    costs, fit = fitted_profile(found, model, about)
    document = {**profile_as_dict(costs), "fit": fit, "environment": about}
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(_table(costs, fit))
    console.print(f"written to {file}", style="dim")


def fitted_profile(found: Measurements, model: str, about: Mapping[str, Any]) -> tuple[CostProfile, dict[str, Any]]:
    """Fit a profile to the measurements; returns it and its fit's quality; raises `CommandError` without measurements."""
    try:
        iterations = fit_iterations(found.iterations)
        link = fit_link(found.transfers) if found.transfers else None
    except ValueError as error:
        raise CommandError(str(error)) from error
    costs = CostProfile(
        f"{model} on {about['cores']} cores of {about['cpu']}",
        iterations.cost,
        None if link is None else link.cost,
        found.kv_bytes_per_token,
        found.kv_tokens,
        median(found.messages_s) if found.messages_s else USUAL_MESSAGE_S,
        measured=MeasuredRange.of(time.shape for time in found.iterations),
    )
    fit = {
        "iterations": iterations.iterations,
        "mape": iterations.mape,
        "mape_of": iterations.mape_of,
    }
    if link is not None:
        fit |= {"handoffs": link.handoffs, "link_mape": link.mape}
    return costs, fit


def _table(costs: CostProfile, fit: dict[str, Any]) -> Table:
    table = Table(header_style="bold")
    table.add_column("cost")
    table.add_column("", justify="right")
    cost, link = costs.iteration, costs.link
    assert isinstance(cost, TableIterationCost)  # what is fitted
    assert costs.measured is not None
    for title, figure in (
        *_by_size("prompt tokens", cost.prompt),
        *_by_size("decodes", cost.decode),
        ("1,000 tokens that a prompt token attends to, us", f"{1e9 * cost.prompt_context_s:,.3f}"),
        ("1,000 tokens that a decode attends to, us", f"{1e9 * cost.decode_context_s:,.1f}"),
        ("measured up to, prompt tokens", f"{costs.measured.prompt_tokens:,}"),
        ("measured up to, decodes", f"{costs.measured.decodes:,}"),
        ("measured up to, tokens that a decode attends to", f"{costs.measured.decode_context:,.0f}"),
        ("a message, ms", f"{1e3 * costs.message_s:,.3f}"),
        (f"mean error of {fit['iterations']:,} iterations", f"{fit['mape']:.1%}"),
        *((f"of those, {kind}", f"{mape:.1%}") for kind, mape in fit["mape_of"].items()),
    ):
        table.add_row(title, figure)
    if link is not None:
        table.add_row("a hand-off, ms", f"{1e3 * link.latency_s:,.3f}")
        table.add_row("its bytes, MB/s", f"{link.bytes_per_s / 1e6:,.0f}")
        table.add_row(f"mean error of {fit['handoffs']:,} hand-offs", f"{fit['link_mape']:.1%}")
    return table


def _by_size(what: str, seconds: PiecewiseLinear) -> list[tuple[str, str]]:
    return [
        (f"{size:,.0f} {what}, ms", f"{1e3 * taken:,.1f}")
        for size, taken in zip(seconds.at, seconds.seconds, strict=True)
    ]
