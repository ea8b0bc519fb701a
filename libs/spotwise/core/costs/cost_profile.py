"""A worker's measured costs, read by simulated workers and scheduling policies; its JSON: `spotwise.files.cost_profile`.

Law: an iteration is within a profile's measured range if it has no more prompt tokens, no more decodes, and no more context of
either than the largest that was measured. Beyond it a cost is extrapolated, and may be wrong by any factor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Self

from spotwise.core.costs.cost_model import (
    BatchShape,
    LinearIterationCost,
    LinkCost,
    PiecewiseLinear,
    TableIterationCost,
)


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


#: Of a message, where unmeasured: a broker on the same machine or network.
USUAL_MESSAGE_S = 0.0005
#: Between device and host, each way, where unmeasured: PCIe 4.0 with 16 lanes.
USUAL_HOST_LINK = LinkCost(latency_s=1e-5, bytes_per_s=25e9)


@dataclass(frozen=True, slots=True)
class CostProfile:
    """One worker's costs; `kv_bytes_per_token` of all layers, `kv_tokens` the capacity of its KV cache.

    Attributes:
        link: cost of hand-offs; `None` where none was measured (mixed workers, or a worker alone).
        message_s: seconds from one member's decision to the next one's, over bus and store.
        host_link: cost of KV between device and host memory, either way; `None` where unmeasured.
        measured: how far the measurements of iterations reach; `None` where the profile does not say.
    """

    name: str
    iteration: LinearIterationCost | TableIterationCost
    link: LinkCost | None
    kv_bytes_per_token: int
    kv_tokens: int
    message_s: float = USUAL_MESSAGE_S
    host_link: LinkCost | None = None
    measured: MeasuredRange | None = None

    def __post_init__(self) -> None:
        if self.kv_bytes_per_token < 1 or self.kv_tokens < 1:
            raise ValueError("kv_bytes_per_token and kv_tokens must be at least 1")
        if not 0.0 <= self.message_s < math.inf:
            raise ValueError("message_s must be at least 0 and finite")

    @property
    def known_link(self) -> LinkCost:
        """The link of hand-offs; `ValueError` where no hand-off was measured."""
        if self.link is None:
            raise ValueError(
                f"{self.name!r} has no hand-offs, since a worker measured it alone: take mixed workers only, "
                "or record a mesh with prompt workers and token workers (spotwise profile)"
            )
        return self.link

    @property
    def context_parity(self) -> float:
        """Tokens of context that cost a prompt token as much as all else; infinite where they cost nothing."""
        cost = self.iteration
        if isinstance(cost, LinearIterationCost):
            token_s = cost.prompt_token_s
        else:
            token_s = (cost.prompt.seconds[-1] - cost.prompt.seconds[0]) / (cost.prompt.at[-1] - cost.prompt.at[0])
        return token_s / cost.prompt_context_s if token_s > 0 and cost.prompt_context_s > 0 else math.inf


#: About a DGX-H100 that serves Llama2-70B: TTFT 95 ms at 1,500 tokens, TBT 31 ms (Splitwise, table IV), an InfiniBand link of
#: 400 Gb/s, KV of 80 layers with 8 heads of 128 in 16 bits. The KV cache is smaller than the machine's, to save
#: memory in the simulator, and holds more than a few hundred sequences need.
BUILT_IN = CostProfile(
    name="about Llama2-70B on a DGX-H100",
    iteration=LinearIterationCost(
        fixed_s=0.028, prompt_token_s=4.4e-5, prompt_context_s=1.0e-9, decode_s=2.0e-4, decode_context_s=6.0e-8
    ),
    link=LinkCost(latency_s=0.001, bytes_per_s=50e9),
    kv_bytes_per_token=327_680,
    kv_tokens=262_144,
)


def at_speed(cost: LinearIterationCost | TableIterationCost, speed: float) -> LinearIterationCost | TableIterationCost:
    """Return an iteration's cost at `speed` times the speed, to simulate; `ValueError` unless `speed` is above 0 and finite."""
    if not 0.0 < speed < math.inf:
        raise ValueError(f"speed is {speed}; it must be above 0 and finite")
    if isinstance(cost, LinearIterationCost):
        return LinearIterationCost(*(getattr(cost, field.name) / speed for field in dataclasses.fields(cost)))
    prompt, decode = (
        PiecewiseLinear(table.at, tuple(each / speed for each in table.seconds)) for table in (cost.prompt, cost.decode)
    )
    contexts = cost.prompt_context_s / speed, cost.decode_context_s / speed
    return TableIterationCost(prompt, decode, *contexts, cost.mixed_factor)
