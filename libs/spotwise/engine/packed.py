"""Linear layers with weights packed for the native kernels.

Law: a weight is packed once, at load, into the order in which a tile reads it, and the original is given up. A row of the
result is added up in the same order whatever rows are computed beside it: batches do not change tokens, in bfloat16 either.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from spotwise.engine.native.library import FORMATS, LANES, PAIR, PANEL, Kernels


class PackedWeight:
    """The rows of one or several weights `[outputs, inputs]`, packed.

    Args:
        kernels: that pack and multiply.
        weights: row-major, one under the other, of one type and width.
        order: row that becomes each output column; `None` keeps their order.

    Raises:
        ValueError: the type or the width is not the kernels'; ask `can_pack`.
    """

    def __init__(self, kernels: Kernels, weights: Sequence[torch.Tensor], order: np.ndarray | None = None) -> None:
        stacked = torch.cat([weight.detach() for weight in weights]) if len(weights) > 1 else weights[0].detach()
        stacked = stacked.contiguous()
        if not can_pack(stacked):
            raise ValueError(f"weights {tuple(stacked.shape)} of {stacked.dtype} cannot be packed")
        self.outputs = len(stacked) if order is None else len(order)
        self.inputs = stacked.shape[1]
        self.dtype = stacked.dtype
        rows = np.arange(self.outputs) if order is None else order
        rows = np.ascontiguousarray(rows, dtype=np.int32)
        panels = -(-self.outputs // PANEL)
        self.data = torch.empty(panels * PANEL * self.inputs, dtype=stacked.dtype)
        kernels.pack(
            FORMATS[self.dtype], stacked.data_ptr(), self.outputs, self.inputs, rows.ctypes.data, self.data.data_ptr()
        )


def can_pack(weight: torch.Tensor) -> bool:
    """Whether the kernels know the type and width of a weight `[outputs, inputs]`."""
    return (
        weight.device.type == "cpu"
        and weight.dim() == 2
        and weight.dtype in FORMATS
        and weight.shape[1] % PAIR[weight.dtype] == 0
    )


def interleaved(rows: int) -> np.ndarray:
    """Return the order that puts 16 rows of the first of two stacked weights beside the same 16 of the second.

    Args:
        rows: of each of the two; a multiple of 16.
    """
    blocks = np.arange(rows).reshape(-1, 1, LANES)
    return np.concatenate([blocks, blocks + rows], axis=1).reshape(-1)


class PackedLinear(torch.nn.Module):
    """What `torch.nn.Linear` computes, from a packed weight.

    Args:
        kernels: that multiply.
        weight: `[outputs, inputs]`.
        bias: `[outputs]`, or none.
        float_output: give float32 whatever the type (logits); not with a bias.

    Raises:
        ValueError: the weight cannot be packed, or `float_output` with a bias.
    """

    def __init__(
        self, kernels: Kernels, weight: torch.Tensor, bias: torch.Tensor | None, *, float_output: bool = False
    ) -> None:
        super().__init__()
        if float_output and bias is not None:
            raise ValueError("the kernel gives float32 only without a bias")
        self._linear = kernels.linear
        self._weight = PackedWeight(kernels, [weight])
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
            self._float_output,
        )
        return out
