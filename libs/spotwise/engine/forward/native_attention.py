"""Attention by the native kernel over the paged cache: one call a layer for all rows, prefills and decodes alike."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.core.costs.batching import BatchRow
from spotwise.engine.forward.iteration import FlatBatch, SequenceRow
from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.kv.cache import KvOrder, PagedKvCache
from spotwise.engine.model.attention_interface import AttentionCall, LayerAttention, PlannedAttention
from spotwise.engine.native.library import FORMATS, LANES, AttentionFields, Kernels, RowFields
from spotwise.engine.native.low_rank import FusedRows


@dataclass(frozen=True, slots=True)
class NativePlan:
    """The rows of one iteration, as the native kernels read them.

    Attributes:
        fields: passed to the kernels.
        arrays: kept alive, since `fields` holds their addresses.
        last_only: only each row's last token of the last layer's output is read.
        adapters: the rows that have adapters; `None`: no row has one.
    """

    fields: RowFields
    arrays: tuple[NDArray[Any], ...]
    last_only: bool
    adapters: FusedRows | None

    @property
    def address(self) -> int:
        """Address of the fields."""
        return ctypes.addressof(self.fields)


def can_attend(cache: PagedKvCache) -> bool:
    """Whether the kernel can read this cache."""
    return cache.order is KvOrder.TILED and cache.geometry.value_dim % LANES == 0


class NativeLayout:
    """Lays rows out for the kernel: those without an adapter first, then by adapter, in batch order among themselves."""

    def __init__(self, cache: PagedKvCache) -> None:
        self._num_blocks = cache.num_blocks
        self._block_size = cache.block_size

    def lay_out(self, rows: Sequence[SequenceRow], *, last_only: bool) -> FlatBatch[NativePlan]:
        """Return the flat input of `rows`, whose tokens must be known.

        Raises:
            ValueError: a block table names a block that the cache does not have.
        """
        count, order = len(rows), None
        if any(sequence.adapter is not None for _, sequence in rows):
            numbers = [0 if sequence.adapter is None else sequence.adapter.number for _, sequence in rows]
            order = sorted(range(count), key=numbers.__getitem__)
            rows = [rows[index] for index in order]
        first_position = np.array([row.first_position for row, _ in rows], np.int32)
        tables = [self._table(row, sequence) for row, sequence in rows]
        table_start = np.zeros(count, np.int64)
        if all(row.num_tokens == 1 for row, _ in rows):  # in decodes each step of this shows
            first_token = row_of_token = np.arange(count + 1, dtype=np.int32)
            positions = first_position.astype(np.int64)
            token_ids = np.array([sequence.tokens[row.first_position] for row, sequence in rows])
        else:
            lengths = [row.num_tokens for row, _ in rows]
            first_token = np.zeros(count + 1, np.int32)
            np.cumsum(lengths, out=first_token[1:])
            row_of_token = np.repeat(np.arange(count, dtype=np.int32), lengths)
            positions = np.arange(len(row_of_token)) + (first_position - first_token[:-1])[row_of_token]
            token_ids = np.concatenate(
                [sequence.tokens[row.first_position : row.first_position + row.num_tokens] for row, sequence in rows]
            )
        if count > 1:
            np.cumsum([len(table) for table in tables[:-1]], out=table_start[1:])
        flat_tables = (tables[0] if count == 1 else np.concatenate(tables)).astype(np.int32)
        arrays = (first_token, first_position, table_start, flat_tables, row_of_token)
        fields = RowFields(count, len(token_ids), *(array.ctypes.data for array in arrays))
        adapters = None if order is None else FusedRows([sequence.adapter for _, sequence in rows])
        last_token = (first_token[1:] - 1).tolist()
        if order is not None:
            last_token = [last for _, last in sorted(zip(order, last_token, strict=True))]
        return FlatBatch(
            torch.from_numpy(token_ids).unsqueeze(0),
            torch.from_numpy(positions).unsqueeze(0),
            NativePlan(fields, arrays, last_only, adapters),
            tuple(last_token),
        )

    def _table(self, row: BatchRow, sequence: EngineSequence) -> NDArray[np.int64]:
        """Return a row's block table; raises ValueError where a block that holds a token does not exist. Later entries are not
        checked.
        """
        table = sequence.block_table(row.block_ids)
        if sequence.blocks_below(self._num_blocks) < -(-(row.first_position + row.num_tokens) // self._block_size):
            raise ValueError(f"a block table names a block outside 0..{self._num_blocks - 1}")
        return table


class NativeAttention(PlannedAttention[NativePlan]):
    """The serving context for layers that are not fused: an `AttentionContext` that calls the native kernel."""

    def __init__(self, kernels: Kernels, cache: PagedKvCache, layers: Sequence[LayerAttention]) -> None:
        super().__init__()
        self._attend = kernels.attend
        self._kept: list[torch.Tensor] = []
        self.cache = cache
        self._format = FORMATS[cache.dtype]
        self._layers = layers
        self._fields: dict[tuple[int, int], AttentionFields] = {}

    def layer(self, index: int) -> LayerAttention:
        """Return what the attention of a layer computes."""
        return self._layers[index]

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the new KV of this layer, then attend."""
        plan, layer = self.current_plan, call.layer
        heads = call.query.shape[1]
        fields = self._fields.get((layer, heads))
        if fields is None:
            fields = self._fields[layer, heads] = self._make_fields(layer, heads)
        query, key, value = (_unit_stride(part.to(self.cache.dtype)) for part in (call.query, call.key, call.value))
        output = query.new_empty(1, query.shape[2], heads, value.shape[-1])
        self._attend(
            ctypes.addressof(fields),
            plan.address,
            *_operand(query),
            *_operand(key),
            *_operand(value),
            output.data_ptr(),
        )
        return output

    def _make_fields(self, layer: int, heads: int) -> AttentionFields:
        cache, attention = self.cache, self._layers[layer]
        return AttentionFields(
            format=self._format,
            heads=heads,
            kv_heads=cache.kv_heads,
            key_dim=cache.geometry.key_dim,
            value_dim=cache.geometry.value_dim,
            window=attention.window or 0,
            scale=attention.scaling,
            softcap=attention.softcap or 0.0,
            slopes=self.keep(attention.alibi_slopes),
            sinks=self.keep(attention.sinks),
            keys=cache.layer_keys(layer).data_ptr(),
            values=cache.layer_values(layer).data_ptr(),
            kv_blocks=cache.num_blocks,
        )

    def keep(self, values: tuple[float, ...] | None) -> int | None:
        """Store numbers for the lifetime of this context and return their address for the kernel."""
        if values is None:
            return None
        self._kept.append(torch.tensor(values, dtype=torch.float32))
        return self._kept[-1].data_ptr()


def _unit_stride(part: torch.Tensor) -> torch.Tensor:
    return part if part.stride(-1) == 1 else part.contiguous()


def _operand(part: torch.Tensor) -> tuple[int, int, int]:
    """Return the address, token stride and head stride of `[1, heads, tokens, dim]`."""
    return part.data_ptr(), part.stride(2), part.stride(1)
