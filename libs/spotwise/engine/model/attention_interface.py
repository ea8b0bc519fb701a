"""Routes the attention calls of transformers' models to the engine, with what is known of a layer.

The score of a query at position `i` and a key at position `j <= i` is

    s = scaling * (q . k)
    s = softcap * tanh(s / softcap)      with a soft cap (Gemma 2, section 2)
    s = s - slope[head] * (i - j)        with slopes (ALiBi: Press et al., ICLR 2022, section 3)
    s = -inf                             where `i - j >= window` (Mistral 7B, section 2)

The weights are `softmax(s)`; with a sink, `exp(sink[head])` is added to their divisor (gpt-oss).

A layer is reported after all layers before it, on the engine's thread. On a GPU an event marks when its KV is written; copies
of the layer wait for it (`PagedKvCache.written_event`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from transformers import AttentionInterface

from spotwise.engine.kv.cache import PagedKvCache


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Parameters of one layer's attention.

    Attributes:
        scaling: factor of the query-key products.
        window: keys that a query attends to, its own included; `None`: all.
        softcap: bound of a score's magnitude, approached by tanh; `None`: no bound.
        alibi_slopes: decrease of a score per position of distance, by query head, positive; `None`: no ALiBi.
        sinks: score of each query head that takes part in the softmax and has no value; `None`: no sinks.
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


#: Called with the number of layers, from the cache's first on, that have written their KV.
LayersWritten = Callable[[int], None]


@contextlib.contextmanager
def reporting_layers(
    attention: AttentionContext, cache: PagedKvCache, listener: LayersWritten | None
) -> Iterator[None]:
    """Call `listener` for each layer of the forward inside the block; `None`: no calls."""
    if listener is None:
        yield
        return
    reported = 0

    def written(layer: int) -> None:
        nonlocal reported
        if layer == cache.part.layers.start + reported:
            cache.note_written(layer)
            reported += 1
            listener(reported)

    attention.on_written = written
    try:
        yield
    finally:
        attention.on_written = None


Plan = TypeVar("Plan")

ATTENTION_NAME = "spotwise_paged"
#: Another name of the same function, for which the compatibility probe registers a mask function.
PROBE_NAME = "spotwise_probe"
_CONTEXT_ATTRIBUTE = "spotwise_attention_context"


class AttentionCall(NamedTuple):
    """Arguments of one call of transformers' attention interface.

    Attributes:
        module: the calling module; its `layer_idx` is the layer's index.
        query: `[1, heads, tokens, key_dim]`.
        key: `[1, kv_heads, tokens, key_dim]`.
        value: `[1, kv_heads, tokens, value_dim]`.
        attention_mask: transformers' mask; `None` in service.
        scaling: softmax scale, if the module passes one.
        options: all other keyword arguments.
    """

    module: Any
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attention_mask: torch.Tensor | None = None
    scaling: float | None = None
    options: Mapping[str, Any] = MappingProxyType({})

    @property
    def layer(self) -> int:
        """Index of the layer."""
        index: int = self.module.layer_idx
        return index


class AttentionContext(Protocol):
    """Computes attention for the modules of one model.

    Attributes:
        on_written: called with a layer's index once its new KV is in the cache; `None`: no call.
    """

    on_written: Callable[[int], None] | None

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return `[1, tokens, heads, value_dim]`."""


class PlannedAttention(Generic[Plan]):
    """Base of serving attention: follows the plan of the current iteration, which the engine sets."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.on_written: Callable[[int], None] | None = None

    @property
    def current_plan(self) -> Plan:
        """The plan of the running iteration.

        Raises:
            RuntimeError: no iteration is running.
        """
        if self.plan is None:
            raise RuntimeError("attention was called outside an iteration")
        return self.plan


def attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Forward a call of transformers to the module's context; `transformers.AttentionInterface` defines the signature."""
    context: AttentionContext = getattr(module, _CONTEXT_ATTRIBUTE)
    call = AttentionCall(module, query, key, value, attention_mask, scaling, options)
    output = context.attend(call)
    if context.on_written is not None:
        context.on_written(call.layer)
    return output, None


def register_attention() -> None:
    """Register this attention with transformers; idempotent.

    `ATTENTION_NAME` has no mask function, so that transformers builds no mask, which paged attention does not use.
    """
    AttentionInterface.register(ATTENTION_NAME, attention_function)
    AttentionInterface.register(PROBE_NAME, attention_function)


def set_attention_context(model: torch.nn.Module, context: AttentionContext) -> None:
    """Make all layers of `model` attend through `context`."""
    for module in model.modules():
        if getattr(module, "layer_idx", None) is not None:
            setattr(module, _CONTEXT_ATTRIBUTE, context)
