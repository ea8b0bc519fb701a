"""Attention weights from query-key products, in torch: the reference for all that `LayerAttention` describes.

Distances are query position less key position; a negative one is a key that the query does not see.
"""

from __future__ import annotations

import torch

from spotwise.engine.model.layer_attention import LayerAttention

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
