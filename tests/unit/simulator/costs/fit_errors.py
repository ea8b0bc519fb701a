"""How far a fit is from measurements that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from spotwise.core.costs.cost_model import BatchShape, IterationCost, pairs
from spotwise.simulator.costs.profile_fit import ProfileRow

#: Batches of more than one request were measured with prompts of so many tokens.
BATCH_LINE_PROMPT = 512


@dataclass(frozen=True, slots=True)
class FitError:
    """Mean absolute percentage error, percent, on rows that the fit has not seen.

    Attributes:
        prompt, decode: of the two phases.
    """

    prompt: float
    decode: float


Fit = Callable[[Sequence[ProfileRow]], IterationCost]


def error_on_repeats(rows: Sequence[ProfileRow], fit: Fit, folds: int = 5) -> FitError:
    """Fit without every fifth row, try it on these, and so on in turn: the error at sizes that were measured."""
    return _error(
        (rows[fold::folds], [r for i, r in enumerate(rows) if i % folds != fold], fit) for fold in range(folds)
    )


def error_between_points(rows: Sequence[ProfileRow], fit: Fit) -> FitError:
    """Fit without all rows of one size, try it on these, and so on in turn: the error between sizes, which double.

    The smallest and the largest of each line stay in, since nothing is between them.
    """
    sizes = sorted({(row.prompt_size, row.batch_size) for row in rows})
    longest, largest = max(size for size, _ in sizes), max(batch for _, batch in sizes)
    shortest = min(size for size, _ in sizes)
    inner = [
        (size, batch)
        for size, batch in sizes
        if (batch > 1 or size not in (shortest, longest))
        and batch != largest
        and (size, batch) != (BATCH_LINE_PROMPT, 1)
    ]
    return _error(
        (
            [row for row in rows if (row.prompt_size, row.batch_size) == left_out],
            [row for row in rows if (row.prompt_size, row.batch_size) != left_out],
            fit,
        )
        for left_out in inner
    )


def _error(splits: Iterable[tuple[Sequence[ProfileRow], Sequence[ProfileRow], Fit]]) -> FitError:
    prompt: list[float] = []
    decode: list[float] = []
    for unseen, seen, fit in splits:
        cost = fit(seen)
        for row in unseen:
            prompt_s, decode_s = predicted(cost, row)
            prompt.append(100 * abs(prompt_s / row.prompt_s - 1))
            decode.append(100 * abs(decode_s / row.token_s - 1))
    return FitError(fmean(prompt), fmean(decode))


def predicted(cost: IterationCost, row: ProfileRow) -> tuple[float, float]:
    """Return the seconds of a row's prompt phase and of its mean decode iteration, as a cost has them."""
    prompt = BatchShape(row.prompt_tokens, row.batch_size * pairs(0, row.prompt_size))
    decode = BatchShape(decodes=row.batch_size, decode_context=row.decode_context)
    return cost.iteration_s(prompt), cost.iteration_s(decode)
