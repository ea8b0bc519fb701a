"""Fused layers that follow each other, computed by one native call: between calls the kernels' threads wait for Python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from spotwise.engine.forward.native_attention import NativeAttention
from spotwise.engine.native.library import Kernels, LayerFields
from spotwise.engine.native.shard import Shard


class LayerRun:
    """Consecutive layers of one model.

    Args:
        kernels: compute them.
        context: holds the plan of the rows, and the cache.
        shard: the shard of the layers that this process computes.
        fields: what the kernels read of each layer; kept alive.
        dtype: dtype of hidden states.
        ends_model: the last of them is the model's last, which with `NativePlan.last_only` computes only each row's last token.
    """

    def __init__(
        self,
        kernels: Kernels,
        context: NativeAttention,
        shard: Shard,
        fields: Sequence[LayerFields],
        dtype: torch.dtype,
        *,
        ends_model: bool,
    ) -> None:
        self._call: Any = kernels.layers
        self._context = context
        self._shard = shard
        self._fields = tuple(fields)
        self._addresses = (ctypes.c_void_p * len(fields))(*map(ctypes.addressof, fields))
        self._dtype = dtype
        self._ends_model = ends_model

    def compute(
        self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Compute the layers for the rows of the context's plan, and tell the context of each layer's KV where it is asked.

        Args:
            hidden_states: `[1, tokens, hidden]`, overwritten and returned.
            position_embeddings: cosine and sine, `[1, tokens, rotary_dim]` each.

        Raises:
            GroupBrokenError: a member of the group is gone.
            ValueError: a shape or dtype is another one.
        """
        plan, first = self._context.plan, self._fields[0]
        if plan is None:
            raise RuntimeError("a layer was called outside an iteration")
        cosine, sine = position_embeddings
        for part, width in ((hidden_states, first.hidden), (cosine, first.rotary_dim)):
            if part.shape[-2:] != (plan.fields.tokens, width) or part.dtype is not self._dtype:
                raise ValueError(f"{tuple(part.shape)} of {part.dtype} given for {plan.fields.tokens} tokens")
        hidden_states, cosine, sine = hidden_states.contiguous(), cosine.contiguous(), sine.contiguous()
        count, on_written = len(self._fields), self._context.on_written
        step = count if on_written is None else 1
        for start in range(0, count, step):
            is_whole = self._call(
                ctypes.addressof(self._addresses) + start * ctypes.sizeof(ctypes.c_void_p),
                step,
                plan.address,
                hidden_states.data_ptr(),
                cosine.data_ptr(),
                sine.data_ptr(),
                int(self._ends_model and plan.last_only and start + step == count),
                None if plan.adapters is None else plan.adapters.address,
            )
            if not is_whole:
                raise self._shard.error()
            if on_written is not None:
                on_written(self._fields[start].index)
        return hidden_states
