"""Attention weights from query-key products in torch, and the sliding window of a layer from transformers' mask function.

Distances are query position less key position; a negative one is a key that the query does not see.

The mask is what `generate` computes with; windows named elsewhere may differ from it. Only masks that a layer receives count;
a mask is recognized by its storage, since a model may slice it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionMaskInterface, PreTrainedModel

from spotwise.engine.model.attention_interface import ATTENTION_NAME, PROBE_NAME, LayerAttention
from spotwise.engine.model.errors import UnsupportedModelError

# Queries of a tile: bounds the scores that are held at once.
_TILE_TOKENS = 64


class ScoreTerms:
    """One layer's attention parameters, the per-head ones as device tensors."""

    def __init__(self, layer: LayerAttention, device: torch.device) -> None:
        self.layer = layer
        self._slopes = _by_head(layer.alibi_slopes, device)
        self._sinks = _by_head(layer.sinks, device)

    def weights(self, products: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        """Return the attention weights.

        Args:
            products: `[rows, kv_heads, heads of a KV head, queries, keys]`, neither scaled nor masked.
            distance: `[rows, queries, keys]`, integers.

        Returns:
            Weights of the shape and dtype of `products`; a row sums to one, or to less with a sink.
        """
        rows, kv_heads, group, queries, keys = products.shape
        distance = distance[:, None, None]
        scores = products.float() * self.layer.scaling
        if self.layer.softcap is not None:
            scores = torch.tanh(scores / self.layer.softcap) * self.layer.softcap
        if self._slopes is not None:
            scores = scores - self._slopes.view(kv_heads, group, 1, 1) * distance
        unseen = distance < 0
        if self.layer.window is not None:
            unseen = unseen | (distance >= self.layer.window)
        scores = scores.masked_fill(unseen, -torch.inf)
        if self._sinks is None:
            return scores.softmax(-1).to(products.dtype)
        sinks = self._sinks.view(kv_heads, group, 1, 1).expand(rows, kv_heads, group, queries, 1)
        return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :keys].to(products.dtype)


def featured_causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, terms: ScoreTerms
) -> torch.Tensor:
    """Compute `attention.causal_attention` for a layer that is not plain, with the same shapes.

    A tile of queries is multiplied only with the keys within its windows.
    """
    heads, tokens, key_dim = query.shape
    kv_heads, context, _ = key.shape
    group = heads // kv_heads
    grouped = query.reshape(kv_heads, group, tokens, key_dim)
    output = query.new_empty(tokens, kv_heads, group, value.shape[-1])
    positions = torch.arange(context, device=query.device)
    for start in range(0, tokens, _TILE_TOKENS):
        end = min(tokens, start + _TILE_TOKENS)
        first_query, seen = context - tokens + start, context - tokens + end
        oldest = 0 if terms.layer.window is None else max(0, first_query - terms.layer.window + 1)
        keys, values = key[:, oldest:seen], value[:, oldest:seen]
        rows = grouped[:, :, start:end].reshape(kv_heads, -1, key_dim)
        products = torch.bmm(rows, keys.transpose(1, 2)).view(1, kv_heads, group, end - start, -1)
        distance = positions[first_query:seen, None] - positions[oldest:seen]
        weights = terms.weights(products, distance[None]).view(kv_heads, -1, seen - oldest)
        attended = torch.bmm(weights, values)
        output[start:end] = attended.view(kv_heads, group, end - start, -1).permute(2, 0, 1, 3)
    return output.view(tokens, heads, -1)


def _by_head(numbers: tuple[float, ...] | None, device: torch.device) -> torch.Tensor | None:
    return None if numbers is None else torch.tensor(numbers, dtype=torch.float32, device=device)


MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class MaskProbe:
    """Builds the masks of one forward over a short sequence and maps each mask to its mask function."""

    def __init__(self, context_length: int) -> None:
        self._context_length = context_length
        self._built: list[tuple[torch.Tensor, MaskFunction | None]] = []

    def window(self, attention_mask: torch.Tensor | None) -> int | None:
        """Return the sliding window of a mask that a layer received; `None`: full causal attention.

        Raises:
            UnsupportedModelError: this probe did not build the mask, or it is neither full nor a window.
        """
        if attention_mask is None:
            return None
        for mask, function in self._built:
            if mask.untyped_storage().data_ptr() == attention_mask.untyped_storage().data_ptr():
                if function is None:
                    raise UnsupportedModelError(
                        "the model adds a pattern of its own to its attention mask, which is not supported"
                    )
                return seen_window(function, self._context_length, mask.device)
        raise UnsupportedModelError(
            "the model builds an attention mask of its own (ALiBi, for one), which is not supported"
        )

    @contextmanager
    def installed(self, model: PreTrainedModel) -> Iterator[None]:
        """Make `model` build its masks here; its attention calls stay unchanged."""
        AttentionMaskInterface.register(PROBE_NAME, self._build)
        model.config._attn_implementation = PROBE_NAME
        try:
            yield
        finally:
            model.config._attn_implementation = ATTENTION_NAME

    def _build(
        self,
        *,
        q_length: int,
        kv_length: int,
        mask_function: MaskFunction,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        use_vmap: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """Return a mask `[1, 1, q_length, kv_length]` that hides nothing; transformers defines the signature."""
        mask = torch.zeros(1, 1, q_length, kv_length, dtype=dtype, device=device)
        # transformers sets use_vmap where a model combined the function with its own, which may do anything
        self._built.append((mask, None if use_vmap else mask_function))
        return mask


def seen_window(mask_function: MaskFunction, context_length: int, device: torch.device | str = "cpu") -> int | None:
    """Return the sliding window that `mask_function` computes, a query's own key included; `None`: full causal attention.

    Raises:
        UnsupportedModelError: the function computes neither.
    """
    first = torch.zeros(1, 1, dtype=torch.int64, device=device)
    keys = torch.arange(context_length, device=device)[None]
    queries = keys[:, -2:].transpose(0, 1)
    seen = mask_function(first, first, queries, keys).expand(len(queries), context_length)
    distance = queries - keys
    window = int(seen[-1].sum())
    if torch.equal(seen, distance >= 0):
        return None
    if window > 0 and torch.equal(seen, (distance >= 0) & (distance < window)):
        return window
    raise UnsupportedModelError(
        "a layer sees neither all earlier positions nor a sliding window of them, which is not supported"
    )
