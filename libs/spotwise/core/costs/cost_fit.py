"""Fits cost models to measured times by the least mean absolute percentage error (MAPE), robust against outliers. Decodes are
fitted first, then iterations with prompts: a piecewise linear function of size, with a bend for each doubling, plus a cost
per token of context; no term is negative. `TableIterationCost` defines how prompts and decodes of one iteration add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spotwise.core.costs.cost_model import (
    FLAT_BYTES_PER_S,
    BatchShape,
    IterationTime,
    LinkCost,
    PiecewiseLinear,
    TableIterationCost,
)

#: No iteration takes less.
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class IterationFit:
    """A fitted cost of iterations.

    Attributes:
        iterations: measured.
        mape: mean absolute error, as a share of the measured seconds.
        mape_of: the same by kind of iteration: "prompt", "decode" and "mixed", where measured.
    """

    cost: TableIterationCost
    iterations: int
    mape: float
    mape_of: dict[str, float]


@dataclass(frozen=True, slots=True)
class LinkCostFit:
    """A fitted cost of hand-offs; `mape` as in `IterationFit`."""

    cost: LinkCost
    handoffs: int
    mape: float


def fit_iterations(times: Sequence[IterationTime]) -> IterationFit:
    """Fit the cost of iterations; raises `ValueError` where no prompt, or no decode, was measured."""
    times = [time for time in times if time.seconds > 0]
    kinds = np.array([_kind(time.shape) for time in times])
    decode, decode_context_s = _fit_phase(
        [
            (time.shape.decodes, time.shape.decode_context, time.seconds)
            for time in times
            if not time.shape.prompt_tokens
        ]
    )
    with_prompts = [(time.shape, time.seconds) for time in times if time.shape.prompt_tokens]
    alone = [(shape, seconds - decode_context_s * shape.decode_context) for shape, seconds in with_prompts]
    prompt, prompt_context_s = _fit_phase(
        [
            (shape.prompt_tokens + shape.decodes, shape.prompt_context, seconds)
            for shape, seconds in alone
            if seconds > 0
        ]
    )
    cost = TableIterationCost(prompt, decode, prompt_context_s, decode_context_s)
    errors = np.array([abs(cost.iteration_s(time.shape) / time.seconds - 1) for time in times])
    by_kind = {str(kind): float(errors[kinds == kind].mean()) for kind in sorted(set(kinds))}
    return IterationFit(cost, len(times), float(errors.mean()), by_kind)


def fit_link(transfers: Sequence[tuple[int, float]]) -> LinkCostFit:
    """Fit latency and bandwidth of hand-offs, given as (bytes, seconds); raises `ValueError` where no hand-off was measured."""
    transfers = [(size, seconds) for size, seconds in transfers if size > 0 and seconds > 0]
    if not transfers:
        raise ValueError("no hand-off was measured")
    by_size: dict[int, list[float]] = {}
    for size, taken in transfers:
        by_size.setdefault(size, []).append(taken)
    # The median of each size: a worker sometimes probes the more expensive push mode.
    sizes = np.array(sorted(by_size), dtype=np.float64)
    seconds = np.array([np.median(by_size[size]) for size in sorted(by_size)])
    if len(sizes) == 1:
        latency_s, second_per_byte = 0.0, float(seconds[0] / sizes[0])
    else:
        latency_s, second_per_byte = least_share_error(np.stack([np.ones_like(sizes), sizes], axis=1), seconds)
    bytes_per_s = min(float(1 / second_per_byte), FLAT_BYTES_PER_S) if second_per_byte > 0 else FLAT_BYTES_PER_S
    cost = LinkCost(float(latency_s), bytes_per_s)
    errors = [abs(cost.transfer_s(size) / taken - 1) for size, taken in transfers]
    return LinkCostFit(cost, len(transfers), float(np.mean(errors)))


def least_share_error(
    terms: NDArray[np.float64], seconds: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return non-negative costs `[terms]` for `terms [measured, terms]` that took `seconds [measured]`. Minimizes the weighted
    mean of relative errors (`weights [measured]`; `None`: equal) as a linear program.
    """
    # Imported here: it takes half a second.
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    shares = terms / seconds[:, None]
    scale = np.maximum(np.abs(shares).max(axis=0), np.finfo(np.float64).tiny)
    scaled, errors = shares / scale, np.eye(len(seconds))
    misses = np.block([[scaled, -errors], [-scaled, -errors]])
    bounds = np.concatenate([np.ones(len(seconds)), -np.ones(len(seconds))])
    costs = np.concatenate([np.zeros(terms.shape[1]), np.ones(len(seconds)) if weights is None else weights])
    found = linprog(costs, A_ub=csr_array(misses), b_ub=bounds, method="highs")
    return np.asarray(found.x[: terms.shape[1]] / scale, dtype=np.float64)


def _fit_phase(measured: Sequence[tuple[int, float, float]]) -> tuple[PiecewiseLinear, float]:
    """Fit seconds by size, and the cost per token of context, to one phase's (size, context, seconds); `ValueError`
    for none.
    """
    if not measured:
        raise ValueError("no iteration was measured of one of the phases: the mesh must compute prompts and decode")
    sizes, contexts, seconds = (np.array(column, dtype=np.float64) for column in zip(*measured, strict=True))
    # A bend for each doubling, at its median size: a bend far from any measured size would be undetermined.
    _, doubling, iterations = np.unique(np.round(np.log2(sizes)), return_inverse=True, return_counts=True)
    at = [float(np.median(sizes[doubling == each])) for each in range(len(iterations))]
    if len(at) == 1:
        at.append(2 * at[0])
    # Between bends the seconds rise by a slope of at least 0; the first and the last line extend outwards.
    reach = [-np.inf, *at[1:-1], np.inf]
    rises = [np.clip(sizes, *ends) - bend for bend, ends in zip(at[:-1], pairwise(reach), strict=True)]
    # Each doubling weighs alike, however many iterations it has: a mixed worker cuts most prompts to one size.
    terms = np.stack([np.ones_like(sizes), *rises, contexts], axis=1)
    found = least_share_error(terms, seconds, 1.0 / iterations[doubling])
    steps = [slope * (high - low) for slope, (low, high) in zip(found[1:-1], pairwise(at), strict=True)]
    levels = np.maximum(np.cumsum([found[0], *steps]), _LEAST_S)
    return PiecewiseLinear(tuple(at), tuple(map(float, levels))), float(found[-1])


def _kind(shape: BatchShape) -> str:
    if shape.prompt_tokens and shape.decodes:
        return "mixed"
    return "prompt" if shape.prompt_tokens else "decode"
