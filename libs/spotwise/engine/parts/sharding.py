"""Finds how a model's layers can be cut into shards, or says by name why they cannot.

transformers declares for each linear layer whether its outputs (`colwise`) or its inputs (`rowwise`) are divided among shards.
Both are cut by output columns here; the inputs of a rowwise layer are gathered first, and its outputs afterwards. Whatever is
declared otherwise, or not at all, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spotwise.core.parallel.model_partition import LayerMatrix, ModelDimensions
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.errors import UnsupportedModelError

_COLUMNS, _ROWS, _HEAD = "colwise", "rowwise", "colwise_gather_output"


@dataclass(frozen=True, slots=True)
class LinearCut:
    """How a linear layer within a decoder layer is cut.

    Attributes:
        gathers: its inputs are gathered before it, and its outputs after it (rowwise); else its outputs stay divided.
        by_heads: the divided columns (a rowwise layer's inputs) are those of heads.
    """

    gathers: bool
    by_heads: bool


def find_layers(model: Any, facts: ModelFacts) -> tuple[str, torch.nn.ModuleList]:
    """Return the list of decoder layers and its path in the model.

    Raises:
        UnsupportedModelError: there is no such list, so that the model cannot be cut into stages.
    """
    count = facts.geometry.num_layers
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count and _attention_path(module[0]) is not None:
            return path, module
    raise UnsupportedModelError(f"{_type(model)} has no list of {count} decoder layers; serve it with one stage")


def layer_cuts(model: Any, facts: ModelFacts) -> Mapping[str, LinearCut]:
    """Return the cut of each linear layer of a decoder layer, by its path in it.

    Raises:
        UnsupportedModelError: a layer cannot be cut exactly; names it.
    """
    path, layers = find_layers(model, facts)
    declared = _declared(model, path)
    cuts: dict[str, LinearCut] = {}
    for layer in layers:
        attention = _attention_path(layer)
        assert attention is not None  # all layers attend: `inspect_model`
        for name, module in layer.named_modules():
            if cut := _cut(model, facts, name, module, declared.get(name), name.startswith(f"{attention}.")):
                cuts[name] = cut
    head = model.get_output_embeddings()
    names = {module: name for name, module in model.named_modules()}
    style = (model.tp_plan or {}).get(names.get(head, ""))
    if type(head) is not torch.nn.Linear or style not in (_HEAD, _COLUMNS):
        raise _refused(model, f"its head is declared {style or 'in no way'}")
    return cuts


def dimensions(model: Any, facts: ModelFacts) -> ModelDimensions:
    """Return the model's parts and where they can be cut; raises `UnsupportedModelError` where not even into stages."""
    _, layers = find_layers(model, facts)
    head = model.get_output_embeddings()
    hidden = int(model.config.get_text_config(decoder=True).hidden_size)
    layer_size = sum(parameter.numel() for parameter in layers[0].parameters())
    geometry = facts.geometry
    matrices, stays_whole = _matrices(model, layers[0], facts)
    return ModelDimensions(
        layers=geometry.num_layers,
        query_heads=facts.query_heads or geometry.kv_heads,
        kv_heads=geometry.kv_heads,
        key_dim=geometry.key_dim,
        value_dim=geometry.value_dim,
        hidden_size=hidden,
        inner_size=_inner_size(layers[0], hidden),
        vocab_size=facts.vocab_size,
        head_layers=0.0 if head is None else sum(p.numel() for p in head.parameters()) / layer_size,
        matrices=matrices,
        stays_whole=stays_whole,
    )


def _matrices(model: Any, layer: torch.nn.Module, facts: ModelFacts) -> tuple[tuple[LayerMatrix, ...], str | None]:
    """Return the matrices of a layer, or none and why it cannot be cut into shards."""
    try:
        cuts = layer_cuts(model, facts)
    except UnsupportedModelError as error:
        return (), str(error)
    linears = [(name, module) for name, module in layer.named_modules() if isinstance(module, torch.nn.Linear)]
    return tuple(LayerMatrix(each.out_features, each.in_features, cuts[name].gathers) for name, each in linears), None


def _inner_size(layer: torch.nn.Module, hidden: int) -> int:
    """Return the inputs of the layer's last linear layer outside attention; `hidden` where there is none."""
    attention = _attention_path(layer)
    sizes = [
        module.in_features
        for name, module in layer.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.startswith(f"{attention}.")
    ]
    return sizes[-1] if sizes else hidden


def _cut(
    model: Any, facts: ModelFacts, name: str, module: torch.nn.Module, style: str | None, in_attention: bool
) -> LinearCut | None:
    """Return a module's cut; `None` where every shard computes it whole."""
    own = dict(module.named_parameters(recurse=False))
    if not own:
        if style is not None and not _is_replicated(style):
            raise _refused(model, f"{name} is declared {style}")
        return None
    geometry = facts.geometry
    if type(module) is torch.nn.Linear:
        if style not in (_COLUMNS, _ROWS):
            raise _refused(model, f"{name} is declared {style or 'in no way'}")
        cut_size = module.in_features if style == _ROWS else module.out_features
        if in_attention and cut_size % geometry.kv_heads:
            raise _refused(model, f"{name} has {cut_size} columns for {geometry.kv_heads} KV heads")
        return LinearCut(style == _ROWS, in_attention)
    if not _is_replicated(style) or any(parameter.dim() > 1 for parameter in own.values()):
        raise _refused(model, f"{name} ({type(module).__name__}) is declared {style or 'in no way'}")
    widest = max(parameter.numel() for parameter in own.values())
    if in_attention and widest > max(geometry.key_dim, geometry.value_dim):
        raise _refused(model, f"{name} ({type(module).__name__}) is computed over all heads together")
    return None


def _declared(model: Any, layers_path: str) -> Mapping[str, str]:
    """Return transformers' declaration for the modules of a layer, by path in it."""
    start = re.compile(rf"^(?:.*\.)?{re.escape(layers_path.rpartition('.')[2])}\.\*\.(.+)$")
    plan = model.tp_plan or {}
    found = {match[1]: style for name, style in plan.items() if (match := start.match(name))}
    if not found:
        raise _refused(model, "transformers declares no tensor-parallel plan for it")
    return found


def _attention_path(layer: torch.nn.Module) -> str | None:
    """Return the path of the attention module in a decoder layer: the one that knows the layer's index."""
    paths = [name for name, module in layer.named_modules() if name and getattr(module, "layer_idx", None) is not None]
    return min(paths, key=len, default=None)


def _is_replicated(style: str | None) -> bool:
    return style is None or style.startswith("replicated")


def _refused(model: Any, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{_type(model)!r} cannot be cut into shards: {reason}; serve it with one shard (M = 1), and more stages if it is large"
    )


def _type(model: Any) -> str:
    return str(model.config.model_type)
