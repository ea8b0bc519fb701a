"""Tests with the published files: `SPOTWISE_DATA` names a folder with traces/ and profiles/."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from spotwise.core.costs.cost_model import BatchShape, IterationCost, pairs
from spotwise.simulator.costs.hardware import LANGUAGE_MODELS
from spotwise.simulator.costs.machine_costs import (
    A100,
    H100,
    PEAKS,
    DecodeModel,
    built_in_costs,
    fit,
    fit_as_published,
    published_built_in_costs,
    rows_of,
)
from spotwise.simulator.costs.profile_fit import ProfileRow, fit_honest, measured, read_profile
from spotwise.simulator.loads.traces import read_sizes, trace_arrivals
from spotwise.simulator.loads.workload import SYNTHETIC, ArrivalKind, ClusterWorkload
from spotwise.studies.splitwise.published_runs import SECONDS, SEED, read_published_runs

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
    for unseen, seen, fitted in splits:
        cost = fitted(seen)
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


pytestmark = pytest.mark.skipif("SPOTWISE_DATA" not in os.environ, reason="SPOTWISE_DATA names no folder with the data")

PAIRS = [(model, gpu) for model in LANGUAGE_MODELS for gpu in (A100, H100)]


@pytest.fixture(scope="module")
def data() -> Path:
    return Path(os.environ["SPOTWISE_DATA"])


@pytest.fixture(scope="module")
def profile(data: Path) -> list[ProfileRow]:
    return read_profile(data / "profiles" / "splitwise_perf_model.csv")


def test_rows_that_mislead_are_counted(profile: list[ProfileRow]) -> None:
    """A third of the rows is another third times 1.3; of the rest two sevenths ended early."""
    kept, left_out = measured(profile)
    assert len(kept) + left_out.total() == len(profile) == 1260
    assert left_out["power-capped rows are other rows with the prompt time times 1.3, not measurements"] == 420


@pytest.mark.parametrize(("model", "gpu"), PAIRS)
def test_what_comes_along_is_the_fit(profile: list[ProfileRow], model: str, gpu: str) -> None:
    fitted = fit(rows_of(profile, LANGUAGE_MODELS[model], gpu, Path()), LANGUAGE_MODELS[model], gpu)
    built_in = built_in_costs(LANGUAGE_MODELS[model])[gpu]
    assert built_in.prompt.at == fitted.prompt.at
    assert built_in.prompt.seconds == pytest.approx(fitted.prompt.seconds, rel=1e-4)
    assert built_in.decode.at == fitted.decode.at
    assert built_in.decode.seconds == pytest.approx(fitted.decode.seconds, rel=1e-4)
    assert built_in.prompt_context_s == pytest.approx(fitted.prompt_context_s, rel=1e-4)
    assert built_in.decode_context_s == pytest.approx(fitted.decode_context_s, rel=1e-4)


@pytest.mark.parametrize(("model", "gpu"), PAIRS)
@pytest.mark.parametrize("decode_model", [DecodeModel.PUBLISHED, DecodeModel.BY_BATCH])
def test_what_comes_along_as_published_is_the_fit(
    profile: list[ProfileRow], model: str, gpu: str, decode_model: DecodeModel
) -> None:
    fitted = fit_as_published(rows_of(profile, LANGUAGE_MODELS[model], gpu, Path()), decode_model)
    assert published_built_in_costs(LANGUAGE_MODELS[model], decode_model)[gpu] == fitted


@pytest.mark.parametrize(("model", "gpu"), PAIRS)
def test_the_honest_fit_is_near_what_it_has_not_seen(profile: list[ProfileRow], model: str, gpu: str) -> None:
    """Repeats of sizes that it knows, where the paper's model is within 3 %; and sizes between those it knows."""
    rows, _ = measured(rows_of(profile, LANGUAGE_MODELS[model], gpu, Path()))
    honest = functools.partial(fit_honest, model=LANGUAGE_MODELS[model], peaks=PEAKS[gpu])
    repeats, between = error_on_repeats(rows, honest), error_between_points(rows, honest)
    assert (repeats.prompt + repeats.decode) / 2 < 5.0
    assert between.decode < 5.0


@pytest.mark.parametrize("workload", SYNTHETIC)
def test_synthetic_sizes_are_distributed_as_in_the_trace(data: Path, workload: str) -> None:
    """At no size do the shares of the requests differ by more than 4 %."""
    trace = read_sizes(data / "traces" / f"AzureLLMInferenceTrace_{workload}.csv")
    drawn = SYNTHETIC[workload].draw(100_000, np.random.default_rng(1))
    for own, theirs in zip(drawn, (trace.prompt_tokens, trace.output_tokens), strict=True):
        at = np.unique(theirs)
        shares = [np.searchsorted(np.sort(sizes), at, side="right") / len(sizes) for sizes in (own, theirs)]
        assert np.abs(shares[0] - shares[1]).max() < 0.04


def test_traces_are_read_to_their_last_line(data: Path) -> None:
    counts = {
        name: sum(1 for _ in trace_arrivals(data / "traces" / f"AzureLLMInferenceTrace_{name}.csv"))
        for name in ("code", "conv")
    }
    assert counts == {"code": 8819, "conv": 19366}


def test_arrivals_come_when_the_published_simulators_did(data: Path) -> None:
    """Random arrivals are as many as in the published runs, since the gaps are the same, drawn in either order."""
    runs = read_published_runs(data / "profiles" / "splitwise_sim_replay.csv")
    requested = {run.rate: run.requests for line in runs.values() for run in line}
    assert len(requested) > 10
    for rate, requests in requested.items():
        for kind in (ArrivalKind.POISSON, ArrivalKind.PUBLISHED):
            assert sum(1 for _ in ClusterWorkload("conv", kind=kind).arrivals(rate, SECONDS, SEED)) == requests
