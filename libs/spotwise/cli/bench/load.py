"""`spotwise bench load`: TTFT, TPOT and throughput at several numbers of streams.

Prompts are random token ids, outputs run to their full length (`ignore_eos`), and every stream asks again as soon as it is
answered. A first round that nobody counts warms connections and caches.
"""

from __future__ import annotations

import asyncio
import functools
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from spotwise.cli.bench.completion import Answer, ask, open_client, random_prompt, told_plainly
from spotwise.cli.bench.percentile import percentile
from spotwise.cli.bench.progress import progress_bar
from spotwise.cli.bench.report import Row, environment, report_console, require_writable, write_report
from spotwise.cli.bench.stream_load import StreamShape
from spotwise.cli.errors import OptionError
from spotwise.cli.gateway_access import find_gateway
from spotwise.cli.launch.run_folder import DEFAULT_NAME


@dataclass(slots=True)
class Measured:
    """What the streams of one round saw, seconds.

    Attributes:
        ttft_s: from sending a request to its first token.
        tpot_s: mean time per further token, by request (the papers' TBT).
        itl_s: gaps between chunks, all requests together.
        elapsed_s: the round's length.
        output_tokens: of all its requests, as their usage says.
    """

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    output_tokens: int = 0

    def add(self, answer: Answer) -> None:
        """Count one more answer."""
        self.output_tokens += answer.output_tokens
        self.ttft_s.append(answer.ttft_s)
        self.tpot_s.append(answer.tpot_s)
        self.itl_s += answer.itl_s


def load(
    streams: Annotated[str, typer.Option(help="Numbers of streams, one round each.")] = "1,4,16",
    input_tokens: Annotated[int, typer.Option(min=1)] = 128,
    output_tokens: Annotated[int, typer.Option(min=2)] = 64,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each stream.")] = 3,
    url: Annotated[str | None, typer.Option(help="A gateway; by default that of this machine's mesh.")] = None,
    name: Annotated[str, typer.Option(help="Which of this machine's meshes.")] = DEFAULT_NAME,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random prompts.")] = 1,
) -> None:
    """Measure TTFT, TPOT and throughput of a running mesh."""
    rounds = _parse_streams(streams)
    require_writable(json)
    base_url = find_gateway(name, url)
    console = report_console()
    rows: list[Row] = []
    with progress_bar(console) as progress:
        for count in rounds:
            task = progress.add_task(f"{count} streams", total=count * requests)
            shape = StreamShape(count, requests, input_tokens, output_tokens, seed)
            measured = asyncio.run(run_round(base_url, shape, functools.partial(progress.advance, task)))
            rows += _rows(count, measured)
    about = environment(url=base_url, input_tokens=input_tokens, output_tokens=output_tokens, requests=requests)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.1f}")


async def run_round(url: str, shape: StreamShape, answered: Callable[[], Any]) -> Measured:
    """Run all streams of a round at once, after one request each that is not counted.

    Raises:
        CommandError: the gateway does not answer, or answers with an error.
    """
    rng = random.Random(shape.seed)
    with told_plainly(url):
        async with open_client(url) as client:
            model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]

            async def stream(count: int, into: Measured) -> None:
                for _ in range(count):
                    prompt = random_prompt(rng, shape.input_tokens)
                    into.add(await ask(client, model, prompt, shape.output_tokens))
                    if into is measured:
                        answered()

            measured = Measured()
            warm_up = Measured()
            await asyncio.gather(*(stream(1, warm_up) for _ in range(shape.streams)))
            started_s = time.perf_counter()
            await asyncio.gather(*(stream(shape.requests, measured) for _ in range(shape.streams)))
            measured.elapsed_s = time.perf_counter() - started_s
            return measured


def _rows(streams: int, measured: Measured) -> list[Row]:
    def row(figure: str, ours: float) -> Row:
        return Row(f"{streams} streams: {figure}", ours)

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
