"""Linear layers, and embeddings, with weights packed for the native kernels.

A result row is summed in the same order whatever rows are computed beside it: batches do not change tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from spotwise.engine.block_kinds import PLAIN, BlockKind, kinds_of_stack
from spotwise.engine.native.library import FORMATS, LANES, PAIR, PANEL, Kernels
from spotwise.engine.native.weight_memory import PRIVATE, WeightMemory


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A quantised weight as it is stored.

    Attributes:
        kind: the kind of its blocks.
        data: `[rows, bytes]`.
        inputs: weights of a row.
    """

    kind: BlockKind
    data: torch.Tensor
    inputs: int


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight `[outputs, inputs]` as the kernels read it.

    Attributes:
        data: from its first panel to its last one: `PANEL * inputs` numbers each, or the bytes of its blocks.
        outputs, inputs: its columns, and numbers in each.
        dtype: format of what is multiplied with it.
        gaps: panels of `data` that are not its own: between a shard's queries and keys, and between its keys and values.
        kinds: the kind of each stacked weight's blocks; empty: it is not quantised.
    """

    data: torch.Tensor
    outputs: int
    inputs: int
    dtype: torch.dtype
    gaps: tuple[int, int] = (0, 0)
    kinds: tuple[BlockKind, ...] = ()

    @classmethod
    def of(
        cls,
        kernels: Kernels,
        weights: Sequence[torch.Tensor],
        order: np.ndarray | None = None,
        *,
        memory: WeightMemory = PRIVATE,
        name: str = "",
    ) -> Self:
        """Pack one or several stacked weights.

        Args:
            kernels: pack.
            weights: row-major, stacked in this order, of one dtype and width.
            order: row of the stack for each output column; `None`: the same.
            memory: holds the packed weight.
            name: name of the result in `memory`, which may hold it already.

        Raises:
            ValueError: `can_pack` is false for a weight.
        """
        for weight in weights:
            if not can_pack(weight):
                raise ValueError(f"weights {tuple(weight.shape)} of {weight.dtype} cannot be packed")
        outputs = sum(map(len, weights)) if order is None else len(order)
        inputs = weights[0].shape[1]

        def pack(packed: torch.Tensor) -> None:
            stacked = torch.cat([weight.detach() for weight in weights]) if len(weights) > 1 else weights[0].detach()
            pack_rows(kernels, stacked, np.arange(outputs) if order is None else order, packed)

        panels = -(-outputs // PANEL)
        dtype = weights[0].dtype
        return cls(memory.place(name, panels * PANEL * inputs, dtype, pack), outputs, inputs, dtype)

    @classmethod
    def of_blocks(
        cls,
        kernels: Kernels,
        weights: Sequence[BlockRows],
        dtype: torch.dtype,
        order: np.ndarray | None = None,
        *,
        memory: WeightMemory = PRIVATE,
        name: str = "",
    ) -> Self:
        """Pack one or several stacked weights that stay quantised, to be multiplied in `dtype`; else as `of`.

        Raises:
            ValueError: they cannot be stacked (`kinds_of_stack`).
        """
        rows = [len(weight.data) for weight in weights]
        kinds = kinds_of_stack([weight.kind for weight in weights], rows, interleaves=order is not None)
        if not kinds:
            raise ValueError("two kinds of blocks would share a panel")
        inputs, outputs = weights[0].inputs, sum(rows) if order is None else len(order)
        stride = panel_stride(kinds, inputs)

        def pack(packed: torch.Tensor) -> None:
            if len(set(kinds)) == 1:
                stacked = torch.cat([weight.data for weight in weights]) if len(weights) > 1 else weights[0].data
                own = np.arange(outputs) if order is None else order
                pack_block_rows(kernels, BlockRows(kinds[0], stacked, inputs), own, packed, stride, dtype)
                return
            before = 0
            for weight, count in zip(weights, rows, strict=True):
                own_panels = packed[before // PANEL * stride : (before + count) // PANEL * stride]
                pack_block_rows(kernels, weight, np.arange(count), own_panels, stride, dtype)
                before += count

        placed = memory.place(name, -(-outputs // PANEL) * stride, torch.uint8, pack)
        return cls(placed, outputs, inputs, dtype, kinds=kinds)

    @property
    def kind_codes(self) -> tuple[int, int, int]:
        """The kernels' codes of the kinds of queries, keys and values; three times the same in other matrices."""
        codes = [kind.code for kind in self.kinds] or [PLAIN]
        first, second, third = codes if len(codes) == 3 else [codes[0]] * 3
        return first, second, third


def panel_stride(kinds: Sequence[BlockKind], inputs: int) -> int:
    """Return the bytes from panel to panel of a quantised matrix: those of its largest kind."""
    return max(kind.panel_bytes(inputs) for kind in kinds)


def pack_block_rows(
    kernels: Kernels, weight: BlockRows, order: np.ndarray, packed: torch.Tensor, stride: int, dtype: torch.dtype
) -> None:
    """Write rows of a quantised weight as the panels of `packed`, `stride` bytes each, to be multiplied in `dtype`."""
    data, rows = weight.data.contiguous(), np.ascontiguousarray(order, dtype=np.int32)
    kernels.pack_blocks(
        FORMATS[dtype],
        weight.kind.code,
        data.data_ptr(),
        len(rows),
        weight.inputs,
        rows.ctypes.data,
        packed.data_ptr(),
        stride,
    )


def pack_rows(kernels: Kernels, weight: torch.Tensor, order: np.ndarray, packed: torch.Tensor) -> None:
    """Write rows of a weight `[rows, inputs]` as the panels of `packed`; `order` has the row of each output column."""
    weight = weight.contiguous()
    rows = np.ascontiguousarray(order, dtype=np.int32)
    kernels.pack(
        FORMATS[weight.dtype], weight.data_ptr(), len(rows), weight.shape[1], rows.ctypes.data, packed.data_ptr()
    )


def can_pack(weight: torch.Tensor) -> bool:
    """Whether the kernels support the dtype and width of a weight `[outputs, inputs]`."""
    return (
        weight.device.type == "cpu"
        and weight.dim() == 2
        and weight.dtype in FORMATS
        and weight.shape[1] % PAIR[weight.dtype] == 0
    )


def interleaved(rows: int) -> np.ndarray:
    """Return the order that alternates 16 rows of the first of two stacked weights with the same 16 of the second.

    Args:
        rows: rows of each weight; a multiple of 16.
    """
    blocks = np.arange(rows).reshape(-1, 1, LANES)
    return np.concatenate([blocks, blocks + rows], axis=1).reshape(-1)


class PackedLinear(torch.nn.Module):
    """A replacement of `torch.nn.Linear` with a packed weight.

    Args:
        kernels: multiply.
        weight: without gaps.
        bias: `[outputs]`, or none.
        float_output: return float32 for any dtype of the weight (logits); not with a bias.

    Raises:
        ValueError: `float_output` with a bias.
    """

    def __init__(
        self, kernels: Kernels, weight: PackedWeight, bias: torch.Tensor | None, *, float_output: bool = False
    ) -> None:
        super().__init__()
        if float_output and bias is not None:
            raise ValueError("the kernel gives float32 only without a bias")
        dtype = weight.dtype
        self._linear = kernels.linear
        self._weight = weight
        self._bias = None if bias is None else bias.detach().to(dtype).contiguous()
        self._format = FORMATS[dtype]
        self._output_dtype = torch.float32 if float_output else dtype
        self._float_output = int(float_output)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., outputs]` for `[..., inputs]`."""
        weight = self._weight
        if x.dtype is not weight.dtype or x.shape[-1] != weight.inputs:
            raise ValueError(f"{tuple(x.shape)} of {x.dtype} given, [..., {weight.inputs}] of {weight.dtype} expected")
        x = x.contiguous()
        out = torch.empty((*x.shape[:-1], weight.outputs), dtype=self._output_dtype)
        self._linear(
            self._format,
            x.data_ptr(),
            weight.inputs,
            x.numel() // weight.inputs,
            weight.kind_codes[0],
            weight.data.data_ptr(),
            weight.outputs,
            weight.inputs,
            None if self._bias is None else self._bias.data_ptr(),
            out.data_ptr(),
            weight.outputs,
            self._float_output,
        )
        return out


class PackedEmbedding(torch.nn.Module):
    """A replacement of `torch.nn.Embedding` whose weight stays quantised: a token's row is widened as it is read.

    Args:
        kernels: widen.
        weight: quantised, of one kind, without gaps.
    """

    def __init__(self, kernels: Kernels, weight: PackedWeight) -> None:
        super().__init__()
        self._widen_columns = kernels.widen_columns
        self._weight = weight
        self.embedding_dim = weight.inputs

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return `[..., embedding_dim]` for token ids `[...]`; raises `IndexError` where one is not in the vocabulary."""
        weight, flat = self._weight, token_ids.reshape(-1).to(torch.int64).contiguous()
        if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < weight.outputs:
            raise IndexError(f"a token id is not below {weight.outputs}")
        out = torch.empty((*token_ids.shape, weight.inputs), dtype=weight.dtype)
        self._widen_columns(
            FORMATS[weight.dtype],
            weight.kind_codes[0],
            weight.data.data_ptr(),
            weight.inputs,
            flat.data_ptr(),
            len(flat),
            out.data_ptr(),
        )
        return out
