"""Iteration costs of the designs' machines, by a profile's GPU names: fitted from a profile, or built in. No profile has the
power-capped H100: it is the H100 with slower prompts, in every model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from spotwise.core.cost_model import TableIterationCost
from spotwise.simulator.costs.hardware import LanguageModel
from spotwise.simulator.costs.profile_fit import (
    Peaks,
    fit_honest,
    fit_published,
    fit_published_by_batch,
    with_slower_prompts,
)
from spotwise.simulator.costs.profiles import ProfileError, ProfileRow, measured, read_profile
from spotwise.simulator.packaged_data import read_packaged

#: GPUs of a machine, all of which serve one copy of the model.
TENSOR_PARALLEL = 8
#: Prompt time under a cap at half the power, against none (Splitwise, figure 9).
CAPPED_PROMPT_FACTOR = 1.3

A100, H100, H100_CAPPED = "a100-80gb", "h100-80gb", "h100-80gb-pcap"

#: Eight GPUs' dense half-precision arithmetic and memory bandwidth, as their maker states them (SXM).
PEAKS = {A100: Peaks(8 * 312e12, 8 * 2.039e12), H100: Peaks(8 * 989e12, 8 * 3.35e12)}


class DecodeModel(StrEnum):
    """How decode and mixed iterations are timed."""

    HONEST = "honest"  #: by batch size and context, as measured in the profile
    PUBLISHED = "published"  #: as the published simulator does: nearly the same for every batch
    BY_BATCH = "by-batch"  #: the published one with a single change: iterations that only decode go by batch size


@dataclass(frozen=True, slots=True)
class BuiltInCost:
    """A fitted cost that ships with the simulator; `gpu` as profiles name it."""

    model: str
    gpu: str
    decode_model: DecodeModel
    cost: TableIterationCost


@dataclass(frozen=True, slots=True)
class _BuiltInCosts:
    source: str
    costs: tuple[BuiltInCost, ...]


@cache
def all_built_in_costs() -> tuple[BuiltInCost, ...]:
    """Return the costs of `built_in_costs.json`."""
    return read_packaged("spotwise.simulator.costs", "built_in_costs.json", _BuiltInCosts).costs


def built_in_costs(model: LanguageModel, decode_model: DecodeModel) -> dict[str, TableIterationCost]:
    """Return a language model's built-in costs, by GPU; raises ProfileError if it has none."""
    by_gpu = {
        entry.gpu: entry.cost
        for entry in all_built_in_costs()
        if (entry.model, entry.decode_model) == (model.name, decode_model)
    }
    if not by_gpu:
        known = ", ".join(sorted({entry.model for entry in all_built_in_costs()}))
        raise ProfileError(f"{model.name} has no built-in costs, only {known} have; give a profile of it")
    return _with_capped(by_gpu)


@cache
def costs_from(path: Path, model: LanguageModel, decode_model: DecodeModel) -> dict[str, TableIterationCost]:
    """Fit a profile, by GPU; raises ProfileError if it cannot be read or has too few rows of this model on both GPUs."""
    rows = read_profile(path)
    return _with_capped({gpu: fit(rows_of(rows, model, gpu, path), model, gpu, decode_model) for gpu in (A100, H100)})


def rows_of(rows: list[ProfileRow], model: LanguageModel, gpu: str, path: Path) -> list[ProfileRow]:
    """Return the rows of one model on one machine; raises ProfileError without any."""
    own = [row for row in rows if (row.model, row.hardware, row.tensor_parallel) == (model.name, gpu, TENSOR_PARALLEL)]
    if not own:
        raise ProfileError(f"{path} has no rows of {model.name} on {TENSOR_PARALLEL} {gpu}")
    return own


def fit(rows: list[ProfileRow], model: LanguageModel, gpu: str, decode_model: DecodeModel) -> TableIterationCost:
    """Fit the rows of one model on one machine; raises ProfileError if there are too few."""
    if decode_model is DecodeModel.HONEST:
        kept, _ = measured(rows)
        return fit_honest(kept, model, PEAKS[gpu])
    return fit_published(rows) if decode_model is DecodeModel.PUBLISHED else fit_published_by_batch(rows)


def _with_capped(costs: dict[str, TableIterationCost]) -> dict[str, TableIterationCost]:
    return costs | {H100_CAPPED: with_slower_prompts(costs[H100], CAPPED_PROMPT_FACTOR)}
