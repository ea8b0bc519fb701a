"""`spotwise bench dev newcomers`: what a short prompt waits beside a long one, on a default mesh and on vLLM.

One side's server runs at a time, in alternating order, with the same weights, cores and prompts.
"""

from __future__ import annotations

import asyncio
import shlex
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spotwise.benchmarks.contention import CoreUse, contention_lines
from spotwise.benchmarks.newcomer_load import Newcomer, NewcomerShape, Situation, measure_newcomers
from spotwise.benchmarks.rounds import in_order_of_round
from spotwise.benchmarks.yardsticks.vllm_client import find_vllm, vllm_version
from spotwise.benchmarks.yardsticks.vllm_server import TUNED_ARGUMENTS, dtype_of_both, running_vllm
from spotwise.cli.bench.report import (
    ReportRow,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import ServerEndpoint, running_mesh, up_arguments
from spotwise.cli.errors import CommandError
from spotwise.cli.launch.model_options import resolve_with_progress
from spotwise.engine.model.model_store import DEFAULT_MODEL
from spotwise.worker.machine import cores_name

_OURS, _PEER = "spotwise", "vllm-tuned"
_WHOLE = NewcomerShape()
_QUICK = NewcomerShape(long_tokens=3000, after_s=0.5, repetitions=1)

_Kind = tuple[Situation, int]
#: TTFT of all requests of a side, by situation and prompt length.
_TtftMs = dict[_Kind, list[float]]


@dataclass(frozen=True, slots=True)
class NewcomerReading:
    """One measured request of a side; `round_number` counts from 1."""

    round_number: int
    side: str
    newcomer: Newcomer


def newcomers(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each of both sides in alternating order.")] = 1,
    repetitions: Annotated[
        int, typer.Option(min=1, help="Of each newcomer in each situation, in each round.")
    ] = _WHOLE.repetitions,
    long_tokens: Annotated[
        int, typer.Option(min=1, help="Of the long prompt; the default model's context has 8,192.")
    ] = _WHOLE.long_tokens,
    after: Annotated[float, typer.Option(min=0, help="Seconds from the long prompt to the newcomer.")] = _WHOLE.after_s,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = "",
    vllm: Annotated[
        Path | None,
        typer.Option(envvar="SPOTWISE_PEER_VLLM", help="vLLM's program; by default where scripts/peer.sh puts it."),
    ] = None,
    peer_args: Annotated[str, typer.Option(help="Passed on to `vllm serve`.")] = shlex.join(TUNED_ARGUMENTS),
    model: Annotated[str, typer.Option(help="A folder, a GGUF file or a hub id; both sides serve it.")] = DEFAULT_MODEL,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of one repetition, a shorter long prompt: shows that it runs.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of all prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Compare the TTFT of short prompts alone, beside a long one and after its client has gone; beside vLLM's CPU build."""
    require_writable(json)
    console = report_console()
    shape = _QUICK if quick else NewcomerShape(long_tokens=long_tokens, after_s=after, repetitions=repetitions)
    rounds = 1 if quick else rounds
    program = _peer_program(vllm, console)
    located = resolve_with_progress(model, console, widens=True)
    dtype = dtype_of_both(located.path)
    own_arguments = ("--model", model, "--dtype", dtype, *up_arguments(up_args))

    def server(side: str) -> AbstractContextManager[ServerEndpoint]:
        if side == _PEER and program is not None:
            context_tokens = shape.context_tokens
            return running_vllm(
                program, located.path, shlex.split(peer_args), dtype=dtype, context_tokens=context_tokens
            )
        return running_mesh(own_arguments)

    sides = (_OURS,) if program is None else (_OURS, _PEER)
    readings: list[NewcomerReading] = []
    contentions = {}
    with progress_bar(console) as progress:
        task = progress.add_task("", total=rounds * len(sides) * shape.requests)
        answered = partial(progress.advance, task)
        for number in range(1, rounds + 1):
            for side in in_order_of_round(number, sides):
                progress.update(task, description=f"round {number} of {rounds}, {side}")
                with server(side) as endpoint:
                    before = CoreUse.so_far()
                    prompts_seed = seed * 1000 + number
                    measured = asyncio.run(measure_newcomers(endpoint, shape, prompts_seed, answered))
                    contentions[f"round {number}, {side}"] = CoreUse.so_far().contention_since(before)
                readings += [NewcomerReading(number, side, newcomer) for newcomer in measured]
    about = environment(
        model=located.name,
        dtype=dtype,
        rounds=rounds,
        shape=asdict(shape),
        seed=seed,
        quick=quick,
        up_args=up_args,
        vllm=None if program is None else vllm_version(program),
        tuned_peer=None if program is None else peer_args,
    )
    raw = [{"round": each.round_number, "side": each.side, **asdict(each.newcomer)} for each in readings]
    write_report(newcomer_rows(shape, readings), about, json, console, lambda figure: f"{figure:,.1f}", rounds=raw)
    console.print(f"{cores_name()}, {located.name} in {dtype}", style="dim", markup=False)
    for line in contention_lines(contentions):
        console.print(line, style="yellow", markup=False)


def newcomer_rows(shape: NewcomerShape, readings: Sequence[NewcomerReading]) -> list[ReportRow]:
    """Return p50 and maximum of each newcomer in each situation, and what the situation makes of the p50 alone; the peer's
    figures are the reference.
    """
    ours, theirs = (_ttft_ms(readings, side) for side in (_OURS, _PEER))

    def row(name: str, figure: Callable[[_TtftMs], float]) -> ReportRow:
        return ReportRow(name, figure(ours), figure(theirs) if theirs else None)

    def p50(kind: _Kind, ttft_ms: _TtftMs) -> float:
        return statistics.median(ttft_ms[kind])

    def longest(kind: _Kind, ttft_ms: _TtftMs) -> float:
        return max(ttft_ms[kind])

    def over_alone(kind: _Kind, ttft_ms: _TtftMs) -> float:
        return p50(kind, ttft_ms) / p50((Situation.ALONE, kind[1]), ttft_ms)

    rows = []
    newcomers = [(situation, tokens) for tokens in shape.newcomer_tokens for situation in Situation]
    for kind in (*newcomers, (Situation.ALONE, shape.long_tokens)):
        name = f"{kind[1]:,} tokens {kind[0].description}: TTFT"
        rows += [row(f"{name} p50, ms", partial(p50, kind)), row(f"{name} max, ms", partial(longest, kind))]
        if kind[0] is not Situation.ALONE:
            rows.append(row(f"{name} p50 over that alone", partial(over_alone, kind)))
    return rows


def _ttft_ms(readings: Sequence[NewcomerReading], side: str) -> _TtftMs:
    by_kind: _TtftMs = {}
    for each in readings:
        if each.side == side:
            kind = (each.newcomer.situation, each.newcomer.prompt_tokens)
            by_kind.setdefault(kind, []).append(1000 * each.newcomer.ttft_s)
    return by_kind


def _peer_program(given: Path | None, console: Console) -> Path | None:
    """The peer's program; None, and how to install it, where it is neither named nor installed."""
    try:
        return find_vllm(given)
    except CommandError as error:
        if given is not None:
            raise
        console.print(f"without the peer: {error}", style="yellow", markup=False)
        return None
