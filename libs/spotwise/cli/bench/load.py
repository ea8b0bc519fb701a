"""`spotwise bench load`: TTFT, TPOT and throughput at several numbers of streams, without each stream waiting for others.

TTFT, TPOT and throughput at several numbers of streams, without each stream's first request.
"""

from __future__ import annotations

import asyncio
import functools
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import typer

from spotwise.cli.bench.completion import Answer, random_prompt, stream_completion
from spotwise.cli.bench.report import (
    ReportRow,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.client.gateway_access import CaFile, GatewayUrl, find_gateway
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import OptionError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.mesh.options import MeshName
from spotwise.core.percentile import percentile

Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The size of a closed-loop load: concurrent streams, requests of each stream, and tokens of each request."""

    streams: int
    requests: int
    input_tokens: int
    output_tokens: int
    seed: int


async def run_closed_loop(
    streams: int,
    continues: Callable[[int], bool],
    send: Callable[[int, int], Awaitable[Answered]],
    answered: Callable[[], Any] = lambda: None,
) -> list[Answered]:
    """Run all streams to their end; returns the answers in order of completion.

    Args:
        continues: tells whether a stream sends its request of this number, from 0.
        send: sends a request, of this stream's index and this number.
        answered: called after each answer.
    """
    answers: list[Answered] = []

    async def stream(index: int) -> None:
        number = 0
        while continues(number):
            answers.append(await send(index, number))
            answered()
            number += 1

    await run_together(map(stream, range(streams)))
    return answers


async def run_together(requests: Iterable[Coroutine[Any, Any, Answered]]) -> list[Answered]:
    """Await all; the first failure cancels the others and is raised as it is, not in a `TaskGroup`'s group."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class RoundMeasurements:
    """The measurements of one round, seconds.

    Attributes:
        tpot_s: mean time per further token, by request (TBT in Splitwise).
        itl_s: gaps between chunks, all requests together.
        elapsed_s: the round's length.
        output_tokens: output tokens of all requests, from their usage.
    """

    ttft_s: list[float]
    tpot_s: list[float]
    itl_s: list[float]
    elapsed_s: float
    output_tokens: int

    @classmethod
    def of(cls, answers: Sequence[Answer], elapsed_s: float) -> Self:
        """Collect the times of all answers."""
        return cls(
            [answer.ttft_s for answer in answers],
            [answer.tpot_s for answer in answers],
            [gap_s for answer in answers for gap_s in answer.itl_s],
            elapsed_s,
            sum(answer.output_tokens for answer in answers),
        )


def load(
    streams: Annotated[str, typer.Option(help="Numbers of streams, one round each.")] = "1,4,16",
    input_tokens: Annotated[int, typer.Option(min=1)] = 128,
    output_tokens: Annotated[int, typer.Option(min=2)] = 64,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each stream.")] = 3,
    url: GatewayUrl = None,
    name: MeshName = DEFAULT_NAME,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random prompts.")] = 1,
    ca: CaFile = None,
) -> None:
    """Measure TTFT, TPOT and throughput of a running mesh."""
    rounds = _parse_streams(streams)
    require_writable(json)
    base_url = find_gateway(name, url)
    console = report_console()
    rows: list[ReportRow] = []
    with progress_bar(console) as progress:
        for count in rounds:
            task = progress.add_task(f"{count} streams", total=count * requests)
            shape = StreamShape(count, requests, input_tokens, output_tokens, seed)
            measured = asyncio.run(run_round(base_url, shape, functools.partial(progress.advance, task), ca))
            rows += _rows(count, measured)
    about = environment(url=base_url, input_tokens=input_tokens, output_tokens=output_tokens, requests=requests)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.1f}")


async def run_round(
    url: str,
    shape: StreamShape,
    answered: Callable[[], Any],
    ca_file: Path | None = None,
    options: Mapping[str, object] | None = None,
    models: Sequence[str] = (),
) -> RoundMeasurements:
    """Run one round: one uncounted request of each stream, then the load, all with these further parameters; streams take
    `models` in turn, by default the first that is listed.

    Raises:
        CommandError: the gateway fails.
    """
    rng = random.Random(shape.seed)
    async with GatewayClient(url, ca_file) as client:
        served = models or (await client.models())[:1]

        async def send(stream: int, _: int) -> Answer:
            prompt = random_prompt(rng, shape.input_tokens)
            model = served[stream % len(served)]
            return await stream_completion(client, model, prompt, shape.output_tokens, options=options)

        await run_closed_loop(shape.streams, range(1).__contains__, send)  # warms connections and caches
        started_s = time.perf_counter()
        answers = await run_closed_loop(shape.streams, range(shape.requests).__contains__, send, answered)
        return RoundMeasurements.of(answers, time.perf_counter() - started_s)


def _rows(streams: int, measured: RoundMeasurements) -> list[ReportRow]:
    def row(figure: str, ours: float) -> ReportRow:
        return ReportRow(f"{streams} streams: {figure}", ours)

    return [
        row("TTFT p50, ms", 1000 * statistics.median(measured.ttft_s)),
        row("TTFT p99, ms", 1000 * percentile(measured.ttft_s, 99)),
        row("TPOT p50, ms", 1000 * statistics.median(measured.tpot_s)),
        row("ITL p99, ms", 1000 * percentile(measured.itl_s, 99)),
        row("output tokens/s", measured.output_tokens / measured.elapsed_s),
    ]


def _parse_streams(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise OptionError(f"--streams {text!r}: write numbers of streams like 1,4,16")
    return counts
