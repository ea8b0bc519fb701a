"""Reads request traces in the Azure LLM inference format, lazily. Sizes are drawn with replacement, prompts and outputs
independently, arrivals are Poisson, as in the paper's simulator (Splitwise, section 5); the same seed gives the same
arrivals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spotwise.files.tables import TraceError, csv_rows
from spotwise.simulator.world.observation import Arrival

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_CHUNK = 4096

IntArray = npt.NDArray[np.int64]


class RequestSizes(Protocol):
    """A distribution of request sizes."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens, both [count], each at least 1."""


@dataclass(frozen=True, slots=True)
class TraceSizes:
    """The sizes of a trace, drawn with replacement; [requests] each, prompt and output of a line together if `jointly`."""

    prompt_tokens: IntArray
    output_tokens: IntArray
    jointly: bool = False

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens, both [count]."""
        prompts = rng.integers(len(self.prompt_tokens), size=count)
        outputs = prompts if self.jointly else rng.integers(len(self.output_tokens), size=count)
        return self.prompt_tokens[prompts], self.output_tokens[outputs]


def trace_arrivals(path: Path) -> Iterator[Arrival]:
    """Yield a trace's requests at its own times, the first at 0 s; raises TraceError if the file cannot be read or a line is
    wrong."""
    start: datetime | None = None
    last_s = 0.0
    for line, (timestamp, prompt_tokens, output_tokens) in _rows(path):
        try:
            at = datetime.fromisoformat(timestamp)
        except ValueError as error:
            raise TraceError(
                f"{path}, line {line}: {timestamp!r} is no time like 2023-11-16 18:17:03.9799600"
            ) from error
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        start = start or at
        at_s = (at - start).total_seconds()
        if at_s < last_s:
            raise TraceError(f"{path}, line {line}: {timestamp} is earlier than the line before it")
        last_s = at_s
        yield Arrival(at_s, prompt_tokens, output_tokens)


def read_sizes(path: Path, *, jointly: bool = False) -> TraceSizes:
    """Read the sizes of a trace; raises TraceError if the file cannot be read, a line is wrong, or there is none."""
    flat = np.fromiter((size for _, (_, *sizes) in _rows(path) for size in sizes), dtype=np.int64)
    if not len(flat):
        raise TraceError(f"{path} has no requests")
    return TraceSizes(flat[::2], flat[1::2], jointly)


def poisson_arrivals(sizes: RequestSizes, rate: float, seconds: float, seed: int) -> Iterator[Arrival]:
    """Yield Poisson arrivals at `rate` requests a second for `seconds`; at least one. Gaps and sizes have separate generators:
    another rate brings the same requests at other times."""
    gaps_rng, sizes_rng = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    at_s = 0.0
    is_first = True
    while True:
        prompts, outputs = sizes.draw(_CHUNK, sizes_rng)
        for gap, prompt_tokens, output_tokens in zip(
            gaps_rng.exponential(size=_CHUNK).tolist(), prompts.tolist(), outputs.tolist(), strict=True
        ):
            at_s += gap / rate
            if at_s >= seconds and not is_first:
                return
            yield Arrival(at_s, prompt_tokens, output_tokens)
            is_first = False


def published_arrivals(sizes: RequestSizes, rate: float, seconds: float, seed: int) -> Iterator[Arrival]:
    """Yield Poisson arrivals as the published simulator's recorded runs had them: one generator draws all gaps, then all
    sizes, of 1.3 times the expected requests and 200; what comes after `seconds` is left out."""
    rng = np.random.default_rng(seed)
    count = int(rate * seconds * 1.3) + 200
    at_s = np.cumsum(rng.exponential(1 / rate, size=count))
    prompts, outputs = sizes.draw(count, rng)
    for arrival in zip(at_s[at_s < seconds].tolist(), prompts.tolist(), outputs.tolist(), strict=False):
        yield Arrival(*arrival)


def _rows(path: Path) -> Iterator[tuple[int, tuple[str, int, int]]]:
    """Yield line number, unparsed time, prompt tokens and output tokens."""
    for line, (timestamp, prompt, output) in csv_rows(path, COLUMNS, "a trace"):
        yield line, (timestamp, _tokens(path, line, COLUMNS[1], prompt), _tokens(path, line, COLUMNS[2], output))


def _tokens(path: Path, line: int, column: str, text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        tokens = 0
    if tokens < 1:
        raise TraceError(f"{path}, line {line}: {column} is {text!r}, not a number of tokens of at least 1")
    return tokens
