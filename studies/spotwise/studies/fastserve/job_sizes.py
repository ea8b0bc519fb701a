"""Parametric job sizes, and Gamma arrivals of a given burstiness. Gaps and sizes have separate generators: another rate or
burstiness brings the same jobs at other times. Zipf and Gamma: FastServe, section 6.1, which gives no bounds; log-normal
lengths model chats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spotwise.simulator.loads.traces import IntArray, RequestSizes, read_sizes
from spotwise.simulator.loads.workload import SYNTHETIC
from spotwise.simulator.world.observation import Arrival


@dataclass(frozen=True, slots=True)
class ZipfSizes:
    """Zipf lengths from 1 to a bound: P(k) is proportional to k ** -theta, and theta 0 is uniform."""

    longest_prompt: int
    longest_output: int
    theta: float

    def __post_init__(self) -> None:
        if min(self.longest_prompt, self.longest_output) < 1 or self.theta < 0:
            raise ValueError("the longest length is at least 1 and theta at least 0")

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens of so many jobs, both [count]."""
        shares = rng.random((2, count))
        longest = (self.longest_prompt, self.longest_output)
        prompts, outputs = (
            np.searchsorted(_zipf(length, self.theta), share, side="right") + 1
            for length, share in zip(longest, shares, strict=True)
        )
        return prompts.astype(np.int64), outputs.astype(np.int64)


@cache
def _zipf(longest: int, theta: float) -> npt.NDArray[np.float64]:
    """Return the probabilities of at most 1, 2, ... tokens, but the last, which is 1; [longest - 1]."""
    weights = np.arange(1, longest + 1, dtype=np.float64) ** -theta
    shares: npt.NDArray[np.float64] = np.cumsum(weights)[:-1] / weights.sum()
    return shares


@dataclass(frozen=True, slots=True)
class LogNormalSizes:
    """Log-normal lengths in tokens, clipped to at least 4 and 1; spreads are standard deviations of the logarithms."""

    prompt_median: float
    prompt_spread: float
    output_median: float
    output_spread: float
    longest_prompt: int
    longest_output: int

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens of so many jobs, both [count]."""
        prompts = rng.lognormal(math.log(self.prompt_median), self.prompt_spread, count)
        outputs = rng.lognormal(math.log(self.output_median), self.output_spread, count)
        return (
            np.clip(np.rint(prompts), 4, self.longest_prompt).astype(np.int64),
            np.clip(np.rint(outputs), 1, self.longest_output).astype(np.int64),
        )


@dataclass(frozen=True, slots=True)
class AzureSizes:
    """The sizes of an Azure trace, prompts cut to fit a model's context.

    Attributes:
        name: `conv` or `code`.
        path: path of the trace; `None` for its percentiles.
        longest: prompt and output together, tokens.
    """

    name: str
    path: Path | None
    longest: int

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens of so many jobs, both [count]; raises TraceError if the trace cannot be read."""
        sizes = SYNTHETIC[self.name] if self.path is None else _trace_sizes(self.path)
        prompts, outputs = sizes.draw(count, rng)
        outputs = np.minimum(outputs, self.longest // 2)
        return np.minimum(prompts, self.longest - outputs), outputs


@cache
def _trace_sizes(path: Path) -> RequestSizes:
    return read_sizes(path, jointly=True)


JobSizes = ZipfSizes | LogNormalSizes | AzureSizes


def gamma_arrivals(sizes: RequestSizes, rate: float, cv: float, count: int, seed: int) -> Iterator[Arrival]:
    """Yield `count` jobs at `rate` a second with Gamma gaps of this CV, 1 for Poisson; raises ValueError unless both are above
    0."""
    if rate <= 0 or cv <= 0:
        raise ValueError("jobs need a rate and a CV above 0")
    shape = 1.0 / cv**2
    gaps = np.random.default_rng(seed).gamma(shape, 1.0 / shape, count) / rate
    prompts, outputs = sizes.draw(count, np.random.default_rng((seed, 1)))
    for at_s, prompt, output in zip(np.cumsum(gaps).tolist(), prompts.tolist(), outputs.tolist(), strict=True):
        yield Arrival(at_s, prompt, output)
