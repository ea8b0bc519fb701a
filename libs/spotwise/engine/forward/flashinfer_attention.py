"""Attention by FlashInfer's kernels (Ye et al., MLSys 2025) over the paged cache of a GPU.

FlashInfer reads the cache through a view in its "HND" order `[block, kv_head, position, dim]`. All rows of an iteration are one
call a layer, planned on the host before the forward; layers that attend alike share a plan. FlashInfer sends plans from one
pinned buffer: the device must finish an iteration before the next plan, which the engine guarantees.

From FlashInfer's documentation and sources: `window_left` excludes the query's own position; `logits_soft_cap` applies to
scaled scores; plans take int32 `indptr`s on the host; the "fa2" backend follows any strides but the last dimension's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.engine.forward.decode_graphs import MAX_ROWS
from spotwise.engine.forward.iteration import FlatBatch, SequenceRow
from spotwise.engine.kv.cache import KvOrder, KvPlaces, PagedKvCache
from spotwise.engine.model.attention_interface import AttentionCall, LayerAttention, PlannedAttention
from spotwise.engine.model.decode_inputs import Bucket, DecodeInputs, DecodeTables

# Workspace for partial softmaxes; FlashInfer recommends 128 MiB, but many heads and recorded decodes need more.
_WORKSPACE_BYTES = 256 << 20
_HEAD_DIMS = (64, 128, 256)
_DTYPES = (torch.bfloat16, torch.float16)
# Each kind of layer has its own wrappers, which take 8 MiB on the device and 8 MiB on the host.
_MOST_KINDS = 4
_BACKEND = "fa2"
# FlashInfer's kernels keep strides in 32 bits.
_LARGEST_STRIDE = 1 << 32


@dataclass(frozen=True, slots=True)
class _Kind:
    """Attention parameters shared by layers that attend alike; they share a plan."""

    scaling: float
    window: int | None
    softcap: float | None

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of a plan."""
        window_left = -1 if self.window is None else self.window - 1
        return {"sm_scale": self.scaling, "window_left": window_left, "logits_soft_cap": self.softcap or 0.0}


@dataclass(frozen=True, slots=True)
class FlashInferPlan:
    """FlashInfer's plan of one iteration's rows.

    Attributes:
        places: where the new keys and values are written.
        wrappers: planned, by kind of layer.
    """

    places: KvPlaces
    wrappers: Mapping[_Kind, Any]


def refusal(cache: PagedKvCache, layers: Sequence[LayerAttention], query_heads: int | None) -> str | None:
    """Return why FlashInfer cannot compute this model's attention, or `None` if it can."""
    geometry = cache.geometry
    if cache.dtype not in _DTYPES:
        return f"it does not compute in {str(cache.dtype).removeprefix('torch.')}"
    if geometry.key_dim != geometry.value_dim or geometry.key_dim not in _HEAD_DIMS:
        return f"heads of {geometry.key_dim}+{geometry.value_dim} numbers"
    if cache.keys.stride(1) >= _LARGEST_STRIDE:
        return "a cache in which one head's blocks are as far from the next's as 32 bits do not count"
    if query_heads is None or query_heads % cache.kv_heads:
        return "query heads that differ from layer to layer, or are no multiple of the KV heads"
    if any(layer.alibi_slopes is not None or layer.sinks is not None for layer in layers):
        return "ALiBi, or sinks"
    if len({_kind(layer) for layer in layers}) > _MOST_KINDS:
        return f"more than {_MOST_KINDS} ways of attending in one model"
    return None


class FlashInferLayout:
    """Lays rows out in batch order, and plans their attention."""

    def __init__(self, cache: PagedKvCache, attention: FlashInferAttention) -> None:
        self._cache = cache
        self._attention = attention

    def lay_out(self, rows: Sequence[SequenceRow], *, last_only: bool) -> FlatBatch[FlashInferPlan]:
        """Return the flat input of `rows`, whose tokens must be known; ignores `last_only`.

        Raises:
            ValueError: a block table names a block that the cache does not have.
        """
        size, device = self._cache.block_size, self._cache.device
        token_ids, positions, places, tables, lengths = [], [], [], [], []
        for row, sequence in rows:
            end = row.first_position + row.num_tokens
            at = np.arange(row.first_position, end, dtype=np.int64)
            table = sequence.block_table(row.block_ids)[: -(-end // size)]
            token_ids.append(sequence.tokens[row.first_position : end])
            positions.append(at)
            places.append(table[at // size])
            tables.append(table)
            lengths.append(row.num_tokens)
        named = np.concatenate(tables)
        if named.min() < 0 or named.max() >= self._cache.num_blocks:
            raise ValueError(f"a block table names a block outside 0..{self._cache.num_blocks - 1}")
        flat_positions = np.concatenate(positions)
        ends = np.cumsum(lengths)
        last_positions = np.array([at[-1] for at in positions], dtype=np.int64)
        wrappers = self._attention.plan_rows(lengths, DecodeTables(last_positions, tables))
        blocks = torch.from_numpy(np.concatenate(places)).to(device)
        position_ids = torch.from_numpy(flat_positions).to(device)
        return FlatBatch(
            torch.from_numpy(np.concatenate(token_ids)).to(device).unsqueeze(0),
            position_ids.unsqueeze(0),
            FlashInferPlan(KvPlaces(blocks, position_ids % size), wrappers),
            tuple((ends - 1).tolist()),
        )


class FlashInferAttention(PlannedAttention[FlashInferPlan]):
    """The serving context of a model on a GPU; see `AttentionContext` and `GraphedAttention`.

    Args:
        library: the module `flashinfer`.
        cache: in plain order.
        layers: all accepted by `refusal`.
        query_heads: query heads of each layer.
        context_length: positions of a sequence at most.
    """

    max_padded_positions: int | None = None

    def __init__(
        self,
        library: Any,
        cache: PagedKvCache,
        layers: Sequence[LayerAttention],
        query_heads: int,
        context_length: int,
    ) -> None:
        if cache.order is not KvOrder.PLAIN:
            raise ValueError(f"FlashInfer reads caches in plain order, this one is {cache.order}")
        super().__init__()
        self._library = library
        self._cache = cache
        self._layers = [_kind(layer) for layer in layers]
        self._kinds = tuple(dict.fromkeys(self._layers))
        self._query_heads = query_heads
        self._dtype = cache.dtype
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=cache.device)
        blocks = -(-context_length // cache.block_size)
        self._recorded_indices = torch.zeros(MAX_ROWS * blocks, dtype=torch.int32, device=cache.device)
        self._eager = {kind: self._prefill_wrapper() for kind in self._kinds}
        self._recorded: dict[Bucket, dict[_Kind, Any]] = {}

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the new KV of this layer, then attend."""
        plan, layer = self.current_plan, call.layer
        self._cache.write(layer, plan.places, call.key[0], call.value[0])
        by_token = call.query[0].transpose(0, 1).to(self._dtype).contiguous()
        pages = self._cache.layer_keys(layer).transpose(0, 1), self._cache.layer_values(layer).transpose(0, 1)
        attended: torch.Tensor = plan.wrappers[self._layers[layer]].run(by_token, pages)
        return attended.to(call.query.dtype).unsqueeze(0)

    def plan_rows(self, num_tokens: Sequence[int], rows: DecodeTables) -> Mapping[_Kind, Any]:
        """Plan rows of any number of tokens whose last tokens are at `rows.positions`; return the wrappers by kind."""
        for kind in self._kinds:
            self._eager[kind].plan(
                _indptr(num_tokens),
                *self._pages(rows),
                self._query_heads,
                self._cache.kv_heads,
                self._cache.geometry.key_dim,
                self._cache.block_size,
                causal=True,
                q_data_type=self._dtype,
                kv_data_type=self._dtype,
                **kind.options,
            )
        return self._eager

    def prepare_decodes(self, bucket: Bucket, rows: DecodeTables) -> None:
        """Plan the rows of a recorded decode."""
        if bucket not in self._recorded:
            self._recorded[bucket] = {kind: self._decode_wrapper(bucket.rows) for kind in self._kinds}
        for kind, wrapper in self._recorded[bucket].items():
            wrapper.plan(
                *self._pages(rows),
                self._query_heads,
                self._cache.kv_heads,
                self._cache.geometry.key_dim,
                self._cache.block_size,
                q_data_type=self._dtype,
                kv_data_type=self._dtype,
                **kind.options,
            )

    def decode_plan(self, inputs: DecodeInputs) -> FlashInferPlan:
        """Return the plan of a recorded decode, whose wrappers read buffers that every `prepare_decodes` refills."""
        return FlashInferPlan(inputs.places, self._recorded[inputs.bucket])

    def _pages(self, rows: DecodeTables) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return FlashInfer's page-table arrays on the host: `indptr`, indices and last-page lengths."""
        last_length = (rows.positions % self._cache.block_size + 1).astype(np.int32)
        indices = np.concatenate(rows.tables).astype(np.int32)
        return (
            _indptr([len(table) for table in rows.tables]),
            torch.from_numpy(indices),
            torch.from_numpy(last_length),
        )

    def _prefill_wrapper(self) -> Any:
        return self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "HND", backend=_BACKEND)

    def _decode_wrapper(self, rows: int) -> Any:
        def buffer(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=self._cache.device)

        # The tensor-core kernels support any number of query heads per KV head.
        return self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            "HND",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=buffer(rows + 1),
            paged_kv_indices_buffer=self._recorded_indices,
            paged_kv_last_page_len_buffer=buffer(rows),
            backend=_BACKEND,
        )


def _kind(layer: LayerAttention) -> _Kind:
    return _Kind(layer.scaling, layer.window, layer.softcap)


def _indptr(lengths: Sequence[int]) -> torch.Tensor:
    starts: NDArray[np.int32] = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    return torch.from_numpy(starts)
