"""Replaces a loaded model's modules by native kernels.

A decoder layer of the common form is fused if its output agrees with the original's on a probe; other layers keep
transformers' code, with packed linear layers.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch
from transformers.pytorch_utils import Conv1D

from spotwise.core.costs.batching import BatchRow
from spotwise.engine.forward.fused_layer import FusedDecoderLayer, LayerWeights, find_parts
from spotwise.engine.forward.iteration import SequenceRow
from spotwise.engine.forward.native_attention import NativeAttention, NativeLayout
from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.attention_interface import LayerAttention
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.low_rank import LoadedAdapter
from spotwise.engine.native.packed import PackedLinear, PackedWeight, can_pack
from spotwise.engine.native.weight_memory import WeightMemory

_log = structlog.get_logger(__name__)

# Largest distance of a fused layer's output from the original's, relative to what the layer adds to its input.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
#: Prompt length of the probe: more than one block, less than two.
PROBE_TOKENS = 24


@torch.inference_mode()
def rewrite(
    model: Any,
    facts: ModelFacts,
    kernels: Kernels,
    context: NativeAttention,
    layout: NativeLayout,
    memory: WeightMemory,
) -> int:
    """Replace decoder layers and linear layers in place; return the number of fused decoder layers.

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
