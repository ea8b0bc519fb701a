"""Linear layers with weights packed for the native kernels.

A result row is summed in the same order whatever rows are computed beside it: batches do not change tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from spotwise.engine.native.library import FORMATS, LANES, PAIR, PANEL, Kernels
from spotwise.engine.weight_memory import PRIVATE, WeightMemory


class PackedWeight:
    """One or several stacked weights `[outputs, inputs]`, packed for the kernels.

    Args:
        kernels: pack and multiply.
        weights: row-major, stacked in this order, of one dtype and width.
        order: by output column, the row of the stack; `None`: the same.
        memory: holds the packed weight.
        name: of it in `memory`, which may hold it already.

    Raises:
        ValueError: `can_pack` is false for a weight.
    """

    def __init__(
        self,
        kernels: Kernels,
        weights: Sequence[torch.Tensor],
        order: np.ndarray | None = None,
        *,
        memory: WeightMemory = PRIVATE,
        name: str = "",
    ) -> None:
        for weight in weights:
            if not can_pack(weight):
                raise ValueError(f"weights {tuple(weight.shape)} of {weight.dtype} cannot be packed")
        self.outputs = sum(map(len, weights)) if order is None else len(order)
        self.inputs = weights[0].shape[1]
        self.dtype = weights[0].dtype

        def pack(packed: torch.Tensor) -> None:
            stacked = torch.cat([weight.detach() for weight in weights]) if len(weights) > 1 else weights[0].detach()
            stacked = stacked.contiguous()
            rows = np.ascontiguousarray(np.arange(self.outputs) if order is None else order, dtype=np.int32)
            kernels.pack(
                FORMATS[self.dtype],
                stacked.data_ptr(),
                self.outputs,
                self.inputs,
                rows.ctypes.data,
                packed.data_ptr(),
            )

        panels = -(-self.outputs // PANEL)
        self.data = memory.place(name, panels * PANEL * self.inputs, self.dtype, pack)


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
        rows: of each weight; a multiple of 16.
    """
    blocks = np.arange(rows).reshape(-1, 1, LANES)
    return np.concatenate([blocks, blocks + rows], axis=1).reshape(-1)


class PackedLinear(torch.nn.Module):
    """A replacement of `torch.nn.Linear` with a packed weight.

    Args:
        kernels: multiply.
        weight: `[outputs, inputs]`.
        bias: `[outputs]`, or none.
        float_output: return float32 for any dtype of the weight (logits); not with a bias.
        memory: holds the packed weight.
        name: of it in `memory`.

    Raises:
        ValueError: the weight cannot be packed, or `float_output` with a bias.
    """

    def __init__(
        self,
        kernels: Kernels,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        float_output: bool = False,
        memory: WeightMemory = PRIVATE,
        name: str = "",
    ) -> None:
        super().__init__()
        if float_output and bias is not None:
            raise ValueError("the kernel gives float32 only without a bias")
        self._linear = kernels.linear
        self._weight = PackedWeight(kernels, [weight], memory=memory, name=name)
        self._bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()
        self._format = FORMATS[weight.dtype]
        self._output_dtype = torch.float32 if float_output else weight.dtype
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
            weight.data.data_ptr(),
            weight.outputs,
            weight.inputs,
            None if self._bias is None else self._bias.data_ptr(),
            out.data_ptr(),
            weight.outputs,
            self._float_output,
        )
        return out
