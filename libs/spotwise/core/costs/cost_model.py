"""Estimates the seconds of an iteration and of a transfer.

Law: an iteration's time depends on its shape only: prompt tokens and what they attend to, decodes and their context.
No cost falls when tokens, context or decodes are added; an empty iteration takes no time.
Source: prompt time is piecewise linear in a batch's prompt tokens, decode time in its sequences (Splitwise, sections 3.3 and
5.2, figures 5 and 6). Its published code hardly varies decode time; here reading the context costs time, as measured.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeGuard

from spotwise.core.costs.batching import Batch
from spotwise.core.values import value

#: Bandwidth of a link without a limit; finite, since JSON has no infinity.
FLAT_BYTES_PER_S = 1e18


@value
class BatchShape:
    """What an iteration's time depends on; `prompt_context` counts pairs of a prompt token and a token that it attends to,
    `decode_context` the tokens that all decodes attend to.
    """

    prompt_tokens: int = 0
    prompt_context: float = 0.0
    decodes: int = 0
    decode_context: int = 0

    @classmethod
    def of(cls, batch: Batch) -> BatchShape:
        """Return the shape of a batch."""
        prompt_tokens = decodes = decode_context = 0
        prompt_context = 0.0
        for _, first_position, num_tokens, _ in batch.rows:
            if num_tokens == 1 and first_position > 0:  # a decode, as `BatchRow.is_decode` has it
                decodes += 1
                decode_context += first_position + 1
            else:
                prompt_tokens += num_tokens
                prompt_context += pairs(first_position, num_tokens)
        return cls(prompt_tokens, prompt_context, decodes, decode_context)


@dataclass(frozen=True, slots=True)
class IterationTime:
    """One iteration's shape and duration in the engine."""

    shape: BatchShape
    seconds: float


def pairs(first_position: int, tokens: int) -> float:
    """Return the pairs of a chunk's tokens and the tokens that these attend to."""
    return tokens * (first_position + tokens / 2)


class IterationCost(Protocol):
    """The cost of iterations on one machine."""

    def iteration_s(self, shape: BatchShape) -> float:
        """Return the seconds of one iteration."""


class DecodesCost(IterationCost, Protocol):
    """A cost of iterations that is linear in the context of decodes."""

    def decodes_s(self, decodes: int) -> tuple[float, float]:
        """Return the seconds of an iteration of so many decodes and nothing else, at least one, and more for each token of
        context."""


def prices_decodes(cost: IterationCost) -> TypeGuard[DecodesCost]:
    """Tell whether a cost is linear in the context of decodes."""
    return hasattr(cost, "decodes_s")


@dataclass(frozen=True, slots=True)
class LinearIterationCost:
    """A linear model, for a few measurements of a live worker: seconds per iteration, token and context token."""

    fixed_s: float
    prompt_token_s: float
    prompt_context_s: float
    decode_s: float
    decode_context_s: float

    def __post_init__(self) -> None:
        if min(self.fixed_s, self.prompt_token_s, self.prompt_context_s, self.decode_s, self.decode_context_s) < 0:
            raise ValueError("no part of an iteration may take less than 0 s")

    def iteration_s(self, shape: BatchShape) -> float:
        """Return the seconds of one iteration."""
        if not shape.prompt_tokens and not shape.decodes:
            return 0.0
        return (
            self.fixed_s
            + self.prompt_token_s * shape.prompt_tokens
            + self.prompt_context_s * shape.prompt_context
            + self.decode_s * shape.decodes
            + self.decode_context_s * shape.decode_context
        )

    def decodes_s(self, decodes: int) -> tuple[float, float]:
        """Return the seconds of an iteration of decodes alone, and more for each token of context."""
        return self.fixed_s + self.decode_s * decodes, self.decode_context_s


@dataclass(frozen=True, slots=True)
class PiecewiseLinear:
    """A non-decreasing piecewise-linear function of two or more ascending arguments; the outer pieces extrapolate."""

    at: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.at) != len(self.seconds) or len(self.at) < 2:
            raise ValueError("a table needs as many seconds as arguments, two at least")
        if not _ascend(self.at, strictly=True):
            raise ValueError(f"a table's arguments must ascend: {self.at}")
        if self.seconds[0] <= 0 or not _ascend(self.seconds, strictly=False):
            raise ValueError(f"a table's seconds must be positive and not fall: {self.seconds}")

    def __call__(self, argument: float) -> float:
        """Return the seconds at `argument`, at least 0."""
        right = min(max(bisect_right(self.at, argument), 1), len(self.at) - 1)
        x0, x1 = self.at[right - 1], self.at[right]
        y0, y1 = self.seconds[right - 1], self.seconds[right]
        return max(0.0, y0 + (y1 - y0) * (argument - x0) / (x1 - x0))


@dataclass(frozen=True, slots=True)
class TableIterationCost:
    """A measured profile: seconds of linear layers by prompt tokens, of decode-only iterations by sequences, plus context.

    Attributes:
        prompt_context_s, decode_context_s: seconds of each token that a prompt token, or a decode, attends to.
        mixed_factor: factor of an iteration with both: it takes the prompt seconds of all its tokens times this (the
            published simulator: 1.1). `None`: the prompt seconds of all tokens. Neither is less than the decodes alone.
    """

    prompt: PiecewiseLinear
    decode: PiecewiseLinear
    prompt_context_s: float = 0.0
    decode_context_s: float = 0.0
    mixed_factor: float | None = None

    def __post_init__(self) -> None:
        if min(self.prompt_context_s, self.decode_context_s) < 0:
            raise ValueError("no part of an iteration may take less than 0 s")
        if self.mixed_factor is not None and self.mixed_factor < 1:
            raise ValueError("prompts and decodes in one iteration take no less than the prompts alone")

    def iteration_s(self, shape: BatchShape) -> float:
        """Return the seconds of one iteration."""
        if not shape.prompt_tokens:
            return self.decode_context_s * shape.decode_context + self.decode(shape.decodes) if shape.decodes else 0.0
        linear_s = self.prompt(shape.prompt_tokens + shape.decodes)
        if shape.decodes:
            if self.mixed_factor is not None:
                linear_s *= self.mixed_factor
            linear_s = max(linear_s, self.decode(shape.decodes))
        return linear_s + self.prompt_context_s * shape.prompt_context + self.decode_context_s * shape.decode_context

    def decodes_s(self, decodes: int) -> tuple[float, float]:
        """Return the seconds of an iteration of decodes alone, and more for each token of context."""
        return self.decode(decodes), self.decode_context_s


@dataclass(frozen=True, slots=True)
class LinkCost:
    """Latency and bandwidth between two machines."""

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if self.latency_s < 0 or self.bytes_per_s <= 0:
            raise ValueError("a link has a latency of at least 0 s and carries something")

    def transfer_s(self, num_bytes: int) -> float:
        """Return the seconds of a lone transfer; 0 for 0 bytes."""
        return self.latency_s + num_bytes / self.bytes_per_s if num_bytes else 0.0


#: For mixed machines only, without hand-offs.
NO_LINK = LinkCost(0.0, FLAT_BYTES_PER_S)


def _ascend(values: Sequence[float], *, strictly: bool) -> bool:
    return all(a < b or (a == b and not strictly) for a, b in pairwise(values))
