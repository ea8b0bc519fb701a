"""Fits iteration costs to a profile's rows; falling neighbours of a table are pooled (isotonic regression).

Honest model: prefill is linear layers (piecewise linear in the batch's prompt tokens) plus attention by token pairs; decode is
piecewise linear in batch size, plus context. Pair cost: equal prompt tokens as one prompt and as several of 512. Context cost:
one decode behind prompts of 128 to 8,192 tokens, half of the output included. Peak arithmetic and bandwidth bound both from
below; both bounds matter: for one pair of model and machine several prompts took longer than one. The published simulator's
own model is in `published_costs.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from spotwise.core.costs.cost_model import PiecewiseLinear, TableIterationCost, pairs
from spotwise.simulator.costs.hardware import LanguageModel
from spotwise.simulator.costs.profiles import LONGEST_TRUE_OUTPUT, ProfileError, ProfileRow


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of a machine's GPUs in total: half-precision `flops` per second, and memory bandwidth."""

    flops: float
    memory_bytes_per_s: float


def fit_honest(rows: Sequence[ProfileRow], model: LanguageModel, peaks: Peaks) -> TableIterationCost:
    """Fit cleaned measurements (`measured`) of one model on one machine; raises ProfileError if there are too few."""
    pair_s = _pair_s(rows, model, peaks)
    context_s, single_s = _context_line(rows, model, peaks)
    by_tokens: dict[int, list[float]] = {}
    for (prompt_size, batch_size), seconds in sorted(_prompt_medians(rows).items()):
        linear_s = seconds - pair_s * batch_size * pairs(0, prompt_size)
        by_tokens.setdefault(prompt_size * batch_size, []).append(linear_s)
    by_batch: dict[int, list[float]] = {1: [single_s]}
    for row in rows:
        if row.batch_size > 1:
            by_batch.setdefault(row.batch_size, []).append(row.token_s - context_s * row.decode_context)
    return TableIterationCost(
        _rising({tokens: fmean(seconds) for tokens, seconds in by_tokens.items()}),
        _rising({batch_size: median(seconds) for batch_size, seconds in by_batch.items()}),
        pair_s,
        context_s,
    )


def with_slower_prompts(cost: TableIterationCost, factor: float) -> TableIterationCost:
    """Return costs under a power cap: prompts take `factor` times as long, decodes as long as before (Splitwise, figure 9; the
    published profile has 1.3 for half of an H100's power, and no measurement of it)."""
    slower = PiecewiseLinear(cost.prompt.at, tuple(factor * seconds for seconds in cost.prompt.seconds))
    return replace(cost, prompt=slower, prompt_context_s=factor * cost.prompt_context_s)


def _prompt_medians(rows: Iterable[ProfileRow]) -> dict[tuple[int, int], float]:
    groups: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        groups.setdefault((row.prompt_size, row.batch_size), []).append(row.prompt_s)
    return {size: median(seconds) for size, seconds in groups.items()}


def _pair_s(rows: Sequence[ProfileRow], model: LanguageModel, peaks: Peaks) -> float:
    """Return seconds a pair, by least squares over all token counts measured as one prompt and as several."""
    medians = _prompt_medians(rows)
    more_pairs: list[float] = []
    more_s: list[float] = []
    for (prompt_size, batch_size), seconds in medians.items():
        whole_s = medians.get((prompt_size * batch_size, 1))
        if batch_size > 1 and whole_s is not None:
            more_pairs.append(pairs(0, prompt_size * batch_size) - batch_size * pairs(0, prompt_size))
            more_s.append(whole_s - seconds)
    x, y = np.array(more_pairs), np.array(more_s)
    least_s = 4 * model.layers * model.hidden_size / peaks.flops  # a product with the key and one with the value
    return max(float(x @ y / (x @ x)) if len(x) else 0.0, least_s)


def _context_line(rows: Sequence[ProfileRow], model: LanguageModel, peaks: Peaks) -> tuple[float, float]:
    """Return a decode's seconds a token of context, and without context, by least squares at batch 1."""
    singles = [row for row in rows if row.batch_size == 1 and row.token_size <= LONGEST_TRUE_OUTPUT]
    if len({row.prompt_size for row in singles}) < 2:
        raise ProfileError("a fit needs single requests with prompts of two sizes at least")
    x = np.array([row.decode_context for row in singles], dtype=np.float64)
    y = np.array([row.token_s for row in singles])
    slope = float(np.polyfit(x, y, 1)[0])
    slope = max(slope, model.kv_token_bytes / peaks.memory_bytes_per_s)
    return slope, float(np.median(y - slope * x))


def _rising(points: dict[int, float]) -> PiecewiseLinear:
    """Return a table through the points, falling neighbours pooled into their mean; raises ProfileError below two points."""
    if len(points) < 2:
        raise ProfileError("a table needs measurements at two sizes at least")
    at = sorted(points)
    pooled: list[list[float]] = []
    for argument in at:
        pooled.append([points[argument]])
        while len(pooled) > 1 and fmean(pooled[-2]) > fmean(pooled[-1]):
            pooled[-2:] = [pooled[-2] + pooled[-1]]
    seconds = [fmean(pool) for pool in pooled for _ in pool]
    return PiecewiseLinear(tuple(map(float, at)), tuple(seconds))
