"""Replaces a loaded model's modules by native kernels.

A decoder layer of the common form is fused if its output agrees with the original's on a probe; other layers keep
transformers' code, with packed linear layers. Where a model is loaded in parts, one layer at a time is tried alike.

A model whose weights stay quantised comes as a sketch: a layer's weights are widened for the trial, and dropped after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
import torch
from transformers.pytorch_utils import Conv1D

from spotwise.core.costs.batching import BatchRow
from spotwise.engine.forward.fused_layer import BlockSource, FusedDecoderLayer, LayerParts, LayerWeights, find_parts
from spotwise.engine.forward.iteration import SequenceRow
from spotwise.engine.forward.native_attention import NativeAttention, NativeLayout
from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.attention_interface import AttentionCall, LayerAttention, set_attention_context
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.low_rank import LoadedAdapter
from spotwise.engine.native.norm import replace_norms
from spotwise.engine.native.packed import BlockRows, PackedEmbedding, PackedLinear, PackedWeight, can_pack
from spotwise.engine.native.weight_memory import WeightMemory

_log = structlog.get_logger(__name__)

# Largest distance of a fused layer's output from the original's, relative to what the layer adds to its input.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
#: Prompt length of the probe: more than one block, less than two.
PROBE_TOKENS = 24

#: Blocks of the trial's cache: a probe has more than one and less than two.
TRIAL_BLOCKS = 2


class SketchWeights(BlockSource, Protocol):
    """The weights of a sketch."""

    def stored_name(self, name: str) -> str:
        """Return under which name a quantised parameter is stored: tied ones have one."""
        ...

    def fill(self, path: str, module: torch.nn.Module) -> None:
        """Give a module at `path` of the model, and all within it, its parameters, widened."""
        ...

    def fill_own(self, path: str, module: torch.nn.Module) -> None:
        """Do so without what is within it."""
        ...


@torch.inference_mode()
def rewrite(
    model: Any,
    facts: ModelFacts,
    kernels: Kernels,
    context: NativeAttention,
    layout: NativeLayout,
    memory: WeightMemory,
    source: SketchWeights | None = None,
) -> int:
    """Replace decoder layers, linear layers and norms in place; return the number of fused decoder layers.

    Args:
        model: its attention context is `context`.
        facts: the model's properties.
        kernels: compute the replacements.
        context: its cache is still free, since the probe overwrites the first blocks.
        layout: layout of batches for `context`.
        memory: holds the weights.
        source: weights of a model that is a sketch, some of which stay quantised; `None`: the model is loaded.
    """
    packing = _Packing(kernels, memory, source)
    head = model.get_output_embeddings()
    if source is not None:
        common = [f"{path}." for path, module in model.named_modules() if find_parts(module) is not None]
        packing.keep(model, head, lambda path: not f"{path}.".startswith(tuple(common)))
    fused = _fuse_layers(model, facts.layers, packing, context, layout, probe_row(facts, context.cache))
    for path, parent, name, child in linear_layers(model):
        weight = linear_weight(child)
        if weight is not None and can_pack(weight):
            setattr(parent, name, packing.linear(path, child, weight, is_head=child is head))
    replace_norms(model, kernels)
    with torch.inference_mode(mode=False):  # a parameter stays an ordinary tensor
        for name, parameter in model.named_parameters():
            parameter.data = memory.share(name, parameter.data)
    return fused


class _Packing:
    """Packs the weights of a model's modules, and reads those of a sketch."""

    def __init__(self, kernels: Kernels, memory: WeightMemory, source: SketchWeights | None) -> None:
        self.kernels = kernels
        self.memory = memory
        self.source = source
        self._kept: dict[str, PackedWeight] = {}

    def linear(self, path: str, module: Any, weight: torch.Tensor, *, is_head: bool) -> PackedLinear:
        """Return the replacement of a linear layer, in which it stays quantised if it can."""
        packed = self._kept_weight(path, weight) if can_keep(module) else None
        if packed is None:
            packed = PackedWeight.of(self.kernels, [weight], memory=self.memory, name=f"{path}.packed")
        return PackedLinear(self.kernels, packed, module.bias, float_output=is_head and module.bias is None)

    def keep(self, model: Any, head: Any, belongs: Callable[[str], bool]) -> None:
        """Give modules of a sketch their weights, quantised or widened; `belongs` says which, by path."""
        source = self.source
        assert source is not None  # else no module lacks weights
        for path, module in list(model.named_modules()):
            if not belongs(path):
                continue
            kept = self._kept_weight(path, module.weight) if can_keep(module) and can_pack(module.weight) else None
            if kept is None:
                source.fill_own(path, module)
                continue
            parent = model.get_submodule(path.rpartition(".")[0])
            own = (
                PackedEmbedding(self.kernels, kept)
                if isinstance(module, torch.nn.Embedding)
                else self.linear(path, module, module.weight, is_head=module is head)
            )
            setattr(parent, path.rpartition(".")[2], own)

    def _kept_weight(self, path: str, weight: torch.Tensor) -> PackedWeight | None:
        """Return a weight that stays quantised; `None`: it is not quantised."""
        name = f"{path}.weight"
        kind = None if self.source is None else self.source.kind(name)
        if self.source is None or kind is None:
            return None
        stored = self.source.stored_name(name)
        if stored not in self._kept:
            blocks = BlockRows(kind, self.source.read_blocks(name), weight.shape[1])
            self._kept[stored] = PackedWeight.of_blocks(
                self.kernels, [blocks], weight.dtype, memory=self.memory, name=f"{stored}.blocks"
            )
        return self._kept[stored]


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


def can_keep(module: Any) -> bool:
    """Whether the weight of a module may stay quantised."""
    return type(module) in (torch.nn.Linear, torch.nn.Embedding)


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
    packing: _Packing,
    context: NativeAttention,
    layout: NativeLayout,
    probe: SequenceRow,
) -> int:
    """Run the probe, and replace each layer of the common form by a native call that computes the same of it."""
    found = {
        child: (f"{path}.{name}".lstrip("."), parent)
        for path, parent in model.named_modules()
        for name, child in parent.named_children()
        if find_parts(child) is not None
    }
    if not found:
        return 0
    kernels, memory, source = packing.kernels, packing.memory, packing.source
    fused = 0

    def fill(module: torch.nn.Module, *_: Any) -> None:
        if source is not None:
            source.fill(found[module][0], module)

    def replace(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        nonlocal fused
        path, parent = found.pop(module)
        parts = find_parts(module)
        assert parts is not None  # it has the form
        replacement = FusedDecoderLayer(
            kernels,
            parts,
            LayerWeights.of(kernels, parts, memory, path, source),
            layers[parts.index],
            context,
            is_last=parts.index == len(layers) - 1,
        )
        copied = tuple(part.clone() if isinstance(part, torch.Tensor) else part for part in args)
        if fits(replacement, copied, kwargs, output, parts.index, type(module).__name__):
            setattr(parent, path.rpartition(".")[2], replacement)
            _drop_weights(module)
            fused += 1
            return
        memory.drop(f"{path}.")
        for inner, inner_parent, name, child in linear_layers(module):
            setattr(inner_parent, name, packing.linear(f"{path}.{inner}", child, child.weight, is_head=False))

    hooks = [child.register_forward_pre_hook(fill) for child in found]
    hooks += [child.register_forward_hook(replace, with_kwargs=True) for child in found]
    flat = layout.lay_out([probe], last_only=False)
    context.plan = flat.plan
    try:
        model(input_ids=flat.token_ids, position_ids=flat.position_ids, use_cache=False)
    finally:
        context.plan = None
        for hook in hooks:
            hook.remove()
    return fused


def _drop_weights(layer: torch.nn.Module) -> None:
    """Free the matrices of a layer that was replaced, which the model's code may still refer to while it runs."""
    with torch.inference_mode(mode=False):
        for _, _, _, child in linear_layers(layer):
            child.weight.data = child.weight.data.new_empty(0)


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

    def packed(
        self, layer: torch.nn.Module, parts: LayerParts, path: str = "", source: BlockSource | None = None
    ) -> LayerWeights | None:
        """Return the layer's packed weights if the native call agrees with the layer's own code, else `None`; with a source,
        those at `path` of the model that stay quantised are taken from it.
        """
        tokens = self._plan.fields.tokens
        hidden = torch.randn(1, tokens, parts.query.in_features, generator=torch.Generator().manual_seed(0))
        hidden = hidden.to(parts.query.weight.dtype)
        set_attention_context(layer, self._context)
        self._context.plan = self._plan
        try:
            expected = layer(hidden.clone(), **self._kwargs)
            weights = LayerWeights.of(self._kernels, parts, name=path, source=source)
            attention = self._facts.layers[parts.index]
            whole = FusedDecoderLayer(self._kernels, parts, weights, attention, self._context, is_last=False)
            agrees = fits(whole, (hidden,), self._kwargs, expected, parts.index, type(layer).__name__)
            return weights if agrees else None
        finally:
            self._context.plan = None
