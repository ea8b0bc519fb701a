"""Describes what the attention of one layer computes, for the torch path and all kernels.

The score of a query at position `i` and a key at position `j <= i` is

    s = scaling * (q . k)
    s = softcap * tanh(s / softcap)      with a soft cap (Gemma 2, section 2)
    s = s - slope[head] * (i - j)        with slopes (ALiBi: Press et al., ICLR 2022, section 3)
    s = -inf                             where `i - j >= window` (Mistral 7B, section 2)

The weights are `softmax(s)`; with a sink, `exp(sink[head])` is added to their divisor (gpt-oss).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Parameters of one layer's attention.

    Attributes:
        scaling: factor of the query-key products.
        window: keys that a query attends to, its own included; `None`: all.
        softcap: bound of a score's magnitude, approached by tanh; `None`: no bound.
        alibi_slopes: by query head, positive: decrease of a score per position of distance; `None`: no ALiBi.
        sinks: by query head: a score that takes part in the softmax and has no value; `None`: no sinks.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    sinks: tuple[float, ...] | None = None

    def of_heads(self, heads: slice) -> LayerAttention:
        """Return the attention of some of the query heads."""
        slopes, sinks = self.alibi_slopes, self.sinks
        return replace(
            self, alibi_slopes=None if slopes is None else slopes[heads], sinks=None if sinks is None else sinks[heads]
        )

    def is_plain_within(self, context_length: int) -> bool:
        """Whether scores are only scaled in a context of `context_length` positions."""
        sees_all = self.window is None or self.window >= context_length
        return sees_all and self.softcap is None and self.alibi_slopes is None and self.sinks is None
