"""Lists a model's matrices, by what needs them: each layer, or one of the model's ends.

All parameters with two dimensions or more are matrices here, also those that are never cut (embeddings, stacked experts); what
is smaller is part of a model's sketch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.forward.fused_layer import LayerParts, find_parts
from spotwise.engine.forward.rewriting import linear_weight
from spotwise.engine.native.packed import can_pack
from spotwise.engine.parts.matrix_form import MatrixCut, MatrixForm, MatrixRows
from spotwise.engine.parts.sharding import LinearCut, dimensions, find_layers, layer_cuts
from spotwise.engine.parts.sketch import Sketch


@dataclass(frozen=True, slots=True)
class ModelMatrices:
    """The matrices of a model.

    Attributes:
        layers_path: path of the list of layers in the model.
        cuts: cuts of the linear layers of a decoder layer, by path in it; empty where it has to stay whole.
        common: `qkv`, `output`, `gate_up` and `down` of each layer that a native call may compute; `None`: it cannot.
        single: matrices of each layer's modules.
        head: matrix of the last stage's head, if any.
        embedding: matrix of the first stage's embedding.
        other: matrices of every stage.
    """

    layers_path: str
    cuts: Mapping[str, LinearCut]
    common: tuple[tuple[MatrixForm, ...] | None, ...]
    single: tuple[tuple[MatrixForm, ...], ...]
    head: tuple[MatrixForm, ...]
    embedding: tuple[MatrixForm, ...]
    other: tuple[MatrixForm, ...]

    @classmethod
    def of(cls, sketch: Sketch, *, packs: bool) -> Self:
        """List the matrices of a sketch, which are packed where `packs` and the kernels can; raises `UnsupportedModelError`
        where there is no list of layers.
        """
        model, facts = sketch.model, sketch.facts
        path, layers = find_layers(model, facts)
        is_whole = dimensions(model, facts).stays_whole is not None
        cuts: Mapping[str, LinearCut] = {} if is_whole else layer_cuts(model, facts)
        found = [find_parts(layer) if packs else None for layer in layers]
        head = model.get_output_embeddings()
        return cls(
            path,
            cuts,
            tuple(None if parts is None else _common(f"{path}.{parts.index}", parts) for parts in found),
            tuple(
                tuple(_single(f"{path}.{index}", layer, packs, {name: _matrix_cut(cut) for name, cut in cuts.items()}))
                for index, layer in enumerate(layers)
            ),
            () if head is None else tuple(_single(path_of(model, head), head, packs, {"": MatrixCut.COLUMNS})),
            tuple(_single(path_of(model, model.get_input_embeddings()), model.get_input_embeddings(), packs, {})),
            tuple(form for name in other_paths(model, path) for form in _own(name, model.get_submodule(name), packs)),
        )

    def layer(self, index: int, *, is_fused: bool) -> tuple[MatrixForm, ...]:
        """Return the matrices of a layer, as one native call reads them or as its modules do."""
        common = self.common[index] if is_fused else None
        return self.single[index] if common is None else common

    def ends(self, share: ModelShare) -> tuple[MatrixForm, ...]:
        """Return the matrices outside the layers that a share needs."""
        first, last = self.embedding if share.is_first else (), self.head if share.is_last else ()
        return (*first, *self.other, *last)

    def all(self) -> Iterator[MatrixForm]:
        """Yield all, those of layers in both ways."""
        for common, single in zip(self.common, self.single, strict=True):
            yield from common or ()
            yield from single
        yield from (*self.embedding, *self.other, *self.head)


def path_of(model: torch.nn.Module, module: torch.nn.Module) -> str:
    """Return the path of a module in the model."""
    path: str = next(path for path, each in model.named_modules() if each is module)
    return path


def other_paths(model: torch.nn.Module, layers_path: str) -> list[str]:
    """Return the paths of the modules outside the layers, without the embedding and the head."""
    typed: Any = model
    ends = (typed.get_input_embeddings(), typed.get_output_embeddings())
    return [
        path
        for path, module in model.named_modules()
        if module not in ends and not f"{path}.".startswith(f"{layers_path}.")
    ]


def _common(path: str, parts: LayerParts) -> tuple[MatrixForm, ...]:
    """Return the matrices of a layer of the common form, in the order of `LayerWeights`."""

    def form(part: str, cut: MatrixCut, *linears: tuple[str, torch.nn.Linear], interleaves: bool = False) -> MatrixForm:
        rows = tuple(MatrixRows(f"{path}.{name}.weight", linear.out_features) for name, linear in linears)
        first = linears[0][1]
        return MatrixForm(f"{path}.{part}", rows, first.in_features, first.weight.dtype, True, cut, interleaves)

    qkv = (("self_attn.q_proj", parts.query), ("self_attn.k_proj", parts.key), ("self_attn.v_proj", parts.value))
    gate_up = (("mlp.gate_proj", parts.gate), ("mlp.up_proj", parts.up))
    return (
        form("qkv", MatrixCut.HEADS, *qkv),
        form("output", MatrixCut.COLUMNS, ("self_attn.o_proj", parts.output)),
        form("gate_up", MatrixCut.COLUMNS, *gate_up, interleaves=True),
        form("down", MatrixCut.COLUMNS, ("mlp.down_proj", parts.down)),
    )


def _matrix_cut(cut: LinearCut) -> MatrixCut:
    return MatrixCut.HEADS if cut.by_heads and not cut.gathers else MatrixCut.COLUMNS


def _single(path: str, module: torch.nn.Module, packs: bool, cuts: Mapping[str, MatrixCut]) -> Iterator[MatrixForm]:
    """Yield the matrices of a module at `path` and of all within it; `cuts` are by path in it."""
    for inner, part in module.named_modules():
        yield from _own(".".join(filter(None, (path, inner))), part, packs, cuts.get(inner, MatrixCut.WHOLE))


def _own(path: str, module: torch.nn.Module, packs: bool, cut: MatrixCut = MatrixCut.WHOLE) -> Iterator[MatrixForm]:
    weight = linear_weight(module)
    for own, parameter in module._parameters.items():
        if parameter is None or parameter.dim() < 2:
            continue
        name, dtype = f"{path}.{own}".lstrip("."), parameter.dtype
        if weight is None:
            inputs = parameter.shape[-1]
            yield MatrixForm(name, (MatrixRows(name, parameter.numel() // inputs),), inputs, dtype, False)
        else:
            rows = MatrixRows(name, weight.shape[0], is_transposed=weight is not parameter)
            yield MatrixForm(name, (rows,), weight.shape[1], dtype, packs and can_pack(weight), cut)
