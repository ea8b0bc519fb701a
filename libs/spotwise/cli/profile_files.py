"""Cost profiles that a command is given, and what is reported where a simulation goes beyond what they measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from spotwise.cli.errors import OptionError
from spotwise.core.costs.cost_profile import BUILT_IN, CostProfile, Extrapolation, MeasuredRange
from spotwise.files.cost_profile import read_cost_profile


def read_profile(path: Path, option: str) -> CostProfile:
    """Read a cost profile; raises `OptionError`, naming `option`, where it is unreadable or none."""
    try:
        return read_cost_profile(path)
    except (OSError, ValueError) as error:
        raise OptionError(f"{option} {path}: this is no cost profile of `spotwise profile`: {error}") from error


_BEYOND = {
    "prompt_tokens": "more than {:,.0f} prompt tokens at once",
    "prompt_context": "prompts longer than {:,.0f} tokens",
    "decodes": "more than {:,.0f} decodes at once",
    "decode_context": "decodes over more than {:,.0f} tokens",
}
#: Less is not worth a word.
_LEAST_SHARE = 0.0005
_HELP = "Measure further with `spotwise profile`, --longest-prompt and --widest."


def beyond_in_words(measured: MeasuredRange, name: str) -> str:
    """Return what exceeds one attribute of a range."""
    figure = getattr(measured, name)
    return _BEYOND[name].format(2 * figure if name == "prompt_context" else figure)


def extrapolation_lines(profile: CostProfile | None, beyond: Extrapolation | None) -> list[str]:
    """Return what part of a run's time its profile did not measure; none without a profile, or of the built-in one."""
    if profile is None or beyond is None:
        return _unknown_lines(profile)
    if not _is_worth_it(beyond):
        return []
    share = f"{beyond.share:.1%} of the iterations' time"
    return [f"{share} lies beyond what the profile measured, and is extrapolated: {_causes(beyond)}. {_HELP}"]


def kinds_line(beyond: Sequence[tuple[str, Extrapolation]], in_all: float) -> list[str]:
    """Return the same of several kinds of machine with their names; `in_all` is the share of all their iterations' time."""
    kinds = [f"{name} {each.share:.1%}: {_causes(each)}" for name, each in beyond if _is_worth_it(each)]
    if not kinds:
        return []
    share = f"{in_all:.1%} of the iterations' time of {', '.join(name for name, _ in beyond)}"
    return [f"{share} lies beyond what their profiles measured, and is extrapolated: of {'; of '.join(kinds)}. {_HELP}"]


def unknown_range_line(of: str = "") -> str:
    """Return that a profile, ` of` a machine, does not say how far it was measured."""
    return (
        f"The profile{of} does not say how far it was measured (no measured_range: an earlier version wrote it, or a hand): "
        "what is extrapolated is not marked. `spotwise profile` measures it anew."
    )


def _is_worth_it(beyond: Extrapolation) -> bool:
    return beyond.share >= _LEAST_SHARE


def _causes(beyond: Extrapolation) -> str:
    return ", ".join(
        f"{beyond_in_words(beyond.measured, name)} ({share:.1%})"
        for name, share in beyond.shares.items()
        if share >= _LEAST_SHARE
    )


def says_its_range(profile: CostProfile) -> bool:
    """Tell whether a profile says how far it was measured, or is the built-in one."""
    return profile.measured is not None or profile == BUILT_IN


def _unknown_lines(profile: CostProfile | None) -> list[str]:
    return [] if profile is None or says_its_range(profile) else [unknown_range_line()]


@dataclass(frozen=True, slots=True)
class LoadBeyond:
    """How far a load goes beyond a profile, known before it is served.

    Attributes:
        longer_prompts, longer_contexts: share of the requests, 0 to 1, whose prompt, or prompt and answer, is longer than was
            measured.
        most_decodes: at once.
    """

    measured: MeasuredRange
    longer_prompts: float
    longer_contexts: float
    most_decodes: int

    @classmethod
    def of(cls, measured: MeasuredRange, sizes: Sequence[tuple[int, int]], most_decodes: int) -> Self:
        """Compare a range with requests' prompt and output tokens, at least one, and a batch's decodes."""
        longer_prompts = sum(prompt > measured.prompt_tokens for prompt, _ in sizes)
        longer_contexts = sum(prompt + output > measured.decode_context for prompt, output in sizes)
        return cls(measured, longer_prompts / len(sizes), longer_contexts / len(sizes), most_decodes)


def load_lines(profile: CostProfile, beyond: LoadBeyond | None) -> list[str]:
    """Return how far a load goes beyond its profile; none of the built-in one."""
    if beyond is None:
        return _unknown_lines(profile)
    measured, kinds = beyond.measured, []
    if beyond.longer_prompts:
        kinds.append(f"{beyond.longer_prompts:.1%} of the prompts are longer than {measured.prompt_tokens:,} tokens")
    if beyond.longer_contexts:
        kinds.append(f"{beyond.longer_contexts:.1%} of the contexts grow beyond {measured.decode_context:,.0f} tokens")
    if beyond.most_decodes > measured.decodes:
        kinds.append(f"batches have up to {beyond.most_decodes} decodes, and {measured.decodes} were measured")
    if not kinds:
        return []
    return [f"The load goes beyond what the profile measured, and times are extrapolated: {'; '.join(kinds)}. {_HELP}"]
