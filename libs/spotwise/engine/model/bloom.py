"""Adapts BLOOM (Le Scao et al., 2022) to transformers' attention interface, which its own layers do not use."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import Cache
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor

from spotwise.engine.model.attention_interface import attention_function

#: Positions that BLOOM was trained on (the hyperparameters in its paper); ALiBi sets no bound, and its configs often name none.
TRAINED_CONTEXT_LENGTH = 2048


class InterfacedBloomAttention(BloomAttention):
    """`BloomAttention` whose attention goes through transformers' attention interface."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        residual: torch.Tensor,
        alibi: torch.Tensor,
        attention_mask: torch.Tensor | None,
        layer_past: Cache | None = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return what `BloomAttention` returns, without attention weights; `alibi` and the cache arguments are ignored."""
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        slopes = alibi_slopes(self.num_heads)
        attended, _ = attention_function(
            self, query, key, value, attention_mask, scaling=self.inv_norm_factor, alibi_slopes=slopes
        )
        output: torch.Tensor = self.dense(attended.flatten(2))
        return output + residual, None


def adapt_bloom(model: nn.Module) -> None:
    """Route BLOOM's attention layers in `model` through the attention interface; other models stay unchanged."""
    for module in model.modules():
        if type(module) is BloomAttention:
            module.__class__ = InterfacedBloomAttention


@cache
def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Return each head's ALiBi slope, positive: the increase of transformers' bias from one position to the next."""
    two_positions = torch.ones(1, 2, dtype=torch.int64)
    bias: torch.Tensor = build_alibi_tensor(two_positions, num_heads, torch.float32)
    return tuple(bias[:, 0, 1].tolist())
