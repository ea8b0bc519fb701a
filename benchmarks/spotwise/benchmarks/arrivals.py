"""Open-loop schedules: the time and the lengths of each request, independent of the answers; one seed, one schedule.

Lengths are those of Orca's evaluation (section 6.2): prompt and output uniform and independent, arrivals Poisson.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UniformSizes:
    """Inclusive bounds of uniform lengths."""

    input_tokens: tuple[int, int] = (32, 512)
    output_tokens: tuple[int, int] = (1, 128)


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One request; `at_s` counts from the schedule's start, `prompt_seed` seeds its random prompt."""

    at_s: float
    input_tokens: int
    output_tokens: int
    prompt_seed: str


def poisson_arrivals(rate: float, seconds: float, seed: int, sizes: UniformSizes) -> list[TimedRequest]:
    """Arrivals at `rate` requests a second for `seconds`; at least one.

    Lengths and gaps have separate random streams, so that another rate brings the same requests at other times.
    """
    gaps = random.Random(f"gaps {seed}")
    requests = _requests(f"{seed} at {rate:g}/s", seed, sizes)
    at_s = gaps.expovariate(rate)
    arrivals = [_arrival(at_s, requests)]
    while (at_s := at_s + gaps.expovariate(rate)) < seconds:
        arrivals.append(_arrival(at_s, requests))
    return arrivals


def storm(count: int, seed: int, sizes: UniformSizes) -> list[TimedRequest]:
    """`count` requests at time 0."""
    requests = _requests(f"{seed} in a storm", seed, sizes)
    return [_arrival(0.0, requests) for _ in range(count)]


def _requests(prompts: str, seed: int, sizes: UniformSizes) -> Iterator[tuple[int, int, str]]:
    rng = random.Random(f"sizes {seed}")
    number = 0
    while True:
        yield rng.randint(*sizes.input_tokens), rng.randint(*sizes.output_tokens), f"{prompts} {number}"
        number += 1


def _arrival(at_s: float, requests: Iterator[tuple[int, int, str]]) -> TimedRequest:
    input_tokens, output_tokens, prompt_seed = next(requests)
    return TimedRequest(at_s, input_tokens, output_tokens, prompt_seed)
