"""Requests in bursts, most of them short, a few very long; drawn as for simulations (`studies/fastserve/job_sizes.py`).

As in `arrivals.py` the same seed gives the same schedule, and another rate the same requests at other times.
"""

from __future__ import annotations

from dataclasses import replace

from spotwise.benchmarks.arrivals import TimedRequest
from spotwise.studies.fastserve.job_sizes import ZipfSizes, gamma_arrivals


def bursts(count: int, rate: float, cv: float, seed: int, sizes: ZipfSizes) -> list[TimedRequest]:
    """`count` requests at `rate` a second; `cv` is the coefficient of variation of their gaps, 1 is Poisson."""
    return _arrivals(count, rate, cv, seed, sizes, f"{seed} at {rate:g}/s")


def all_at_once(count: int, seed: int, sizes: ZipfSizes) -> list[TimedRequest]:
    """`count` requests of the same lengths, at time 0."""
    return [replace(arrival, at_s=0.0) for arrival in _arrivals(count, 1.0, 1.0, seed, sizes, f"{seed} at once")]


def _arrivals(count: int, rate: float, cv: float, seed: int, sizes: ZipfSizes, prompts: str) -> list[TimedRequest]:
    jobs = gamma_arrivals(sizes, rate, cv, count, seed)
    return [
        TimedRequest(job.at_s, job.prompt_tokens, job.output_tokens, f"{prompts} {number}")
        for number, job in enumerate(jobs)
    ]
