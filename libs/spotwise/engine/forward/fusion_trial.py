"""Tries whether one native call computes a whole decoder layer, a layer at a time, as `rewriting` tries a loaded model's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from spotwise.engine.forward.fused_layer import FusedDecoderLayer, LayerParts, LayerWeights
from spotwise.engine.forward.native_attention import NativeAttention, NativeLayout
from spotwise.engine.forward.rewriting import PROBE_TOKENS, fits, probe_row
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.attention_interface import AttentionCall, set_attention_context
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.native.library import Kernels

#: Blocks of the trial's cache: a probe has more than one and less than two.
TRIAL_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class LayerCalls:
    """How a model calls its layers.

    Attributes:
        kwargs: keyword arguments of the first layer, in a run over the probe.
        returns_tuple: layers return tuples.
    """

    kwargs: dict[str, Any]
    returns_tuple: bool

    @classmethod
    def of(cls, model: Any, layers: torch.nn.ModuleList, facts: ModelFacts) -> LayerCalls:
        """Run a sketch over the probe and note how it calls its layers."""
        found: list[LayerCalls] = []

        def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            found.append(cls(kwargs, isinstance(output, tuple)))

        set_attention_context(model, _NoAttention())
        hook = layers[0].register_forward_hook(note, with_kwargs=True)
        count = min(PROBE_TOKENS, facts.context_length)
        positions = torch.arange(count).unsqueeze(0)
        try:
            model(input_ids=positions % facts.vocab_size, position_ids=positions, use_cache=False)
        finally:
            hook.remove()
        return found[0]


class _NoAttention:
    """Attention whose result does not matter."""

    def __init__(self) -> None:
        self.on_written: Callable[[int], None] | None = None

    def attend(self, call: AttentionCall) -> torch.Tensor:
        return call.value.new_zeros(1, call.query.shape[2], call.query.shape[1], call.value.shape[3])


class FusionTrial:
    """Compares a native call with a layer's own code.

    Args:
        kernels: compute it.
        facts: the model's properties.
        cache: `TRIAL_BLOCKS` blocks of the whole model's KV, overwritten.
        kwargs: with which the model calls its layers, in a run over the probe.
    """

    def __init__(self, kernels: Kernels, facts: ModelFacts, cache: PagedKvCache, kwargs: dict[str, Any]) -> None:
        self._kernels = kernels
        self._facts = facts
        self._kwargs = kwargs
        self._context = NativeAttention(kernels, cache, facts.layers)
        self._plan = NativeLayout(cache).lay_out([probe_row(facts, cache)], last_only=False).plan

    def packed(self, layer: torch.nn.Module, parts: LayerParts) -> LayerWeights | None:
        """Return the layer's packed weights if the native call agrees with the layer's own code, else `None`."""
        tokens = self._plan.fields.tokens
        hidden = torch.randn(1, tokens, parts.query.in_features, generator=torch.Generator().manual_seed(0))
        hidden = hidden.to(parts.query.weight.dtype)
        set_attention_context(layer, self._context)
        self._context.plan = self._plan
        try:
            expected = layer(hidden.clone(), **self._kwargs)
            weights = LayerWeights.of(self._kernels, parts)
            attention = self._facts.layers[parts.index]
            whole = FusedDecoderLayer(self._kernels, parts, weights, attention, self._context, is_last=False)
            agrees = fits(whole, (hidden,), self._kwargs, expected, parts.index, type(layer).__name__)
            return weights if agrees else None
        finally:
            self._context.plan = None
