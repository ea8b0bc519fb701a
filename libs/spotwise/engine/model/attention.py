"""Attention over flat batches and a paged KV cache, in torch.

All rows of an iteration are one flat sequence `[1, sum L]`; only attention separates them (selective batching: Orca, Yu et
al., OSDI 2022, section 4.1). An `AttentionPlan` holds what all layers share, a `LayerAttention` the parameters of one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from spotwise.engine.kv.cache import KvPlaces, PagedKvCache
from spotwise.engine.model.attention_interface import AttentionCall, LayerAttention, PlannedAttention
from spotwise.engine.model.decode_inputs import Bucket, DecodeInputs, DecodeTables
from spotwise.engine.model.score_terms import ScoreTerms, featured_causal_attention

# Queries of a tile on a CPU: few enough for its scores to stay in the cache.
_TILE_TOKENS = 64
# Padded positions over all rows of a recorded decode: with 8 heads of 128 in bfloat16, 256 MiB of KV in a layer.
_MAX_PADDED_POSITIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows (one new token each) of similar context length.

    Attributes:
        start: first of them in the flat batch.
        end: one past the last.
        gather_index: `[rows * kv_heads * blocks]` into the cache's `[kv_heads * blocks_per_head]` blocks of a layer.
        bias: `[rows * kv_heads, 1, blocks * block_size]`: 0 where a position exists, else -inf.
        positions: `[rows]`: of the new tokens.
    """

    start: int
    end: int
    gather_index: torch.Tensor
    bias: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """A prefill row (several new tokens).

    Attributes:
        start: first token in the flat batch.
        end: one past the last.
        context_length: positions of the context, the new ones included.
        gather_index: `[kv_heads * blocks]` of the whole context; `None` when all of it is new.
    """

    start: int
    end: int
    context_length: int
    gather_index: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Row layout that all layers of one iteration share.

    Attributes:
        places: where the new keys and values are written.
        decode_groups: the decode rows.
        prefill_spans: all other rows.
    """

    places: KvPlaces
    decode_groups: tuple[DecodeGroup, ...]
    prefill_spans: tuple[PrefillSpan, ...]


class PagedAttention(PlannedAttention[AttentionPlan]):
    """Torch attention over one paged cache, an `AttentionContext` whose decodes can be recorded (`GraphedAttention`).

    Attributes:
        max_padded_positions: limit of positions that a recorded decode gathers in each layer.
    """

    max_padded_positions: int | None = _MAX_PADDED_POSITIONS

    def __init__(self, cache: PagedKvCache, layers: Sequence[LayerAttention]) -> None:
        super().__init__()
        self._terms = [ScoreTerms(layer, cache.device) for layer in layers]
        self._cache = cache
        self._kv_heads = cache.kv_heads

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the new KV of this layer, then attend."""
        plan, layer = self.current_plan, call.layer
        terms = self._terms[layer]
        query, new_keys, new_values = call.query, call.key[0], call.value[0]
        self._cache.write(layer, plan.places, new_keys, new_values)

        output = query.new_empty(query.shape[2], query.shape[1], new_values.shape[-1])
        by_token = query[0].transpose(0, 1)
        for group in plan.decode_groups:
            output[group.start : group.end] = self._decode(layer, by_token[group.start : group.end], group, terms)
        for span in plan.prefill_spans:
            keys, values = new_keys[:, span.start : span.end], new_values[:, span.start : span.end]
            if span.gather_index is not None:
                keys, values = self._gather(layer, span.gather_index, 1)
                keys, values = keys[:, : span.context_length], values[:, : span.context_length]
            output[span.start : span.end] = causal_attention(query[0, :, span.start : span.end], keys, values, terms)
        return output.unsqueeze(0)

    def prepare_decodes(self, bucket: Bucket, rows: DecodeTables) -> None:
        """Do nothing, since `decode_plan` needs only the inputs."""

    def decode_plan(self, inputs: DecodeInputs) -> AttentionPlan:
        """Return the plan of a recorded decode: all rows form one group, padded to the bucket's blocks."""
        cache, tables = self._cache, inputs.tables
        rows, blocks = tables.shape
        heads = torch.arange(self._kv_heads, device=tables.device) * cache.blocks_per_head
        gather_index = (tables[:, None, :] + heads[:, None]).reshape(-1)
        exists = torch.arange(blocks * cache.block_size, device=tables.device) <= inputs.positions[:, None]
        bias = torch.zeros(exists.shape, dtype=cache.dtype, device=tables.device).masked_fill(~exists, -torch.inf)
        bias = bias[:, None].expand(-1, self._kv_heads, -1).reshape(rows * self._kv_heads, 1, -1)
        group = DecodeGroup(0, rows, gather_index, bias, inputs.positions)
        return AttentionPlan(inputs.places, (group,), ())

    def _gather(self, layer: int, index: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys `[rows * kv_heads, positions, key_dim]` and values, contiguous."""
        keys, values = self._cache.gather(layer, index)
        return keys.view(rows * self._kv_heads, -1, keys.shape[-1]), values.view(
            rows * self._kv_heads, -1, values.shape[-1]
        )

    def _decode(self, layer: int, queries: torch.Tensor, group: DecodeGroup, terms: ScoreTerms) -> torch.Tensor:
        """Return `[rows, heads, value_dim]` for queries `[rows, heads, key_dim]`.

        Uses plain matrix products: with one query per head they take a third of SDPA's time on a CPU.
        """
        rows, heads, _ = queries.shape
        keys, values = self._gather(layer, group.gather_index, rows)
        grouped = queries.reshape(rows * self._kv_heads, heads // self._kv_heads, -1)
        if terms.layer.is_plain_within(keys.shape[1]):
            scores = torch.baddbmm(group.bias, grouped, keys.transpose(1, 2), alpha=terms.layer.scaling)
            weights = scores.softmax(-1)
        else:
            products = torch.bmm(grouped, keys.transpose(1, 2)).view(rows, self._kv_heads, -1, 1, keys.shape[1])
            distance = group.positions[:, None, None] - torch.arange(keys.shape[1], device=keys.device)
            weights = terms.weights(products, distance).view(rows * self._kv_heads, -1, keys.shape[1])
        return torch.bmm(weights, values).view(rows, heads, -1)


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, terms: ScoreTerms) -> torch.Tensor:
    """Compute causal attention of the last `tokens` positions of one sequence over its context.

    Args:
        query: `[heads, tokens, key_dim]`.
        key: `[kv_heads, context, key_dim]`, `context >= tokens`.
        value: `[kv_heads, context, value_dim]`.
        terms: parameters of the layer.

    Returns:
        `[tokens, heads, value_dim]`.
    """
    scale = terms.layer.scaling
    if not terms.layer.is_plain_within(key.shape[1]):
        return featured_causal_attention(query, key, value, terms)
    if query.device.type == "cpu":
        return _tiled_causal_attention(query, key, value, scale)
    heads, tokens, _ = query.shape
    kv_heads, context, _ = key.shape
    group = heads // kv_heads
    attended = scaled_dot_product_attention(
        query.reshape(kv_heads, group, tokens, -1),
        # a stride of zero shares a KV head among its query heads
        key.unsqueeze(1).expand(kv_heads, group, context, -1),
        value.unsqueeze(1).expand(kv_heads, group, context, -1),
        attn_mask=None if tokens == context else causal_lower_right(tokens, context),
        is_causal=tokens == context,
        scale=scale,
    )
    return attended.reshape(heads, tokens, -1).transpose(0, 1)


def _tiled_causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute `causal_attention` by matrix products of query tiles with their visible keys.

    On a CPU it takes about 40 % of SDPA's time in bfloat16 and 80 % in float32: SDPA multiplies in float32 there, while the
    query heads of a tile share one product here.
    """
    heads, tokens, key_dim = query.shape
    kv_heads, context, _ = key.shape
    grouped = query.reshape(kv_heads, heads // kv_heads, tokens, key_dim)
    keys, values = key.contiguous().transpose(1, 2), value.contiguous()
    output = query.new_empty(tokens, kv_heads, heads // kv_heads, value.shape[-1])
    later = query.new_full((_TILE_TOKENS, _TILE_TOKENS), -torch.inf).triu_(1)
    unused = query.new_zeros(1, 1, 1)
    for start in range(0, tokens, _TILE_TOKENS):
        end = min(tokens, start + _TILE_TOKENS)
        size, seen = end - start, context - tokens + end
        rows = grouped[:, :, start:end].reshape(kv_heads, -1, key_dim)
        scores = torch.baddbmm(unused, rows, keys[:, :, :seen], beta=0, alpha=scale)
        scores.view(kv_heads, -1, size, seen)[..., seen - size :] += later[:size, :size]
        attended = torch.bmm(scores.softmax(-1), values[:, :seen])
        output[start:end] = attended.view(kv_heads, -1, size, values.shape[-1]).permute(2, 0, 1, 3)
    return output.view(tokens, heads, -1)
