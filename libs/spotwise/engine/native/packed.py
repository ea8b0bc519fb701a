"""Linear layers with weights packed for the native kernels.

A result row is summed in the same order whatever rows are computed beside it: batches do not change tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from spotwise.engine.native.library import FORMATS, LANES, PAIR, PANEL, Kernels
from spotwise.engine.native.weight_memory import PRIVATE, WeightMemory


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight `[outputs, inputs]` as the kernels read it.

    Attributes:
        data: from its first panel to its last one, `PANEL * inputs` numbers each.
        outputs, inputs: its columns, and numbers in each.
        gaps: panels of `data` that are not its own: between a shard's queries and keys, and between its keys and values.
    """

    data: torch.Tensor
    outputs: int
    inputs: int
    gaps: tuple[int, int] = (0, 0)

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
        return cls(memory.place(name, panels * PANEL * inputs, weights[0].dtype, pack), outputs, inputs)


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
        dtype = weight.data.dtype
        self._linear = kernels.linear
        self._weight = weight
        self._bias = None if bias is None else bias.detach().to(dtype).contiguous()
        self._format = FORMATS[dtype]
        self._output_dtype = torch.float32 if float_output else dtype
        self._float_output = int(float_output)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., outputs]` for `[..., inputs]`."""
        weight = self._weight
        if x.dtype is not weight.data.dtype or x.shape[-1] != weight.inputs:
            raise ValueError(
                f"{tuple(x.shape)} of {x.dtype} given, [..., {weight.inputs}] of {weight.data.dtype} expected"
            )
        x = x.contiguous()
        out = torch.empty((*x.shape[:-1], weight.outputs), dtype=self._output_dtype)
        self._linear(
            self._format,
            x.data_ptr(),
            weight.inputs,
            x.numel() // weight.inputs,
            weight.data.data_ptr(),
            weight.outputs,
            weight.inputs,
            None if self._bias is None else self._bias.data_ptr(),
            out.data_ptr(),
            weight.outputs,
            self._float_output,
        )
        return out
