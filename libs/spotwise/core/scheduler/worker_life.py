"""A worker's hazard of ending, and the class of it by which workers are ranked.

Law: rates of one class differ by less than a factor of two, so that the first of each class is nearly the best of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotwise.core.lives.survival import PiecewiseHazard

#: A class follows from the ends over so many seconds: about the time of a long answer.
CLASS_HORIZON_S = 60.0
#: Below 2**-26 ends a second (one in two years) and from 1/2 on there is one class each, so that classes are few.
_RAREST, _SOONEST = -26, 0


@dataclass(slots=True)
class WorkerLife:
    """A worker's hazard, and its age in it at the last report; never changed.

    Attributes:
        life_class: ends a second to a power of two.
        per_s, steady_s: its hazard at that age, and for how many seconds it stays that.
    """

    hazard: PiecewiseHazard
    age_s: float
    life_class: int
    per_s: float
    steady_s: float

    @classmethod
    def of(cls, hazard: PiecewiseHazard, age_s: float) -> WorkerLife:
        """Return the life at an age in seconds."""
        per_s = hazard.expected_ends(age_s, CLASS_HORIZON_S) / CLASS_HORIZON_S
        life_class = math.frexp(per_s)[1] if per_s else _RAREST
        return cls(hazard, age_s, min(max(life_class, _RAREST), _SOONEST), *hazard.at(age_s))
