"""The product limit (Kaplan and Meier, 1958), which assumes nothing: what tests hold fitted hazards and traces against."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from spotwise.core.lives.survival import Life


@dataclass(frozen=True, slots=True)
class StepSurvival:
    """The product limit: the share of lives longer than an age.

    Attributes:
        at_s: ages at which lives ended, ascending.
        shares: of lives longer than that.
    """

    at_s: tuple[float, ...]
    shares: tuple[float, ...]

    def __call__(self, age_s: float) -> float:
        """Return the share of lives longer than an age."""
        index = bisect_right(self.at_s, age_s)
        return self.shares[index - 1] if index else 1.0

    @property
    def median_s(self) -> float | None:
        """The age that no more than half of the lives pass; `None` where more than half were seen to pass every age."""
        return next((at_s for at_s, share in zip(self.at_s, self.shares, strict=True) if share <= 0.5), None)


def kaplan_meier(lives: Iterable[Life]) -> StepSurvival:
    """Return the product limit; a life last seen at the age of another's end was at risk then."""
    seen = list(lives)
    ends = sorted({life.age_s for life in seen if life.ended})
    shares: list[float] = []
    share = 1.0
    for end_s in ends:
        at_risk = sum(life.first_seen_s < end_s <= life.age_s or life.first_seen_s == end_s == 0.0 for life in seen)
        ended = sum(life.ended and life.age_s == end_s for life in seen)
        if at_risk:  # none, where a life ended at the very age at which it was first seen
            share *= 1.0 - ended / max(at_risk, ended)
        shares.append(share)
    return StepSurvival(tuple(ends), tuple(shares))
