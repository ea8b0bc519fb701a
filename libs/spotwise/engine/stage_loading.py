"""Loads what one position of a group computes with: its stage's layers, one at a time, of which it keeps its shard.

A layer is read whole and tried as `rewriting` tries it, so that every shard, and the unsharded engine, computes it with the
same kernels; then it is cut and freed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.attention_interface import AttentionCall, set_attention_context
from spotwise.engine.compatibility import ModelFacts
from spotwise.engine.fused_layer import FusedDecoderLayer, LayerParts, find_parts
from spotwise.engine.kv_cache import PagedKvCache
from spotwise.engine.native.library import Kernels
from spotwise.engine.native_attention import NativeAttention, NativeLayout
from spotwise.engine.packed import PackedLinear, can_pack
from spotwise.engine.rewriting import PROBE_TOKENS, fits, linear_layers, linear_weight, probe_row
from spotwise.engine.shard import Shard
from spotwise.engine.sharded_linear import GatheredHead, GatheredLinear
from spotwise.engine.sharding import LinearCut, find_layers, layer_cuts
from spotwise.engine.sketch import Sketch
from spotwise.engine.stage import PipelineStage
from spotwise.engine.weight_memory import PRIVATE

# Blocks of the trial's cache: a probe has more than one and less than two.
_TRIAL_BLOCKS = 2


@torch.inference_mode()
def load_stage(
    sketch: Sketch, share: ModelShare, shard: Shard, context: Any, kernels: Kernels | None
) -> tuple[PipelineStage, int]:
    """Turn the sketch into the model that computes this share, in place.

    Args:
        sketch: of the model.
        share: what to compute.
        shard: its place in the group.
        context: the attention of its layers.
        kernels: native ones; `None`: torch.

    Returns:
        The stage that runs the model, and the number of its layers that one native call computes.

    Raises:
        ModelError: a tensor cannot be read.
        UnsupportedModelError: the model cannot be cut.
    """
    model, facts = sketch.model, sketch.facts
    cuts: Mapping[str, LinearCut] = {} if shard.is_whole else layer_cuts(model, facts)
    path, layers = find_layers(model, facts)
    seen = _first_calls(model, layers, facts)
    trial = None if kernels is None else _FusionTrial(kernels, facts, context.cache)
    fused = 0
    for index in share.layers:
        layer = layers[index]
        sketch.tensors.fill(f"{path}.{index}", layer)
        parts = None if trial is None else find_parts(layer)
        if trial is not None and parts is not None and trial.passes(layer, parts, seen.kwargs):
            layers[index] = FusedDecoderLayer(
                trial.kernels,
                parts,
                context.layer(index),
                context,
                is_last=index == len(layers) - 1,
                memory=PRIVATE,
                name=f"{path}.{index}",
                shard=shard,
            )
            fused += 1
        else:
            _cut_linears(layer, cuts, shard, kernels)
            set_attention_context(layer, context)
    stage = PipelineStage(share, shard, share.dimensions.hidden_size, model.dtype)
    _load_ends(sketch, share, shard, path, kernels)
    stage.install(model, layers, returns_tuple=seen.returns_tuple)
    return stage, fused


def _cut_linears(layer: torch.nn.Module, cuts: Mapping[str, LinearCut], shard: Shard, kernels: Kernels | None) -> None:
    """Replace the linear layers within a decoder layer by this shard's part of them."""
    for path, parent, name, linear in linear_layers(layer):
        cut = cuts.get(path)
        weight = linear_weight(linear)
        assert weight is not None  # it is a linear layer
        outputs, inputs = weight.shape
        rows = slice(None)
        if cut is not None:
            rows = shard.heads(outputs) if cut.by_heads and not cut.gathers else shard.columns(outputs)
        own = _linear(weight[rows], None if linear.bias is None else linear.bias[rows], kernels)
        if cut is not None and cut.gathers:
            own = GatheredLinear(own, shard, inputs, outputs, by_heads=cut.by_heads)
        setattr(parent, name, own)


def _linear(
    weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels | None, *, float_output: bool = False
) -> torch.nn.Module:
    """Return a linear layer with this weight `[outputs, inputs]`."""
    if kernels is not None and can_pack(weight):
        return PackedLinear(kernels, weight, bias, float_output=float_output and bias is None)
    own = torch.nn.Linear(1, 1, bias=bias is not None, device="meta")
    own.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    if bias is not None:
        own.bias = torch.nn.Parameter(bias.clone(), requires_grad=False)
    return own


def _load_ends(sketch: Sketch, share: ModelShare, shard: Shard, layers_path: str, kernels: Kernels | None) -> None:
    """Load what is outside the layers: the embedding in the first stage, the head in the last, all else everywhere."""
    model, tensors = sketch.model, sketch.tensors
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    paths = {module: path for path, module in model.named_modules()}
    for path, module in list(model.named_modules()):
        if module not in (embedding, head) and not f"{path}.".startswith(f"{layers_path}."):
            tensors.fill_own(path, module)
    for path, parent, name, linear in linear_layers(model):
        weight = linear_weight(linear)
        if linear is not head and not path.startswith(f"{layers_path}.") and weight is not None:
            setattr(parent, name, _linear(weight, linear.bias, kernels))
    if share.is_first:
        tensors.fill(paths[embedding], embedding)
    if share.is_last and head is not None:
        rows = shard.columns(head.out_features)
        bias = None if head.bias is None else head.bias[rows]
        own = _linear(tensors.read(f"{paths[head]}.weight", rows), bias, kernels, float_output=True)
        model.set_output_embeddings(own if shard.is_whole else GatheredHead(own, shard, head.out_features))


@dataclass(frozen=True, slots=True)
class _FirstCalls:
    """How the model calls its layers: keyword arguments of the first layer, and whether layers return tuples."""

    kwargs: dict[str, Any]
    returns_tuple: bool


class _NoAttention:
    """Attention whose result does not matter."""

    def __init__(self) -> None:
        self.on_written: Callable[[int], None] | None = None

    def attend(self, call: AttentionCall) -> torch.Tensor:
        return call.value.new_zeros(1, call.query.shape[2], call.query.shape[1], call.value.shape[3])


def _first_calls(model: Any, layers: torch.nn.ModuleList, facts: ModelFacts) -> _FirstCalls:
    """Run the sketch over the probe and note how it calls its layers."""
    found: list[_FirstCalls] = []

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        found.append(_FirstCalls(kwargs, isinstance(output, tuple)))

    set_attention_context(model, _NoAttention())
    hook = layers[0].register_forward_hook(note, with_kwargs=True)
    count = min(PROBE_TOKENS, facts.context_length)
    positions = torch.arange(count).unsqueeze(0)
    try:
        model(input_ids=positions % facts.vocab_size, position_ids=positions, use_cache=False)
    finally:
        hook.remove()
    return found[0]


class _FusionTrial:
    """Tries whether one native call computes a whole layer."""

    def __init__(self, kernels: Kernels, facts: ModelFacts, cache: PagedKvCache) -> None:
        self.kernels = kernels
        self._facts = facts
        scratch = PagedKvCache(facts.geometry, _TRIAL_BLOCKS, cache.block_size, cache.dtype, cache.device)
        self._context = NativeAttention(kernels, scratch, facts.layers)
        self._plan = NativeLayout(scratch).lay_out([probe_row(facts, scratch)], last_only=False).plan

    def passes(self, layer: torch.nn.Module, parts: LayerParts, kwargs: dict[str, Any]) -> bool:
        """Whether the native call agrees with the layer's own code."""
        tokens = self._plan.fields.tokens
        hidden = torch.randn(1, tokens, parts.query.in_features, generator=torch.Generator().manual_seed(0))
        hidden = hidden.to(parts.query.weight.dtype)
        set_attention_context(layer, self._context)
        self._context.plan = self._plan
        try:
            expected = layer(hidden.clone(), **kwargs)
            whole = FusedDecoderLayer(
                self.kernels,
                parts,
                self._facts.layers[parts.index],
                self._context,
                is_last=False,
                memory=PRIVATE,
                name="",
            )
            return fits(whole, (hidden,), kwargs, expected, parts.index, type(layer).__name__)
        finally:
            self._context.plan = None
