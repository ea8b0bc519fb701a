"""Iteration costs of the designs' machines, by a profile's GPU names: fitted from a profile, or built in. No profile has the
power-capped H100: it is the H100 with slower prompts, in every model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from spotwise.core.costs.cost_model import TableIterationCost
from spotwise.simulator.costs.hardware import LanguageModel
from spotwise.simulator.costs.profile_fit import (
    Peaks,
    ProfileError,
    ProfileRow,
    fit_honest,
    measured,
    read_profile,
    with_slower_prompts,
)
from spotwise.simulator.costs.published_costs import PublishedIterationCost, fit_published, fit_published_by_batch
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
class PublishedBuiltInCost:
    """The same as the published simulator has it."""

    model: str
    gpu: str
    decode_model: DecodeModel
    cost: PublishedIterationCost


@dataclass(frozen=True, slots=True)
class _BuiltInCosts:
    source: str
    costs: tuple[BuiltInCost, ...]
    published_costs: tuple[PublishedBuiltInCost, ...]


@cache
def all_built_in_costs() -> tuple[BuiltInCost | PublishedBuiltInCost, ...]:
    """Return the costs of `built_in_costs.json`."""
    kept = read_packaged("spotwise.simulator.costs", "built_in_costs.json", _BuiltInCosts)
    return *kept.costs, *kept.published_costs


def built_in_costs(model: LanguageModel) -> dict[str, TableIterationCost]:
    """Return a language model's built-in costs by the honest model, by GPU; raises ProfileError if it has none."""
    costs = {entry.gpu: entry.cost for entry in _built_in(model) if isinstance(entry, BuiltInCost)}
    return costs | {H100_CAPPED: with_slower_prompts(costs[H100], CAPPED_PROMPT_FACTOR)}


def published_built_in_costs(model: LanguageModel, decode_model: DecodeModel) -> dict[str, PublishedIterationCost]:
    """Return its costs as the published simulator has them, by GPU; raises ProfileError if it has none."""
    costs = {
        entry.gpu: entry.cost
        for entry in _built_in(model)
        if isinstance(entry, PublishedBuiltInCost) and entry.decode_model is decode_model
    }
    return costs | {H100_CAPPED: costs[H100].with_slower_prompts(CAPPED_PROMPT_FACTOR)}


def _built_in(model: LanguageModel) -> list[BuiltInCost | PublishedBuiltInCost]:
    own = [entry for entry in all_built_in_costs() if entry.model == model.name]
    if not own:
        known = ", ".join(sorted({entry.model for entry in all_built_in_costs()}))
        raise ProfileError(f"{model.name} has no built-in costs, only {known} have; give a profile of it")
    return own


@cache
def costs_from(path: Path, model: LanguageModel) -> dict[str, TableIterationCost]:
    """Fit a profile by the honest model, by GPU; raises ProfileError if it cannot be read or has too few rows of this model
    on both GPUs."""
    rows = read_profile(path)
    costs = {gpu: fit(rows_of(rows, model, gpu, path), model, gpu) for gpu in (A100, H100)}
    return costs | {H100_CAPPED: with_slower_prompts(costs[H100], CAPPED_PROMPT_FACTOR)}


@cache
def published_costs_from(
    path: Path, model: LanguageModel, decode_model: DecodeModel
) -> dict[str, PublishedIterationCost]:
    """Fit a profile as the published simulator does; raises as `costs_from` does."""
    rows = read_profile(path)
    costs = {gpu: fit_as_published(rows_of(rows, model, gpu, path), decode_model) for gpu in (A100, H100)}
    return costs | {H100_CAPPED: costs[H100].with_slower_prompts(CAPPED_PROMPT_FACTOR)}


def rows_of(rows: list[ProfileRow], model: LanguageModel, gpu: str, path: Path) -> list[ProfileRow]:
    """Return the rows of one model on one machine; raises ProfileError without any."""
    own = [row for row in rows if (row.model, row.hardware, row.tensor_parallel) == (model.name, gpu, TENSOR_PARALLEL)]
    if not own:
        raise ProfileError(f"{path} has no rows of {model.name} on {TENSOR_PARALLEL} {gpu}")
    return own


def fit(rows: list[ProfileRow], model: LanguageModel, gpu: str) -> TableIterationCost:
    """Fit the sound rows of one model on one machine by the honest model; raises ProfileError if there are too few."""
    kept, _ = measured(rows)
    return fit_honest(kept, model, PEAKS[gpu])


def fit_as_published(rows: list[ProfileRow], decode_model: DecodeModel) -> PublishedIterationCost:
    """Fit all rows of one model on one machine as the published simulator does, or with the one change of `BY_BATCH`."""
    return fit_published_by_batch(rows) if decode_model is DecodeModel.BY_BATCH else fit_published(rows)
