"""The range of iterations that a cost profile was measured in.

Law: an iteration is within the range if it has no more prompt tokens, no more decodes, and no more context of either than the
largest that was measured. Beyond it a cost is extrapolated, and may be wrong by any factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Self

from spotwise.core.costs.cost_model import BatchShape


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """The largest iterations that a profile was fitted to; 0 of what was not measured at all.

    Attributes:
        prompt_tokens: prompt tokens of one iteration.
        prompt_context: tokens that a prompt token attends to, mean of an iteration.
        decodes: decodes of one iteration.
        decode_context: tokens that a decode attends to, mean of an iteration.
    """

    prompt_tokens: int
    prompt_context: float
    decodes: int
    decode_context: float

    @classmethod
    def of(cls, shapes: Iterable[BatchShape]) -> Self:
        """Return the range of these iterations."""
        sizes = [_sizes(shape) for shape in shapes]
        prompt_tokens, prompt_context, decodes, decode_context = map(max, zip((0, 0.0, 0, 0.0), *sizes, strict=True))
        return cls(int(prompt_tokens), prompt_context, int(decodes), decode_context)

    def exceeded(self, shape: BatchShape) -> tuple[str, ...]:
        """Return the names of the attributes that an iteration exceeds; none of an iteration within the range."""
        limits = (self.prompt_tokens, self.prompt_context, self.decodes, self.decode_context)
        sizes = _sizes(shape)
        if all(size <= limit for size, limit in zip(sizes, limits, strict=True)):
            return ()
        return tuple(name for name, size, limit in zip(RANGES, sizes, limits, strict=True) if size > limit)


#: Names of the attributes.
RANGES = tuple(each.name for each in fields(MeasuredRange))


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """Which part of some iterations' time is extrapolated.

    Attributes:
        share: share of the time that is in iterations beyond the range, 0 to 1.
        shares: the same of those that exceed an attribute, by its name; none of attributes that none exceeds.
    """

    measured: MeasuredRange
    share: float
    shares: Mapping[str, float]


class TimeBeyond:
    """Adds up the time of iterations, and of those beyond a range: `total_s` and `beyond_s`, seconds."""

    def __init__(self, measured: MeasuredRange) -> None:
        self._measured = measured
        self.total_s = self.beyond_s = 0.0
        self._beyond_of: dict[str, float] = {}

    def count(self, shape: BatchShape, seconds: float) -> None:
        """Count iterations of this shape, `seconds` long in all."""
        self.total_s += seconds
        exceeded = self._measured.exceeded(shape)
        if exceeded:
            self.beyond_s += seconds
            for name in exceeded:
                self._beyond_of[name] = self._beyond_of.get(name, 0.0) + seconds

    def extrapolation(self) -> Extrapolation:
        """Return the shares so far."""
        total_s = self.total_s or 1.0
        shares = {name: self._beyond_of[name] / total_s for name in RANGES if name in self._beyond_of}
        return Extrapolation(self._measured, self.beyond_s / total_s, shares)


def _sizes(shape: BatchShape) -> tuple[float, float, float, float]:
    return (
        shape.prompt_tokens,
        shape.prompt_context / shape.prompt_tokens if shape.prompt_tokens else 0.0,
        shape.decodes,
        shape.decode_context / shape.decodes if shape.decodes else 0.0,
    )
