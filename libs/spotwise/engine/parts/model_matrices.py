"""Lists a model's matrices, by what needs them: each layer, or one of the model's ends.

All parameters with two dimensions or more are matrices here, also those that are never cut (embeddings, stacked experts); what
is smaller is part of a model's sketch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.block_kinds import BlockKind, kinds_of_stack
from spotwise.engine.forward.fused_layer import STACKS, LayerParts, find_parts
from spotwise.engine.forward.rewriting import can_keep, linear_weight
from spotwise.engine.native.packed import can_pack
from spotwise.engine.parts.matrix_form import MatrixCut, MatrixForm, MatrixRows
from spotwise.engine.parts.sharding import LinearCut, dimensions, find_layers, layer_cuts
from spotwise.engine.parts.sketch import Sketch

#: Returns the kind of a parameter's blocks, which stay quantised; `None`: it is widened.
KindOf = Callable[[str], BlockKind | None]


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
    def of(cls, sketch: Sketch, *, packs: bool, keeps: bool = False) -> Self:
        """List the matrices of a sketch, which are packed where `packs` and the kernels can, and stay quantised where `keeps`,
        too; raises `UnsupportedModelError` where there is no list of layers.
        """
        kind_of: KindOf = sketch.tensors.kind if packs and keeps else _no_kind
        model, facts = sketch.model, sketch.facts
        path, layers = find_layers(model, facts)
        is_whole = dimensions(model, facts).stays_whole is not None
        cuts: Mapping[str, LinearCut] = {} if is_whole else layer_cuts(model, facts)
        found = [find_parts(layer) if packs else None for layer in layers]
        head = model.get_output_embeddings()
        return cls(
            path,
            cuts,
            tuple(None if parts is None else _common(f"{path}.{parts.index}", parts, kind_of) for parts in found),
            tuple(
                tuple(
                    _single(
                        f"{path}.{index}", layer, packs, {name: _matrix_cut(cut) for name, cut in cuts.items()}, kind_of
                    )
                )
                for index, layer in enumerate(layers)
            ),
            () if head is None else tuple(_single(path_of(model, head), head, packs, {"": MatrixCut.COLUMNS}, kind_of)),
            tuple(
                _single(path_of(model, model.get_input_embeddings()), model.get_input_embeddings(), packs, {}, kind_of)
            ),
            tuple(
                form
                for name in other_paths(model, path)
                for form in _own(name, model.get_submodule(name), packs, kind_of)
            ),
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


def _no_kind(_: str) -> BlockKind | None:
    return None


def _common(path: str, parts: LayerParts, kind_of: KindOf) -> tuple[MatrixForm, ...]:
    """Return the matrices of a layer of the common form, in the order of `LayerWeights`."""

    def form(part: str, cut: MatrixCut, *linears: torch.nn.Linear, interleaves: bool = False) -> MatrixForm:
        names = [f"{path}.{name}.weight" for name in STACKS[part]]
        counts = [linear.out_features for linear in linears]
        kinds = kinds_of_stack([kind_of(name) for name in names], counts, interleaves=interleaves)
        rows = tuple(map(MatrixRows, names, counts))
        dtype = linears[0].weight.dtype
        return MatrixForm(f"{path}.{part}", rows, linears[0].in_features, dtype, True, cut, interleaves, kinds)

    return (
        form("qkv", MatrixCut.HEADS, parts.query, parts.key, parts.value),
        form("output", MatrixCut.COLUMNS, parts.output),
        form("gate_up", MatrixCut.COLUMNS, parts.gate, parts.up, interleaves=True),
        form("down", MatrixCut.COLUMNS, parts.down),
    )


def _matrix_cut(cut: LinearCut) -> MatrixCut:
    return MatrixCut.HEADS if cut.by_heads and not cut.gathers else MatrixCut.COLUMNS


def _single(
    path: str, module: torch.nn.Module, packs: bool, cuts: Mapping[str, MatrixCut], kind_of: KindOf
) -> Iterator[MatrixForm]:
    """Yield the matrices of a module at `path` and of all within it; `cuts` are by path in it."""
    for inner, part in module.named_modules():
        cut = cuts.get(inner, MatrixCut.WHOLE)
        yield from _own(".".join(filter(None, (path, inner))), part, packs, kind_of, cut)


def _own(
    path: str, module: torch.nn.Module, packs: bool, kind_of: KindOf, cut: MatrixCut = MatrixCut.WHOLE
) -> Iterator[MatrixForm]:
    weight = linear_weight(module)
    for own, parameter in module._parameters.items():
        if parameter is None or parameter.dim() < 2:
            continue
        name, dtype = f"{path}.{own}".lstrip("."), parameter.dtype
        kind = kind_of(name) if can_keep(module) else None
        kinds = () if kind is None else (kind,)
        if weight is None:
            inputs = parameter.shape[-1]
            rows = MatrixRows(name, parameter.numel() // inputs)
            yield MatrixForm(name, (rows,), inputs, dtype, bool(kinds), kinds=kinds)
        else:
            rows = MatrixRows(name, weight.shape[0], is_transposed=weight is not parameter)
            is_packed = packs and can_pack(weight)
            yield MatrixForm(name, (rows,), weight.shape[1], dtype, is_packed, cut, kinds=kinds if is_packed else ())
