"""Routes the attention calls of transformers' modules to a context, which computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from transformers import AttentionInterface

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
