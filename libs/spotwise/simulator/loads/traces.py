"""Requests of traces, and requests drawn from them. Sizes are drawn with replacement, prompts and outputs independently,
arrivals are Poisson, as in the paper's simulator (Splitwise, section 5); the same seed gives the same arrivals."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spotwise.files.tables import TraceError
from spotwise.simulator.loads.trace_files import MOONCAKE_BLOCK_TOKENS, trace_rows
from spotwise.simulator.world.observation import Arrival, PromptBlocks

_CHUNK = 4096

IntArray = npt.NDArray[np.int64]


class RequestSizes(Protocol):
    """A distribution of request sizes."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens, both [count], each at least 1."""


@dataclass(frozen=True, slots=True)
class TraceBlocks:
    """The blocks of a trace's prompts: those of request i are `hashes[ends[i - 1] : ends[i]]`; `ends` is [requests]."""

    hashes: IntArray
    ends: IntArray
    block_tokens: int

    def of(self, request: int) -> PromptBlocks:
        """Return a request's blocks."""
        first = int(self.ends[request - 1]) if request else 0
        return PromptBlocks(tuple(self.hashes[first : int(self.ends[request])].tolist()), self.block_tokens)


@dataclass(frozen=True, slots=True)
class TraceSizes:
    """The sizes of a trace, drawn with replacement; [requests] each, prompt and output of a line together if `jointly`.

    Attributes:
        blocks: blocks of the prompts, where the trace has their hashes and requests are drawn `jointly`.
    """

    prompt_tokens: IntArray
    output_tokens: IntArray
    jointly: bool = False
    blocks: TraceBlocks | None = None

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens, both [count]."""
        prompts, outputs = self._drawn(count, rng)
        return self.prompt_tokens[prompts], self.output_tokens[outputs]

    def draw_requests(self, count: int, rng: np.random.Generator) -> Iterator[tuple[int, int, PromptBlocks | None]]:
        """Draw prompt tokens, output tokens and blocks of so many requests; the same sizes as `draw`."""
        prompts, outputs = self._drawn(count, rng)
        for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True):
            blocks = None if self.blocks is None else self.blocks.of(prompt)
            yield int(self.prompt_tokens[prompt]), int(self.output_tokens[output]), blocks

    def _drawn(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        prompts = rng.integers(len(self.prompt_tokens), size=count)
        return prompts, prompts if self.jointly else rng.integers(len(self.output_tokens), size=count)


def trace_arrivals(path: Path, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> Iterator[Arrival]:
    """Yield a trace's requests at its own times, the first at 0 s; raises TraceError if the file cannot be read or a line is
    wrong."""
    start_s: float | None = None
    last_s = 0.0
    for row in trace_rows(path, block_tokens):
        start_s = row.at_s if start_s is None else start_s
        at_s = row.at_s - start_s
        if at_s < last_s:
            raise TraceError(f"{path}, line {row.line}: its time is earlier than the line's before it")
        last_s = at_s
        yield Arrival(at_s, row.prompt_tokens, row.output_tokens, row.blocks)
    if start_s is None:
        raise TraceError(f"{path} has no requests")


def read_sizes(path: Path, *, jointly: bool = False, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> TraceSizes:
    """Read the sizes of a trace, and its prompts' blocks if `jointly`; raises TraceError if the file cannot be read, a line is
    wrong, or there is none."""
    prompts, outputs, hashes, ends = array("q"), array("q"), array("q"), array("q")
    for row in trace_rows(path, block_tokens):
        prompts.append(row.prompt_tokens)
        outputs.append(row.output_tokens)
        if jointly and row.blocks is not None:
            hashes.extend(row.blocks.hashes)
        ends.append(len(hashes))
    if not prompts:
        raise TraceError(f"{path} has no requests")
    blocks = TraceBlocks(_numbers(hashes), _numbers(ends), block_tokens) if hashes else None
    return TraceSizes(_numbers(prompts), _numbers(outputs), jointly, blocks)


def _numbers(kept: array[int]) -> IntArray:
    return np.array(kept, dtype=np.int64)


def poisson_arrivals(sizes: RequestSizes, rate: float, seconds: float, seed: int) -> Iterator[Arrival]:
    """Yield Poisson arrivals at `rate` requests a second for `seconds`; at least one. Gaps and sizes have separate generators:
    another rate brings the same requests at other times."""
    gaps_rng, sizes_rng = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    at_s = 0.0
    is_first = True
    while True:
        gaps = gaps_rng.exponential(size=_CHUNK).tolist()
        for gap, request in zip(gaps, _drawn_requests(sizes, _CHUNK, sizes_rng), strict=True):
            at_s += gap / rate
            if at_s >= seconds and not is_first:
                return
            yield Arrival(at_s, *request)
            is_first = False


def _drawn_requests(
    sizes: RequestSizes, count: int, rng: np.random.Generator
) -> Iterable[tuple[int, int, PromptBlocks | None]]:
    if isinstance(sizes, TraceSizes) and sizes.blocks is not None:
        return sizes.draw_requests(count, rng)
    prompts, outputs = sizes.draw(count, rng)
    return zip(prompts.tolist(), outputs.tolist(), repeat(None, count), strict=True)


def published_arrivals(sizes: RequestSizes, rate: float, seconds: float, seed: int) -> Iterator[Arrival]:
    """Yield Poisson arrivals as the published simulator's recorded runs had them: one generator draws all gaps, then all
    sizes, of 1.3 times the expected requests and 200; what comes after `seconds` is left out."""
    rng = np.random.default_rng(seed)
    count = int(rate * seconds * 1.3) + 200
    at_s = np.cumsum(rng.exponential(1 / rate, size=count))
    prompts, outputs = sizes.draw(count, rng)
    for arrival in zip(at_s[at_s < seconds].tolist(), prompts.tolist(), outputs.tolist(), strict=False):
        yield Arrival(*arrival)
