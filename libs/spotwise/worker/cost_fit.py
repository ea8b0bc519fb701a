"""From measured times to a cost: least mean error in per cent.

Law: a fit minimises the mean of |predicted - measured| / measured over what it is fitted to, the figure by which it is then
judged (MAPE); a part that would have to be negative is left out. A few iterations that something else held up thus count
little. Decodes are fitted first, then all that has prompts: seconds by size, as lines that rise between sizes that about
double, and what each token of context costs beside. How prompts and decodes in one iteration add up is
`TableIterationCost`'s to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spotwise.core.cost_model import FLAT_BYTES_PER_S, BatchShape, LinkCost, PiecewiseLinear, TableIterationCost
from spotwise.mesh.grpc_control import IterationTime

#: No iteration takes less.
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class IterationFit:
    """What iterations cost, and how well that says what was measured.

    Attributes:
        cost: the parts.
        iterations: measured.
        mape: mean error, a share.
        mape_of: the same of iterations with prompts only, with decodes only and with both, of those that there were.
    """

    cost: TableIterationCost
    iterations: int
    mape: float
    mape_of: dict[str, float]


@dataclass(frozen=True, slots=True)
class LinkCostFit:
    """What hand-offs cost, and how well that says what was measured."""

    cost: LinkCost
    handoffs: int
    mape: float


def fit_iterations(times: Sequence[IterationTime]) -> IterationFit:
    """Fit the parts of an iteration's time.

    Raises:
        ValueError: there was no prompt, or no decode, that took any time.
    """
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
    return LinkCostFit(cost, len(transfers), float(np.mean(errors)))


def least_share_error(
    terms: NDArray[np.float64], seconds: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return what each term costs, `[terms]`, none below 0, for `terms [measured, terms]` that took `seconds [measured]`.

    Each error counts as its weight `[measured]`, or all alike. The minimum is found as a linear program: the errors are
    variables, each at least as large as the miss either way.
    """
    # Imported here and not at the top: it takes half a second, which no other command should.
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
    """Fit seconds by size, and what each token of context costs, to (size, context, seconds) of iterations of one phase.

    Raises:
        ValueError: there are none.
    """
    if not measured:
        raise ValueError("no iteration was measured of one of the phases: the mesh must compute prompts and decode")
    sizes, contexts, seconds = (np.array(column, dtype=np.float64) for column in zip(*measured, strict=True))
    # A bend for each doubling, where its usual size was: between bends that nothing was measured near, any line would do.
    _, doubling, iterations = np.unique(np.round(np.log2(sizes)), return_inverse=True, return_counts=True)
    at = [float(np.median(sizes[doubling == each])) for each in range(len(iterations))]
    if len(at) == 1:
        at.append(2 * at[0])
    # From each bend to the next one the seconds rise by some slope of at least 0; the first and the last line go on.
    reach = [-np.inf, *at[1:-1], np.inf]
    rises = [np.clip(sizes, *ends) - bend for bend, ends in zip(at[:-1], pairwise(reach), strict=True)]
    # All doublings count alike, however many iterations of them there were: a mixed worker cuts most prompts to one size.
    terms = np.stack([np.ones_like(sizes), *rises, contexts], axis=1)
    found = least_share_error(terms, seconds, 1.0 / iterations[doubling])
    steps = [slope * (high - low) for slope, (low, high) in zip(found[1:-1], pairwise(at), strict=True)]
    levels = np.maximum(np.cumsum([found[0], *steps]), _LEAST_S)
    return PiecewiseLinear(tuple(at), tuple(map(float, levels))), float(found[-1])


def _kind(shape: BatchShape) -> str:
    if shape.prompt_tokens and shape.decodes:
        return "mixed"
    return "prompt" if shape.prompt_tokens else "decode"
