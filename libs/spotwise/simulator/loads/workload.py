"""A simulated cluster's load: the same workload, rate, time and seed give the same requests in every process.

Synthetic sizes are distributed like the Azure traces', without their files: quantile functions log-linear between the published
percentiles (`azure_percentiles.json`). Prompt and output are independent; in the traces nearly so (correlation 0.00 for code,
-0.11 for conversation).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from spotwise.files.tables import KNOWN_KEYS, TraceError
from spotwise.simulator.loads.trace_files import MOONCAKE_BLOCK_TOKENS, has_hashes
from spotwise.simulator.loads.traces import (
    IntArray,
    RequestSizes,
    poisson_arrivals,
    published_arrivals,
    read_sizes,
    trace_arrivals,
)
from spotwise.simulator.packaged_data import read_packaged
from spotwise.simulator.world.observation import Arrival


@dataclass(frozen=True, slots=True)
class _Percentiles:
    prompt_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _AzurePercentiles:
    source: str
    percents: tuple[float, ...]
    workloads: dict[str, _Percentiles]


@dataclass(frozen=True, slots=True)
class SyntheticSizes:
    """Sizes of a kind of workload; tokens at each of `percents`, ascending."""

    percents: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens of so many requests, both [count]."""
        shares = 100 * rng.random((count, 2))
        return self._at(shares[:, 0], self.prompt_tokens), self._at(shares[:, 1], self.output_tokens)

    def _at(self, percents: npt.NDArray[np.float64], tokens: tuple[float, ...]) -> IntArray:
        return np.rint(np.exp(np.interp(percents, self.percents, np.log(tokens)))).astype(np.int64)


_AZURE = read_packaged("spotwise.simulator.loads", "azure_percentiles.json", _AzurePercentiles)
#: By workload.
SYNTHETIC = {
    name: SyntheticSizes(_AZURE.percents, sizes.prompt_tokens, sizes.output_tokens)
    for name, sizes in _AZURE.workloads.items()
}


class ArrivalKind(StrEnum):
    """The arrival process."""

    POISSON = "poisson"  #: at random, with sizes drawn from the workload
    TRACE = "trace"  #: as in the trace, with the sizes they have there
    PUBLISHED = "published"  #: at random, drawn as the published simulator's recorded runs were


@dataclass(frozen=True, slots=True)
class PriorityShare:
    """A priority, the lower the earlier, and its weight among the requests, above 0; one of the tables `[[priorities]]` of a
    cluster file."""

    __pydantic_config__: ClassVar[ConfigDict] = KNOWN_KEYS

    priority: int
    share: float

    def __post_init__(self) -> None:
        if not 0.0 < self.share < math.inf:
            raise ValueError(f"priority {self.priority}: its share must be above 0 and finite")


@dataclass(frozen=True, slots=True)
class ClusterWorkload:
    """Source of requests.

    Attributes:
        name: without a path that of a synthetic workload, `code` or `conv`.
        path: path of a trace; `None` draws sizes with the published percentiles.
        kind: kind of arrivals; the trace's own need a path.
        jointly: draw a prompt with its output instead of each alone.
        block_tokens: tokens of a block that the trace's hashes name.
        priorities: priorities of the requests, drawn at random by their shares; empty: all are alike, or as their source says.
    """

    name: str
    path: Path | None = None
    kind: ArrivalKind = ArrivalKind.POISSON
    jointly: bool = False
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    priorities: tuple[PriorityShare, ...] = ()

    def __post_init__(self) -> None:
        if self.path is None and self.name not in SYNTHETIC:
            raise ValueError(f"there is no workload {self.name!r}: {', '.join(SYNTHETIC)}, or the path of a trace")
        if self.path is None and self.kind is ArrivalKind.TRACE:
            raise ValueError("a trace's own arrivals need the path of a trace")

    @property
    def has_priorities(self) -> bool:
        """Whether its requests may differ in priority."""
        return bool(self.priorities)

    def arrivals(self, rate: float | None, seconds: float | None, seed: int) -> Iterator[Arrival]:
        """Yield requests.

        Args:
            rate: requests a second. A trace's own gaps are scaled to this mean rate; `None` leaves them.
            seconds: time in which requests arrive; `None` to the end of the trace.

        Raises:
            TraceError: the trace cannot be read.
            ValueError: Poisson arrivals need a rate and a time.
        """
        arrivals = self._unranked(rate, seconds, seed)
        return _ranked(arrivals, self.priorities, seed) if self.priorities else arrivals

    def _unranked(self, rate: float | None, seconds: float | None, seed: int) -> Iterator[Arrival]:
        if self.kind is not ArrivalKind.TRACE:
            if rate is None or seconds is None:
                raise ValueError("Poisson arrivals need a rate and a time")
            draw = published_arrivals if self.kind is ArrivalKind.PUBLISHED else poisson_arrivals
            return draw(self.sizes(), rate, seconds, seed)
        assert self.path is not None
        factor = 1.0 if rate is None else mean_rate(self.path, self.block_tokens) / rate
        own = (replace(arrival, at_s=arrival.at_s * factor) for arrival in trace_arrivals(self.path, self.block_tokens))
        return own if seconds is None else takewhile(lambda arrival: arrival.at_s < seconds, own)

    def sizes(self) -> RequestSizes:
        """Return the distribution of sizes; raises TraceError if the trace cannot be read."""
        return SYNTHETIC[self.name] if self.path is None else _sizes_of(self.path, self.jointly, self.block_tokens)

    @property
    def has_hashes(self) -> bool:
        """Whether the trace has hashes of its prompts' blocks; raises TraceError if it cannot be read."""
        return self.path is not None and has_hashes(self.path)

    @property
    def knows_contents(self) -> bool:
        """Whether its requests come with their prompts' blocks: a trace's own, and those drawn whole (`jointly`)."""
        drawn_whole = self.jointly and self.kind is ArrivalKind.POISSON
        return (drawn_whole or self.kind is ArrivalKind.TRACE) and self.has_hashes


def _ranked(arrivals: Iterator[Arrival], priorities: tuple[PriorityShare, ...], seed: int) -> Iterator[Arrival]:
    """Yield arrivals with priorities drawn by their shares, from a generator of their own."""
    rng = np.random.default_rng((seed, 2))
    total = sum(each.share for each in priorities)
    edges = list(accumulate(each.share / total for each in priorities))[:-1]
    for arrival in arrivals:
        yield replace(arrival, priority=priorities[bisect_right(edges, rng.random())].priority)


@cache
def mean_rate(path: Path, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> float:
    """Return a trace's mean rate, requests a second; raises TraceError if it cannot be read or all requests arrive at once."""
    requests, last_s = 0, 0.0
    for arrival in trace_arrivals(path, block_tokens):
        requests, last_s = requests + 1, arrival.at_s
    if last_s <= 0.0:
        raise TraceError(f"{path} has no rate: it needs requests at two times at least")
    return requests / last_s


@cache
def _sizes_of(path: Path, jointly: bool, block_tokens: int) -> RequestSizes:
    return read_sizes(path, jointly=jointly, block_tokens=block_tokens)
