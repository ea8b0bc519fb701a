"""Makes what one position of a group computes with: a model with its stage's layers only, and views of a store's weights.

Whether a layer is fused was tried with the whole layer (`WeightStore.load`), so that every shard, and the unsharded engine,
computes it with the same kernels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.forward.fused_layer import FusedDecoderLayer, LayerWeights, find_parts
from spotwise.engine.forward.rewriting import linear_weight
from spotwise.engine.model.attention_interface import set_attention_context
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.norm import replace_norms
from spotwise.engine.native.packed import PackedEmbedding, PackedLinear
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.matrix_form import MatrixForm
from spotwise.engine.parts.model_matrices import other_paths, path_of
from spotwise.engine.parts.sharding import LinearCut
from spotwise.engine.parts.stage import PipelineStage
from spotwise.engine.parts.weight_flow import WeightFlow
from spotwise.engine.parts.weight_store import WeightStore


class GatheredLinear(torch.nn.Module):
    """A linear layer that takes and returns whole rows where each shard has, and computes, a part of their columns.

    Args:
        linear: computes this shard's output columns from whole inputs.
        shard: this process's shard of the stage.
        inputs, outputs: columns of the whole layer.
        by_heads: inputs are cut by heads.
    """

    def __init__(self, linear: torch.nn.Module, shard: Shard, inputs: int, outputs: int, *, by_heads: bool) -> None:
        super().__init__()
        self._linear = linear
        self._shard = shard
        self._input_bounds = shard.head_bounds(inputs) if by_heads else shard.column_bounds(inputs)
        self._output_bounds = shard.column_bounds(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., outputs]` for this shard's columns of `[..., inputs]`; raises `GroupBrokenError`."""
        whole = _placed(x, self._input_bounds, self._shard)
        self._shard.gather(whole, self._input_bounds)
        out = _placed(self._linear(whole), self._output_bounds, self._shard)
        self._shard.gather(out, self._output_bounds)
        return out


class GatheredHead(torch.nn.Module):
    """The head of which each shard computes some columns of the vocabulary; only shard 0 returns all of them.

    Args:
        linear: computes this shard's columns.
        shard: this process's shard of the stage.
        vocab_size: columns of the whole head.
    """

    def __init__(self, linear: torch.nn.Module, shard: Shard, vocab_size: int) -> None:
        super().__init__()
        self._linear = linear
        self._shard = shard
        self._bounds = shard.column_bounds(vocab_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits `[..., vocab_size]`, at shard 0; raises `GroupBrokenError`."""
        out = _placed(self._linear(x), self._bounds, self._shard)
        self._shard.gather(out, self._bounds, root=0)
        return out


def _placed(part: torch.Tensor, bounds: tuple[int, ...], shard: Shard) -> torch.Tensor:
    """Return whole rows with this shard's columns in their place."""
    whole = part.new_empty((*part.shape[:-1], bounds[-1]))
    whole[..., bounds[shard.index] : bounds[shard.index + 1]] = part
    return whole


@torch.inference_mode()
def load_stage(
    store: WeightStore,
    model: Any,
    share: ModelShare,
    shard: Shard,
    context: Any,
    kernels: Kernels | None,
    flow: WeightFlow | None = None,
) -> tuple[PipelineStage, int]:
    """Turn a skeleton into the model that computes this share, in place.

    Args:
        store: the process's store of the model's weights, which are loaded where they are missing.
        model: the store's skeleton.
        share: what to compute.
        shard: its place in the group.
        context: the attention of its layers.
        kernels: the store's.
        flow: weights that other processes send, all of whose layers the store has tried or received results for;
            `None`: missing weights are loaded from the folder.

    Returns:
        The stage that runs the model, and the number of its layers that one native call computes.

    Raises:
        ModelError: a tensor cannot be read.
    """
    is_due = flow is not None
    if flow is None:
        store.load(share)
    structure = store.structure
    path = structure.matrices.layers_path
    layers = model.get_submodule(path)
    placing = _Placing(store, model, share, shard, kernels, is_due=is_due)
    fused = 0
    for index in share.layers:
        layer = layers[index]
        if kernels is not None and store.fused_layers[index]:
            parts = find_parts(layer)
            assert parts is not None  # else it is not fused
            forms = structure.matrices.layer(index, is_fused=True)
            layers[index] = FusedDecoderLayer(
                kernels,
                parts,
                LayerWeights(*(store.packed(form, share, is_due=is_due) for form in forms)),
                context.layer(index),
                context,
                is_last=index == len(layers) - 1,
                shard=shard,
            )
            fused += 1
        else:
            placing.place_layer(f"{path}.{index}")
            set_attention_context(layer, context)
    stage = PipelineStage(share, shard, share.dimensions.hidden_size, model.dtype)
    placing.place_ends(path)
    if kernels is not None:
        replace_norms(model, kernels)
    if flow is not None:
        _gate(flow, store, model, layers, share)
    stage.install(model, layers, returns_tuple=structure.calls.returns_tuple)
    return stage, fused


def _gate(flow: WeightFlow, store: WeightStore, model: Any, layers: torch.nn.ModuleList, share: ModelShare) -> None:
    """Let each layer wait for its weights, the last one also for the head's, and the model for those outside of layers."""
    matrices = store.structure.matrices
    first = [*(matrices.embedding if share.is_first else ()), *matrices.other]
    flow.gate(model, partial(store.has, first, share))
    for index in share.layers:
        is_end = share.is_last and index == len(layers) - 1
        forms = [*matrices.layer(index, is_fused=store.fused_layers[index]), *(matrices.head if is_end else ())]
        flow.gate(layers[index], partial(store.has, forms, share))


class _Placing:
    """Gives modules of a skeleton their matrices, or this shard's part of them."""

    def __init__(
        self,
        store: WeightStore,
        model: Any,
        share: ModelShare,
        shard: Shard,
        kernels: Kernels | None,
        *,
        is_due: bool,
    ) -> None:
        self._is_due = is_due
        self._store = store
        self._model = model
        self._share = share
        self._shard = shard
        self._kernels = kernels
        self._forms = store.structure.forms

    def place_layer(self, path: str) -> None:
        """Give a decoder layer that is not fused its matrices."""
        cuts = self._store.structure.matrices.cuts
        modules = [name for name, _ in self._model.get_submodule(path).named_modules()]
        for name in modules:
            self._place(".".join(filter(None, (path, name))), cuts.get(name))

    def place_ends(self, layers_path: str) -> None:
        """Give what is outside the layers its matrices: the embedding in the first stage, the head in the last, all else."""
        model, share = self._model, self._share
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        head_path = None if head is None else path_of(model, head)
        for path in other_paths(model, layers_path):
            self._place(path, None)
        if share.is_first:
            self._place(path_of(model, embedding), None)
        if share.is_last and head is not None:
            own = self._linear(self._forms[f"{head_path}.weight"], head.bias, float_output=True)
            model.set_output_embeddings(
                own if self._shard.is_whole else GatheredHead(own, self._shard, head.out_features)
            )

    def _place(self, path: str, cut: LinearCut | None) -> None:
        """Give one module its own matrices; a linear layer is replaced."""
        module: Any = self._model.get_submodule(path)
        weight = linear_weight(module)
        if weight is None:
            form = self._forms.get(f"{path}.weight".lstrip("."))
            if form is not None and form.is_packed:
                assert self._kernels is not None  # else nothing is packed
                packed = self._store.packed(form, self._share, is_due=self._is_due)
                self._replace(path, PackedEmbedding(self._kernels, packed))
                return
            for name, parameter in module._parameters.items():
                if (form := self._forms.get(f"{path}.{name}".lstrip("."))) is not None:
                    own = self._store.plain(form, self._share, is_due=self._is_due).view(parameter.shape)
                    module._parameters[name] = torch.nn.Parameter(own, requires_grad=False)
            return
        linear = self._linear(self._forms[f"{path}.weight"], module.bias)
        if cut is not None and cut.gathers:
            outputs, inputs = weight.shape
            linear = GatheredLinear(linear, self._shard, inputs, outputs, by_heads=cut.by_heads)
        self._replace(path, linear)

    def _replace(self, path: str, module: torch.nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        setattr(self._model.get_submodule(parent), name, module)

    def _linear(self, form: MatrixForm, bias: torch.Tensor | None, *, float_output: bool = False) -> torch.nn.Module:
        """Return a linear layer of this shard's columns."""
        (columns,) = form.columns(self._share)
        own_bias = None if bias is None else bias[columns.start : columns.stop]
        if form.is_packed:
            assert self._kernels is not None  # else nothing is packed
            weight = self._store.packed(form, self._share, is_due=self._is_due)
            return PackedLinear(self._kernels, weight, own_bias, float_output=float_output and bias is None)
        linear = torch.nn.Linear(1, 1, bias=bias is not None, device="meta")
        plain = self._store.plain(form, self._share, is_due=self._is_due)
        linear.weight = torch.nn.Parameter(plain, requires_grad=False)
        if own_bias is not None:
            linear.bias = torch.nn.Parameter(own_bias.clone(), requires_grad=False)
        return linear
