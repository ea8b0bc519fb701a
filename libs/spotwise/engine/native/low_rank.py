"""LoRA adapters of linear layers: adds `up(down(x))` for the tokens of rows that chose them (Hu et al., 2021).

A batch may mix rows of different adapters and rows without one. The model's own matrices stay as they are, so that rows without
an adapter get what they get in a batch without any.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spotwise.core.requests.names import AdapterRef
from spotwise.engine.native.library import PAIR, AdaptedLayerFields, AdapterRowFields, Kernels, LowRankFields
from spotwise.engine.native.packed import PackedLinear, PackedWeight

#: Of a fused layer's modules: the product that computes each, and its place in it.
FUSED_PARTS = {
    "self_attn.q_proj": ("qkv", 0),
    "self_attn.k_proj": ("qkv", 1),
    "self_attn.v_proj": ("qkv", 2),
    "self_attn.o_proj": ("output", 0),
    "mlp.gate_proj": ("gate_up", 0),
    "mlp.up_proj": ("gate_up", 1),
    "mlp.down_proj": ("down", 0),
}


@dataclass(frozen=True, slots=True)
class LowRank:
    """The matrices of one linear layer, in the model's dtype.

    Attributes:
        down: `[rank, inputs]`.
        up: `[outputs, rank]`, scaled.
    """

    down: torch.Tensor
    up: torch.Tensor

    def padded(self) -> LowRank:
        """Return them with a rank that the kernels can read, by columns of zeros."""
        missing = -len(self.down) % PAIR[self.down.dtype]
        pad = torch.nn.functional.pad
        return LowRank(pad(self.down, (0, 0, 0, missing)), pad(self.up, (0, missing)))


class FusedAdapter:
    """An adapter's matrices for the fused layers of a model, as the kernels read them.

    Args:
        kernels: multiply.
        num_layers: layers of the model.
        layers: matrices of each fused layer, by the layer's index and their module's path in it.
    """

    def __init__(self, kernels: Kernels, num_layers: int, layers: Mapping[int, Mapping[str, LowRank]]) -> None:
        self._fields = (AdaptedLayerFields * num_layers)()
        self._kept: list[torch.Tensor] = []
        for index, modules in layers.items():
            products: dict[str, dict[int, LowRank]] = {}
            for path, matrices in modules.items():
                product, part = FUSED_PARTS[path]
                products.setdefault(product, {})[part] = matrices.padded()
            for product, parts in products.items():
                setattr(self._fields[index], product, self._packed(kernels, parts))

    @property
    def address(self) -> int:
        """Address of the layers' fields."""
        return ctypes.addressof(self._fields)

    def _packed(self, kernels: Kernels, parts: Mapping[int, LowRank]) -> LowRankFields:
        ordered = sorted(parts)
        down = PackedWeight.of(kernels, [parts[part].down for part in ordered])
        fields = LowRankFields(down=down.data.data_ptr())
        self._kept.append(down.data)
        for part in ordered:
            up = PackedWeight.of(kernels, [parts[part].up])
            self._kept.append(up.data)
            fields.up[part], fields.ranks[part] = up.data.data_ptr(), up.inputs
        return fields


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter of an engine's model.

    Attributes:
        ref: its name and digest.
        number: from 1 on; rows of a batch are ordered by it.
        fused: what it adds to fused layers; `None`: the model has none.
    """

    ref: AdapterRef
    number: int
    fused: FusedAdapter | None


class FusedRows:
    """The rows of an iteration that have adapters, as the kernels read them.

    Args:
        adapters: the adapters of the iteration's rows: none, then in ascending order of their numbers; one row at least
            has one.
    """

    def __init__(self, adapters: Sequence[LoadedAdapter | None]) -> None:
        starts = [row for row, each in enumerate(adapters) if each and (row == 0 or each is not adapters[row - 1])]
        self._first_row = np.array([*starts, len(adapters)], np.int32)
        chosen = [adapter.fused for row in starts if (adapter := adapters[row]) is not None]
        self._layers = np.array([0 if each is None else each.address for each in chosen], np.uintp)
        self.fields = AdapterRowFields(len(starts), self._first_row.ctypes.data, self._layers.ctypes.data)

    @property
    def address(self) -> int:
        """Address of the fields."""
        return ctypes.addressof(self.fields)


class AdaptedTokens:
    """The tokens of the running forward that have adapters; linear layers that are not fused read them.

    Attributes:
        tokens: tokens of the forward; 0: none has one.
        by_adapter: the tokens' flat indices by adapter, a slice where they follow one another.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.by_adapter: list[tuple[LoadedAdapter, slice | torch.Tensor]] = []


class AdaptedLinear(torch.nn.Module):
    """A linear layer of a model, with its adapters.

    Args:
        path: path of the layer in the model, for messages.
        layer: maps `[..., inputs]` to `[..., outputs]`.
        chosen: the running forward's tokens and their adapters.
    """

    def __init__(self, path: str, layer: torch.nn.Module, chosen: AdaptedTokens) -> None:
        super().__init__()
        self._path = path
        self._layer = layer
        self._chosen = chosen
        self._low_rank: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = {}
        #: Forwards of tokens with an adapter so far.
        self.calls = 0

    def add(self, adapter: LoadedAdapter, matrices: LowRank, kernels: Kernels | None) -> None:
        """Take an adapter's matrices; `kernels` multiply them, or torch."""
        matrices = matrices if kernels is None else matrices.padded()
        self._low_rank[adapter.number] = (_linear(matrices.down, kernels), _linear(matrices.up, kernels))

    def has(self, adapter: LoadedAdapter) -> bool:
        """Whether an adapter adds to this layer."""
        return adapter.number in self._low_rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., outputs]` for `[..., inputs]`.

        Raises:
            ValueError: `x` is not one vector for each token of the forward.
        """
        y: torch.Tensor = self._layer(x)
        if not self._chosen.tokens:
            return y
        self.calls += 1
        inputs, outputs = x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        if len(inputs) != self._chosen.tokens:
            raise ValueError(f"{self._path} computes {len(inputs)} of {self._chosen.tokens} tokens")
        for adapter, tokens in self._chosen.by_adapter:
            if (matrices := self._low_rank.get(adapter.number)) is not None:
                down, up = matrices
                outputs[tokens] += up(down(inputs[tokens]))
        return y


def _linear(weight: torch.Tensor, kernels: Kernels | None) -> torch.nn.Module:
    if kernels is not None:
        return PackedLinear(kernels, PackedWeight.of(kernels, [weight]), None)
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer
