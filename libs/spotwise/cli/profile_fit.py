"""From measured times to a cost: least mean error in per cent.

Law: a fit minimises the mean of |predicted - measured| / measured over all that was measured, the figure by which it is
then judged (MAPE); a part that would have to be negative is left out. A few iterations that something else held up thus
count little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotwise.core.cost_model import FLAT_BYTES_PER_S, BatchShape, LinearIterationCost, LinkCost
from spotwise.mesh.grpc_control import IterationTime

#: Reweighted least squares come as near to the least absolute error as they will in about so many rounds.
_ROUNDS = 60
_SMALLEST_RESIDUAL = 1e-6


@dataclass(frozen=True, slots=True)
class IterationFit:
    """What iterations cost, and how well that says what was measured.

    Attributes:
        cost: the parts.
        iterations: measured.
        mape: mean error, a share.
        mape_of: the same of iterations with prompts only, with decodes only and with both, of those that there were.
    """

    cost: LinearIterationCost
    iterations: int
    mape: float
    mape_of: dict[str, float]


@dataclass(frozen=True, slots=True)
class LinkFit:
    """What hand-offs cost, and how well that says what was measured."""

    cost: LinkCost
    handoffs: int
    mape: float


def fit_iterations(times: Sequence[IterationTime]) -> IterationFit:
    """Fit the parts of an iteration's time.

    Raises:
        ValueError: nothing was measured that took any time.
    """
    times = [time for time in times if time.seconds > 0]
    if not times:
        raise ValueError("no iteration was measured")
    shapes = np.array([_terms(time.shape) for time in times], dtype=np.float64)
    seconds = np.array([time.seconds for time in times])
    cost = LinearIterationCost(*map(float, least_share_error(shapes, seconds)))
    errors = np.array([abs(cost.iteration_s(time.shape) / time.seconds - 1) for time in times])
    kinds = np.array([_kind(time.shape) for time in times])
    by_kind = {str(kind): float(errors[kinds == kind].mean()) for kind in sorted(set(kinds))}
    return IterationFit(cost, len(times), float(errors.mean()), by_kind)


def fit_link(transfers: Sequence[tuple[int, float]]) -> LinkFit:
    """Fit latency and bandwidth of hand-offs, given as (bytes, seconds).

    Raises:
        ValueError: nothing was measured that took any time.
    """
    transfers = [(size, seconds) for size, seconds in transfers if size > 0 and seconds > 0]
    if not transfers:
        raise ValueError("no hand-off was measured")
    by_size: dict[int, list[float]] = {}
    for size, taken in transfers:
        by_size.setdefault(size, []).append(taken)
    # Of each size the usual one: now and then a worker sends a prompt the dearer way, to know what that costs.
    sizes = np.array(sorted(by_size), dtype=np.float64)
    seconds = np.array([np.median(by_size[size]) for size in sorted(by_size)])
    if len(sizes) == 1:
        latency_s, second_per_byte = 0.0, float(seconds[0] / sizes[0])
    else:
        latency_s, second_per_byte = least_share_error(np.stack([np.ones_like(sizes), sizes], axis=1), seconds)
    bytes_per_s = min(float(1 / second_per_byte), FLAT_BYTES_PER_S) if second_per_byte > 0 else FLAT_BYTES_PER_S
    cost = LinkCost(float(latency_s), bytes_per_s)
    errors = [abs(cost.transfer_s(size) / taken - 1) for size, taken in transfers]
    return LinkFit(cost, len(transfers), float(np.mean(errors)))


def least_share_error(terms: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each term costs, `[terms]`, none below 0, for `terms [measured, terms]` that took `seconds [measured]`."""
    shares = terms / seconds[:, None]
    used = [column for column in range(terms.shape[1]) if terms[:, column].any()]
    while True:
        found = np.zeros(terms.shape[1])
        found[used] = _least_absolute(shares[:, used])
        negative = [column for column in used if found[column] < 0]
        if not negative:
            return found
        # The one that is furthest from possible, by what it takes off the times.
        used.remove(min(negative, key=lambda column: found[column] * float(shares[:, column].mean())))


def _least_absolute(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x that minimises the sum of |shares x - 1| (iteratively reweighted least squares)."""
    scale = np.abs(shares).max(axis=0)
    scaled = shares / scale
    weights = np.ones(len(shares))
    x = np.zeros(shares.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        x = np.linalg.lstsq(scaled * root[:, None], root, rcond=None)[0]
        weights = 1.0 / np.maximum(np.abs(scaled @ x - 1), _SMALLEST_RESIDUAL)
    return np.asarray(x / scale, dtype=np.float64)


def _terms(shape: BatchShape) -> tuple[float, ...]:
    return (1.0, shape.prompt_tokens, shape.prompt_context, shape.decodes, shape.decode_context)


def _kind(shape: BatchShape) -> str:
    if shape.prompt_tokens and shape.decodes:
        return "mixed"
    return "prompt" if shape.prompt_tokens else "decode"
