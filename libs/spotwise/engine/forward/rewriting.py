"""Replaces a loaded model's modules by native kernels.

A decoder layer of the common form is fused if its output agrees with the original's on a probe; other layers keep
transformers' code, with packed linear layers. Where a model is loaded in parts, one layer at a time is tried alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from transformers.pytorch_utils import Conv1D

from spotwise.core.costs.batching import BatchRow
from spotwise.engine.forward.fused_layer import FusedDecoderLayer, LayerParts, LayerWeights, find_parts
from spotwise.engine.forward.iteration import SequenceRow
from spotwise.engine.forward.native_attention import NativeAttention, NativeLayout
from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.attention_interface import AttentionCall, LayerAttention, set_attention_context
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.low_rank import LoadedAdapter
from spotwise.engine.native.norm import replace_norms
from spotwise.engine.native.packed import PackedLinear, PackedWeight, can_pack
from spotwise.engine.native.weight_memory import WeightMemory

_log = structlog.get_logger(__name__)

# Largest distance of a fused layer's output from the original's, relative to what the layer adds to its input.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
#: Prompt length of the probe: more than one block, less than two.
PROBE_TOKENS = 24

#: Blocks of the trial's cache: a probe has more than one and less than two.
TRIAL_BLOCKS = 2


@torch.inference_mode()
def rewrite(
    model: Any,
    facts: ModelFacts,
    kernels: Kernels,
    context: NativeAttention,
    layout: NativeLayout,
    memory: WeightMemory,
) -> int:
    """Replace decoder layers, linear layers and norms in place; return the number of fused decoder layers.

    Args:
        model: its attention context is `context`.
        facts: the model's properties.
        kernels: compute the replacements.
        context: its cache is still free, since the probe overwrites the first blocks.
        layout: layout of batches for `context`.
        memory: holds the weights.
    """
    fused = _fuse_layers(model, facts.layers, kernels, context, layout, probe_row(facts, context.cache), memory)
    head = model.get_output_embeddings()
    for path, parent, name, child in linear_layers(model):
        weight = linear_weight(child)
        if weight is not None and can_pack(weight):
            floats = child is head and child.bias is None
            packed = PackedWeight.of(kernels, [weight], memory=memory, name=f"{path}.packed")
            setattr(parent, name, PackedLinear(kernels, packed, child.bias, float_output=floats))
    replace_norms(model, kernels)
    with torch.inference_mode(mode=False):  # a parameter stays an ordinary tensor
        for name, parameter in model.named_parameters():
            parameter.data = memory.share(name, parameter.data)
    return fused


def probe_row(facts: ModelFacts, cache: PagedKvCache, adapter: LoadedAdapter | None = None) -> SequenceRow:
    """Return a short prompt in the cache's first blocks."""
    length = min(PROBE_TOKENS, facts.context_length, cache.num_blocks * cache.block_size)
    sequence = EngineSequence.of_tokens([index % facts.vocab_size for index in range(length)], adapter)
    return BatchRow("probe", 0, length, tuple(range(-(-length // cache.block_size)))), sequence


def linear_layers(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module, str, Any]]:
    """Return path, parent, name in it, and module of each linear layer."""
    return [
        (f"{path}.{name}".lstrip("."), parent, name, child)
        for path, parent in model.named_modules()
        for name, child in parent.named_children()
        if linear_weight(child) is not None
    ]


def linear_weight(module: Any) -> torch.Tensor | None:
    """Return a linear layer's weight as `[outputs, inputs]`; `None` for other modules."""
    if type(module) is torch.nn.Linear:
        return module.weight
    if type(module) is Conv1D:  # GPT-2's linear layer, which keeps the transpose
        transposed: torch.Tensor = module.weight.t()
        return transposed
    return None


def _fuse_layers(
    model: Any,
    layers: tuple[LayerAttention, ...],
    kernels: Kernels,
    context: NativeAttention,
    layout: NativeLayout,
    probe: SequenceRow,
    memory: WeightMemory,
) -> int:
    found = [
        (f"{path}.{name}".lstrip("."), parent, child, parts)
        for path, parent in model.named_modules()
        for name, child in parent.named_children()
        if (parts := find_parts(child)) is not None
    ]
    calls: dict[torch.nn.Module, tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]] = {}

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        copied = tuple(part.clone() if isinstance(part, torch.Tensor) else part for part in args)
        calls[module] = (copied, kwargs, output)

    hooks = [child.register_forward_hook(note, with_kwargs=True) for _, _, child, _ in found]
    if not hooks:
        return 0
    flat = layout.lay_out([probe], last_only=False)
    context.plan = flat.plan
    fused = 0
    try:
        model(input_ids=flat.token_ids, position_ids=flat.position_ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        found.reverse()
        while found:  # popped, so that an original is freed before the next layer is packed
            path, parent, child, parts = found.pop()
            if child not in calls:
                continue
            replacement = FusedDecoderLayer(
                kernels,
                parts,
                LayerWeights.of(kernels, parts, memory, path),
                layers[parts.index],
                context,
                is_last=parts.index == len(layers) - 1,
            )
            args, kwargs, expected = calls.pop(child)
            if fits(replacement, args, kwargs, expected, parts.index, type(child).__name__):
                setattr(parent, path.rpartition(".")[2], replacement)
                fused += 1
            else:
                memory.drop(f"{path}.")
    finally:
        context.plan = None
        for hook in hooks:
            hook.remove()
    return fused


def fits(
    replacement: FusedDecoderLayer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    expected: torch.Tensor,
    index: int,
    original: str,
) -> bool:
    """Whether a replacement computes what layer `index`, of class `original`, returned; logs a warning if not."""
    difference = _difference(replacement, args, kwargs, expected)
    if difference <= _TOLERANCE[expected.dtype]:
        return True
    _log.warning("layer_not_fused", layer=index, type=original, difference=difference)
    return False


def _difference(
    replacement: FusedDecoderLayer, args: tuple[Any, ...], kwargs: dict[str, Any], expected: torch.Tensor
) -> float:
    """Return the distance of outputs relative to what the layer adds to its input; infinite if the replacement fails.

    Differences in an output's last bit do not count: where a layer adds little to a large value, they exceed what it adds.
    """
    before = args[0].float().clone()  # the replacement overwrites its input
    try:
        actual = replacement(*args, **kwargs).float()
    except (ValueError, TypeError, IndexError) as error:
        _log.info("layer_not_fused", reason=str(error))
        return float("inf")
    wanted = expected.float()
    last_bit = 2 * torch.finfo(expected.dtype).eps * wanted.abs()
    excess = ((actual - wanted).abs() - last_bit).clamp_min(0)
    return float(excess.norm() / (wanted - before).norm().clamp_min(1e-12))


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
