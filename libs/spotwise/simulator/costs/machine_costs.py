"""What iterations cost on the machines that designs are made of: fitted from a profile, or the fit that comes along.

Law: costs go by a profile's names of GPUs, and there is one for each that a design may ask for. The power-capped H100 is the
H100 with slower prompts, in every model, because nobody has measured one.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from pathlib import Path

from spotwise.core.cost_model import TableIterationCost
from spotwise.simulator.costs.built_in_costs import BUILT_IN
from spotwise.simulator.costs.hardware import LanguageModel
from spotwise.simulator.costs.profile_fit import (
    Peaks,
    fit_honest,
    fit_published,
    fit_published_by_batch,
    with_slower_prompts,
)
from spotwise.simulator.costs.profiles import ProfileError, ProfileRow, measured, read_profile

#: GPUs of a machine, all of which serve one copy of the model.
TENSOR_PARALLEL = 8
#: Prompt time under a cap at half the power, against none (Splitwise, figure 9).
CAPPED_PROMPT_FACTOR = 1.3

A100, H100, H100_CAPPED = "a100-80gb", "h100-80gb", "h100-80gb-pcap"

#: Eight GPUs' dense half-precision arithmetic and memory bandwidth, as their maker states them (SXM).
PEAKS = {
    A100: Peaks(8 * 312e12, 8 * 2.039e12),
    H100: Peaks(8 * 989e12, 8 * 3.35e12),
}


class DecodeModel(StrEnum):
    """How decode and mixed iterations are timed."""

    HONEST = "honest"  #: by batch size and context, as the profile's measurements say
    PUBLISHED = "published"  #: as the published simulator does: nearly the same for every batch
    BY_BATCH = "by-batch"  #: the published one with a single change: iterations that only decode go by batch size


def built_in_costs(model: LanguageModel, decode_model: DecodeModel) -> dict[str, TableIterationCost]:
    """Return the costs that come along, by GPU.

    Raises:
        ProfileError: there are none for this language model.
    """
    if (model.name, A100, decode_model) not in BUILT_IN:
        known = ", ".join(sorted({name for name, _, _ in BUILT_IN}))
        raise ProfileError(f"no costs of {model.name} come along, only of {known}; give a profile of it")
    return _with_capped({gpu: BUILT_IN[model.name, gpu, decode_model] for gpu in (A100, H100)})


@cache
def costs_from(path: Path, model: LanguageModel, decode_model: DecodeModel) -> dict[str, TableIterationCost]:
    """Fit a profile, by GPU.

    Raises:
        ProfileError: the profile cannot be read, or says too little of this model on both GPUs.
    """
    rows = read_profile(path)
    return _with_capped({gpu: fit(rows_of(rows, model, gpu, path), model, gpu, decode_model) for gpu in (A100, H100)})


def rows_of(rows: list[ProfileRow], model: LanguageModel, gpu: str, path: Path) -> list[ProfileRow]:
    """Return the rows of one model on one machine.

    Raises:
        ProfileError: there are none.
    """
    own = [row for row in rows if (row.model, row.hardware, row.tensor_parallel) == (model.name, gpu, TENSOR_PARALLEL)]
    if not own:
        raise ProfileError(f"{path} has no rows of {model.name} on {TENSOR_PARALLEL} {gpu}")
    return own


def fit(rows: list[ProfileRow], model: LanguageModel, gpu: str, decode_model: DecodeModel) -> TableIterationCost:
    """Fit the rows of one model on one machine.

    Raises:
        ProfileError: there are too few.
    """
    if decode_model is DecodeModel.HONEST:
        kept, _ = measured(rows)
        return fit_honest(kept, model, PEAKS[gpu])
    return fit_published(rows) if decode_model is DecodeModel.PUBLISHED else fit_published_by_batch(rows)


def _with_capped(costs: dict[str, TableIterationCost]) -> dict[str, TableIterationCost]:
    return costs | {H100_CAPPED: with_slower_prompts(costs[H100], CAPPED_PROMPT_FACTOR)}
