"""Many streams at once against a mesh, and what they and the mesh's processes came to.

Law: every stream asks again as soon as it is answered, until it has asked as often as it was told; CPU time counts from the
first request to the last answer, of all processes of the mesh together.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spotwise.cli.bench.completion import random_prompt
from spotwise.cli.bench.process_usage import ProcessUsage
from spotwise.cli.bench.sampling import sampled
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.bench.stream_client import StreamConnection, StreamOutcome

_SAMPLE_S = 0.5
#: Beside the streams' sockets.
_SPARE_FILES = 200


@dataclass(frozen=True, slots=True)
class StreamShape:
    """One load.

    Attributes:
        streams: at once.
        requests: of each stream.
        input_tokens, output_tokens: of each request.
        seed: of the prompts.
    """

    streams: int
    requests: int
    input_tokens: int
    output_tokens: int
    seed: int


@dataclass(slots=True)
class StreamResult:
    """What one load came to.

    Attributes:
        outcomes: of all requests.
        seconds: from the first request to the last answer.
        cpu_s: that the mesh used meanwhile, by service id.
        peak_bytes: most memory in any sample, by service id.
        most_open: streams that were between their first token and their end at once, at most.
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
        """How many requests failed, by reason."""
        return Counter(outcome.failure for outcome in self.outcomes if outcome.failure is not None)

    @property
    def cpu_us_per_token(self) -> float:
        """Microseconds of CPU time of the whole mesh for each output token."""
        return 1e6 * sum(self.cpu_s.values()) / max(1, self.tokens)


async def run_streams(endpoint: MeshEndpoint, shape: StreamShape, answered: Callable[[], Any]) -> StreamResult:
    """Run all streams of a load to their end."""
    _allow_files(shape.streams + _SPARE_FILES)
    rng = random.Random(shape.seed)
    result = StreamResult()
    open_now = 0

    def opened(change: int) -> None:
        nonlocal open_now
        open_now += change
        result.most_open = max(result.most_open, open_now)

    async def stream() -> None:
        connection = StreamConnection(endpoint.url, endpoint.model, opened)
        try:
            for _ in range(shape.requests):
                prompt = random_prompt(rng, shape.input_tokens)
                result.outcomes.append(await connection.ask(prompt, shape.output_tokens))
                answered()
        finally:
            connection.close()

    async def sample() -> None:
        usage = await asyncio.to_thread(ProcessUsage.of_mesh, endpoint.name)
        result.peak_bytes |= Counter(usage.resident_bytes)

    before, started_s = ProcessUsage.of_mesh(endpoint.name), time.monotonic()
    async with sampled(sample, _SAMPLE_S):
        await asyncio.gather(*(stream() for _ in range(shape.streams)))
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
