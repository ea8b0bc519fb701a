"""A closed-loop load of many streams on a mesh, with the CPU time and memory of the mesh's processes."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from spotwise.benchmarks.process_usage import ProcessUsage
from spotwise.benchmarks.sampling import sampled
from spotwise.benchmarks.stream_client import StreamConnection, StreamOutcome
from spotwise.cli.bench.completion import random_prompt
from spotwise.cli.bench.load import StreamShape, run_closed_loop
from spotwise.cli.bench.servers import MeshEndpoint

_SAMPLE_S = 0.5
#: Open files besides the streams' sockets.
_SPARE_FILES = 200


@dataclass(slots=True)
class StreamResult:
    """The result of one load.

    Attributes:
        seconds: from the first request to the last answer.
        cpu_s: the mesh's CPU time during the load, by service id.
        peak_bytes: most memory in any sample, by service id.
        most_open: most streams at once between their first token and their end.
    """

    outcomes: list[StreamOutcome] = field(default_factory=list)
    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    peak_bytes: Counter[str] = field(default_factory=Counter)
    most_open: int = 0

    @property
    def tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(outcome.tokens for outcome in self.outcomes)

    @property
    def failures(self) -> Counter[str]:
        """The number of failed requests, by reason."""
        return Counter(outcome.failure for outcome in self.outcomes if outcome.failure is not None)

    @property
    def cpu_us_per_token(self) -> float:
        """Microseconds of CPU time of the whole mesh for each output token."""
        return 1e6 * sum(self.cpu_s.values()) / max(1, self.tokens)


async def run_streams(
    endpoint: MeshEndpoint,
    shape: StreamShape,
    answered: Callable[[], Any],
    now_open: Callable[[int], Any] = lambda count: None,
) -> StreamResult:
    """Run all streams of a load to their end; `now_open` is called with the number of open ones at each change."""
    _allow_files(shape.streams + _SPARE_FILES)
    rng = random.Random(shape.seed)
    result = StreamResult()
    open_now = 0

    def opened(change: int) -> None:
        nonlocal open_now
        open_now += change
        result.most_open = max(result.most_open, open_now)
        now_open(open_now)

    connections = [StreamConnection(endpoint.url, endpoint.model, opened) for _ in range(shape.streams)]

    async def send(stream: int, _: int) -> StreamOutcome:
        prompt = random_prompt(rng, shape.input_tokens)
        return await connections[stream].stream_completion(prompt, shape.output_tokens)

    async def sample() -> None:
        usage = await asyncio.to_thread(ProcessUsage.of_mesh, endpoint.name)
        result.peak_bytes |= Counter(usage.resident_bytes)

    before, started_s = ProcessUsage.of_mesh(endpoint.name), time.monotonic()
    async with sampled(sample, _SAMPLE_S):
        with ExitStack() as stack:
            for connection in connections:
                stack.callback(connection.close)
            result.outcomes = await run_closed_loop(shape.streams, range(shape.requests).__contains__, send, answered)
        result.seconds = time.monotonic() - started_s
        after = ProcessUsage.of_mesh(endpoint.name)
        result.cpu_s = after.cpu_since(before)
        result.peak_bytes |= Counter(after.resident_bytes)
    return result


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else min(count, hard), hard)
        )
