"""Numbers of pipelines of each type that serve together, and the mean wait of a request before its batch begins.

Law: the paper adds a scheduling latency to l_exe without a formula (SpotServe, section 4.1). Here it is the wait before m equal
pipelines, each of which takes what waits, up to B requests, when it is free; a batch takes l seconds with variation s.
For capacity: batches arrive at alpha / B with variation c^2 / B and wait, after Allen and Cunneen (1978) with Sakasegawa's
factor (1977) and rho = alpha x l / (m B):  (c^2 / B + s^2) / 2  x  l / m  x  rho^(sqrt(2 (m + 1)) - 1) / (1 - rho)
For the next pipeline: with a = min(1, alpha x l / m), the share a^(sqrt(2 (m + 1)) - 1) of requests, weighed with
a + (1 - a) x min(1, c^2 + s^2), waits l / (2 m) where pipelines end in turn and l / 2 where they end together; 1 / B^2 is off.

Exact for B = 1 where Allen and Cunneen's formula is; the docs state how far it holds.

Law: with phases together, any number of pipelines of each type; split, one type for prompts and one for decoding, at least one
pipeline of each; no mix exceeds the available instances. Up to `MOST_TRIED` mixes are all tried. Of more:
- together: pipelines are added type by type in every order of up to three types (else each type first, then by speed), so that
  the fastest mix of every number of pipelines is among them;
- split: all shares of all pipelines (the least latency is among these, as no wait rises with pipelines); by number, adding each
  pipeline where it shortens the wait most, in all or by price (exact for convex waits: Fox, 1966); and the balanced shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: How fast pipelines begin to end together as batches grow; fitted to drawn arrivals.
_BUNCHING = 1.5


def waits_s(
    arrival_rate: float, arrival_cv: float, service_s: Floats, servers: Floats, max_batch: int, service_cv: float = 0.0
) -> Floats:
    """Return the mean wait of a request in seconds, for each of several numbers of pipelines and seconds of a batch.

    Args:
        arrival_rate: alpha, requests a second.
        arrival_cv: coefficient of variation of the gaps; 1 for a Poisson process, 0 for a clock.
        service_s, service_cv: seconds of a batch on a pipeline, and their coefficient of variation.
        servers, max_batch: pipelines of the same shape, at least 1; B.

    Raises:
        ValueError: a rate, a coefficient or a batch out of range.
    """
    if arrival_rate < 0 or min(arrival_cv, service_cv) < 0 or max_batch < 1:
        raise ValueError("rates and coefficients of variation are at least 0, a batch at least 1")
    if arrival_rate == 0:
        return np.zeros_like(service_s)
    busy = arrival_rate * service_s / servers
    steepness = np.sqrt(2 * (servers + 1)) - 1
    stable = busy < max_batch
    load = np.where(stable, busy, 0.0) / max_batch
    spread = arrival_cv**2 / max_batch + service_cv**2
    finite_s = np.where(stable, service_s, 0.0)
    turn_s = finite_s / servers
    for_slot = spread / 2 * turn_s * load**steepness / (1 - load)
    alone = np.minimum(1.0, busy)
    meet = alone + (1 - alone) * min(1.0, arrival_cv**2 + service_cv**2)
    bunched = (1 - 1 / np.maximum(busy, 1.0)) ** _BUNCHING * max(0.0, 1 - arrival_cv**2 - service_cv**2)
    until_next_s = (turn_s + (finite_s - turn_s) * bunched) / 2
    for_pipeline = (1 - 1 / max_batch**2) * alone**steepness * meet * until_next_s
    return np.where(stable, for_slot + for_pipeline, np.inf)


Counts = NDArray[np.int64]

#: Up to so many mixes of a shape are all tried.
MOST_TRIED = 1024

_ORDERED_TYPES = 3


def together(most: Sequence[int], seconds: Sequence[float]) -> Counts:
    """Return numbers of pipelines, a row for each type and a column for each mix.
    `most`: pipelines that each type can have; `seconds`: of a batch on each.
    """
    if np.prod([count + 1 for count in most], dtype=float) <= MOST_TRIED:
        return np.indices([count + 1 for count in most]).reshape(len(most), -1)[:, 1:].astype(np.int64)
    types = range(len(most))
    if len(most) <= _ORDERED_TYPES:
        orders = list(permutations(types))
    else:
        by_speed = sorted(types, key=lambda index: (seconds[index], index))
        orders = [(first, *(index for index in by_speed if index != first)) for first in by_speed]
    total = np.arange(1, sum(most) + 1, dtype=np.int64)
    mixes = np.zeros((len(most), len(orders) * len(total)), dtype=np.int64)
    for place, order in enumerate(orders):
        before = 0
        for index in order:
            mixes[index, place * len(total) : (place + 1) * len(total)] = np.clip(total - before, 0, most[index])
            before += most[index]
    return mixes


def split(
    most: tuple[int, int],
    *,
    same_type: bool,
    seconds: tuple[float, float],
    batch_rate: float,
    waits_s: tuple[Floats, Floats],
    prices: tuple[float, float],
) -> tuple[Counts, Counts]:
    """Return numbers of pipelines for prompts, and for each the number of decoding pipelines.

    Args:
        most: pipelines that each phase's type can have; of one type, as many in all.
        seconds, prices: seconds of a batch's prompts, and of its decoding; price of a pipeline of each.
        batch_rate: full batches that arrive in a second.
        waits_s: seconds that a request waits with 1, 2, ... pipelines of a kind.
    """
    most_prompts, most_decodes = (most[0] - 1, most[1] - 1) if same_type else most
    if min(most_prompts, most_decodes) < 1:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty
    if most_prompts * most_decodes <= MOST_TRIED:
        grid = np.indices((most_prompts, most_decodes)).reshape(2, -1).astype(np.int64) + 1
        prompts, decodes = grid[0], grid[1]
    else:
        parts = [_all(most, same_type), _balanced(most_prompts, most_decodes, seconds)]
        busy = (batch_rate * seconds[0], batch_rate * seconds[1])
        for weights in ((1.0, 1.0), prices) if prices[0] != prices[1] else ((1.0, 1.0),):
            parts.append(_by_gain(most_prompts, most_decodes, busy, waits_s, weights))
        prompts = np.concatenate([part[0] for part in parts])
        decodes = np.concatenate([part[1] for part in parts])
    if same_type:
        fits = prompts + decodes <= most[0]
        prompts, decodes = prompts[fits], decodes[fits]
    return prompts, decodes


def _all(most: tuple[int, int], same_type: bool) -> tuple[Counts, Counts]:
    if not same_type:
        return np.array([most[0]], dtype=np.int64), np.array([most[1]], dtype=np.int64)
    prompts = np.arange(1, most[0], dtype=np.int64)
    return prompts, most[0] - prompts


def _balanced(most_prompts: int, most_decodes: int, seconds: tuple[float, float]) -> tuple[Counts, Counts]:
    """Return, for every number of pipelines, the share at which one phase keeps up with the other, and the next."""
    total = np.arange(2, most_prompts + most_decodes + 1, dtype=np.int64)
    share = seconds[0] / (seconds[0] + seconds[1])
    below = np.floor(total * share).astype(np.int64)
    prompts = np.concatenate((below, below + 1))
    decodes = np.concatenate((total - below, total - below - 1))
    return np.clip(prompts, 1, most_prompts), np.clip(decodes, 1, most_decodes)


def _by_gain(
    most_prompts: int,
    most_decodes: int,
    busy: tuple[float, float],
    waits_s: tuple[Floats, Floats],
    weights: tuple[float, float],
) -> tuple[Counts, Counts]:
    first_prompts, first_decodes = (max(1, int(np.ceil(count - 1e-9))) for count in busy)
    if first_prompts > most_prompts or first_decodes > most_decodes:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty
    gains = [
        (wait_s[first - 1 : most - 1] - wait_s[first:most]) / max(weight, 1e-9)
        for wait_s, first, most, weight in (
            (waits_s[0], first_prompts, most_prompts, weights[0]),
            (waits_s[1], first_decodes, most_decodes, weights[1]),
        )
    ]
    order = np.argsort(-np.concatenate(gains), kind="stable")
    for_prompts = np.concatenate(([0], np.cumsum(order < len(gains[0]))))
    added = np.arange(len(for_prompts))
    return (first_prompts + for_prompts).astype(np.int64), (first_decodes + added - for_prompts).astype(np.int64)
