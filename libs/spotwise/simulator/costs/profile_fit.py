"""Reads profiles of machines, selects the sound measurements, and fits iteration costs to them; falling neighbours of a table
are pooled (isotonic regression).

Columns and units are those of the published profile (Patel et al., Splitwise, ISCA 2024, `perf_model.csv` of its simulator);
the exclusion rules come from its 1,260 rows.

Honest model: prefill is linear layers (piecewise linear in the batch's prompt tokens) plus attention by token pairs; decode is
piecewise linear in batch size, plus context. Pair cost: equal prompt tokens as one prompt and as several of 512. Context cost:
one decode behind prompts of 128 to 8,192 tokens, half of the output included. Peak arithmetic and bandwidth bound both from
below; both bounds matter: for one pair of model and machine several prompts took longer than one. The published simulator's
own model is in `published_costs.py`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from spotwise.core.costs.cost_model import PiecewiseLinear, TableIterationCost, pairs
from spotwise.simulator.costs.hardware import LanguageModel

#: Longer answers ended early, at an end-of-sequence token: the context of their mean decode time is unknown.
LONGEST_TRUE_OUTPUT = 128
_DOUBTFUL = {("h100-80gb", 64), ("a100-80gb", 64), ("a100-80gb", 32)}


class ProfileError(ValueError):
    """A profile is wrong or incomplete; the message names file, line and fault."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One measurement.

    Attributes:
        tensor_parallel: GPUs.
        prompt_size: tokens of each request's prompt.
        batch_size: requests that ran together.
        token_size: requested output tokens.
        prompt_s: seconds of the batch's whole prompt phase.
        token_s: mean of an iteration of its token phase.
    """

    model: str
    hardware: str
    tensor_parallel: int
    prompt_size: int
    batch_size: int
    token_size: int
    prompt_s: float
    token_s: float

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts of the batch."""
        return self.prompt_size * self.batch_size

    @property
    def decode_context(self) -> int:
        """Context of an iteration in the middle of the answers, tokens."""
        return self.batch_size * (self.prompt_size + self.token_size // 2)


_COLUMNS: Mapping[str, type] = {
    "model": str,
    "hardware": str,
    "prompt_size": int,
    "batch_size": int,
    "token_size": int,
    "prompt_time": float,
    "token_time": float,
    "tensor_parallel": int,
}


def read_profile(path: Path) -> list[ProfileRow]:
    """Read all rows, sound or not; raises ProfileError if the file cannot be read or a line is wrong."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            names = list(lines.fieldnames or ())
            if twice := [column for column in _COLUMNS if names.count(column) > 1]:
                raise ProfileError(f"{path}, line 1: column {', '.join(twice)} is there twice; leave one out")
            missing = [column for column in _COLUMNS if column not in names]
            if missing:
                raise ProfileError(f"{path}, line 1: no column {', '.join(missing)}")
            return [_row(path, lines.line_num, line) for line in lines]
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ProfileError(f"{path} is no CSV file: {error}") from error


def measured(rows: Iterable[ProfileRow]) -> tuple[list[ProfileRow], Counter[str]]:
    """Return the sound rows, and counts of the others by reason."""
    kept: list[ProfileRow] = []
    left_out: Counter[str] = Counter()
    for row in rows:
        reason = _reason_against(row)
        if reason is None:
            kept.append(row)
        else:
            left_out[reason] += 1
    return kept, left_out


def _reason_against(row: ProfileRow) -> str | None:
    if row.hardware.endswith("-pcap"):
        return "power-capped rows are other rows with the prompt time times 1.3, not measurements"
    if row.tensor_parallel == 2 and (row.hardware, row.batch_size) in _DOUBTFUL:
        return "with 2 GPUs the largest batches did not fit and waited"
    if row.token_size > LONGEST_TRUE_OUTPUT:
        return f"answers of more than {LONGEST_TRUE_OUTPUT} tokens ended early"
    return None


def _row(path: Path, line: int, fields: Mapping[str, str]) -> ProfileRow:
    values: dict[str, Any] = {}
    for column, kind in _COLUMNS.items():
        try:
            values[column] = kind(fields[column])
        except (TypeError, ValueError) as error:
            raise ProfileError(f"{path}, line {line}: {column} is {fields[column]!r}, not a number") from error
        if kind is not str and not values[column] > 0:
            raise ProfileError(f"{path}, line {line}: {column} is {fields[column]!r}, not above 0")
    prompt_s, token_s = values.pop("prompt_time") / 1000, values.pop("token_time") / 1000
    return ProfileRow(**values, prompt_s=prompt_s, token_s=token_s)


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
