"""Arrival processes: of SpotServe's artifact, Gamma with a given CV, and with changing rates; requests have one size (section
6.1). The artifact's "cv6" files have a CV below 0.1: their generator gives the Gamma another shape than 1 / CV^2, which is
drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from spotwise.files.spot_traces import read_lines
from spotwise.files.tables import TraceError
from spotwise.simulator.spotserve.arrivals import OUTPUT_TOKENS, SpotArrivals


def read_spot_arrivals(path: Path, name: str | None = None, output_tokens: int = OUTPUT_TOKENS) -> SpotArrivals:
    """Read a list of the artifact, `id,arrival_s,input_tokens,byte_offset` a line; raises TraceError if it cannot be read, a
    line is wrong, or requests differ in size."""
    times_s: list[float] = []
    sizes: dict[int, int] = {}
    for number, line in read_lines(path):
        cells = line.split(",")
        try:
            if len(cells) < 3:
                raise ValueError
            time_s, tokens = float(cells[1]), int(cells[2])
            if tokens < 1 or not 0 <= time_s < float("inf"):
                raise ValueError
        except ValueError:
            raise TraceError(f"{path}, line {number}: {line!r} is not id,arrival_s,input_tokens,byte_offset") from None
        if times_s and time_s < times_s[-1]:
            raise TraceError(f"{path}, line {number}: {time_s:g} s is earlier than the line before it")
        times_s.append(time_s)
        sizes.setdefault(tokens, number)
    if len(sizes) > 1:
        first, other = list(sizes.items())[:2]
        raise TraceError(f"{path}, line {other[1]}: {other[0]} input tokens, where line {first[1]} has {first[0]}")
    return SpotArrivals(name or path.stem, tuple(times_s), next(iter(sizes)), output_tokens)


def read_rates(path: Path) -> tuple[float, ...]:
    """Read a line of comma-separated rates, requests a second; raises TraceError if it cannot be read or a value is no rate."""
    rates = []
    for number, line in read_lines(path):
        for cell in line.split(","):
            try:
                rate = float(cell)
            except ValueError:
                rate = -1.0
            if not 0 <= rate < float("inf"):
                raise TraceError(f"{path}, line {number}: {cell!r} is no rate of at least 0")
            rates.append(rate)
    return tuple(rates)


def gamma_spot_arrivals(rate: float, cv: float, until_s: float, rng: np.random.Generator) -> SpotArrivals:
    """Draw arrivals with Gamma-distributed gaps until a time; raises ValueError if rate, CV or time is not above 0."""
    return changing_arrivals([(0.0, rate)], cv, until_s, rng)


def changing_arrivals(
    rates: Sequence[tuple[float, float]], cv: float, until_s: float, rng: np.random.Generator
) -> SpotArrivals:
    """Draw Gamma arrivals whose mean rate changes; a changed rate stretches time.

    Args:
        rates: pairs of a start time and requests a second; the first from 0 s.
        cv: coefficient of variation of the gaps, were the rate 1 throughout.

    Raises:
        ValueError: a number is out of range, or the rates are not in order from 0 s.
    """
    starts, heights = [start for start, _ in rates], [height for _, height in rates]
    if not rates or starts[0] != 0 or any(later <= earlier for earlier, later in pairwise(starts)):
        raise ValueError("rates begin at 0 s and follow one another")
    if min(heights) < 0 or max(heights) <= 0 or cv <= 0 or not 0 < until_s < float("inf"):
        raise ValueError("arrivals need a rate, a CV and a time above 0")
    ends = [min(end, until_s) for end in (*starts[1:], until_s)]
    bounds = [0.0]  # requests expected until the end of each while
    for start, end, height in zip(starts, ends, heights, strict=True):
        bounds.append(bounds[-1] + max(0.0, end - start) * height)
    times_s: list[float] = []
    shape, at, piece = 1.0 / cv**2, 0.0, 0
    while True:
        for gap in rng.gamma(shape, cv**2, 1024).tolist():
            at += gap
            while piece < len(heights) and at >= bounds[piece + 1]:
                piece += 1
            if piece == len(heights):
                name = f"{heights[0]:g}/s CV {cv:g}" if len(heights) == 1 else f"changing rate, CV {cv:g}"
                return SpotArrivals(name, tuple(times_s))
            times_s.append(starts[piece] + (at - bounds[piece]) / heights[piece])
