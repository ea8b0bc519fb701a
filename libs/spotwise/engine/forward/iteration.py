"""Lays a batch of rows out as one flat model input.

Decode rows come first, grouped by context length so that one long context does not pad the others, then prefill rows.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.core.costs.batching import BatchRow
from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.kv.cache import KvPlaces, PagedKvCache
from spotwise.engine.model.attention import AttentionPlan, DecodeGroup, PrefillSpan
from spotwise.engine.model.attention_interface import Plan

# Decode rows of up to this many blocks are padded together; longer contexts in a group differ by at most a factor of two.
_SMALLEST_GROUP_BLOCKS = 32

SequenceRow = tuple[BatchRow, EngineSequence]


@dataclass(frozen=True, slots=True)
class FlatBatch(Generic[Plan]):
    """Input of one forward.

    Attributes:
        token_ids: `[1, tokens]`.
        position_ids: `[1, tokens]`.
        plan: how attention separates the rows.
        last_token: flat index of each row's last token.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    plan: Plan
    last_token: tuple[int, ...]


class BatchLayout:
    """Lays rows out for one cache."""

    def __init__(self, cache: PagedKvCache) -> None:
        self._block_size = cache.block_size
        self._num_blocks = cache.num_blocks
        self._blocks_per_head = cache.blocks_per_head
        self._num_slots = cache.num_blocks * cache.block_size
        self._heads = np.arange(cache.kv_heads, dtype=np.int64)
        self._dtype = cache.dtype
        self._device = cache.device

    def lay_out(self, rows: Rows[SequenceRow], *, last_only: bool) -> FlatBatch[AttentionPlan]:
        """Return the flat input of `rows`, whose tokens must be known; ignores `last_only`.

        Raises:
            ValueError: a block table names a block that the cache does not have.
        """
        order: list[int] = []
        starts: list[int] = []
        token_ids: list[NDArray[np.int64]] = []
        positions: list[NDArray[np.int64]] = []
        slots: list[NDArray[np.int64]] = []
        groups: list[DecodeGroup] = []
        spans: list[PrefillSpan] = []
        flat = 0
        for members in self._decode_groups(rows):
            at = np.array([rows[i][0].first_position for i in members], dtype=np.int64)
            tables = self._padded_tables([rows[i] for i in members])
            order += members
            starts += range(flat, flat + len(members))
            token_ids.append(np.array([rows[i][1].tokens[rows[i][0].first_position] for i in members], dtype=np.int64))
            positions.append(at)
            slots.append(tables[np.arange(len(members)), at // self._block_size] * self._block_size + self._offset(at))
            groups.append(self._decode_group(flat, tables, at))
            flat += len(members)
        for index, (row, sequence) in enumerate(rows):
            if row.is_decode:
                continue
            end = row.first_position + row.num_tokens
            at = np.arange(row.first_position, end, dtype=np.int64)
            table = sequence.block_table(row.block_ids)
            order.append(index)
            starts.append(flat)
            token_ids.append(sequence.tokens[row.first_position : end])
            positions.append(at)
            slots.append(table[at // self._block_size] * self._block_size + self._offset(at))
            spans.append(self._prefill_span(flat, row, table))
            flat += row.num_tokens
        slot_of = np.concatenate(slots)
        if slot_of.min() < 0 or slot_of.max() >= self._num_slots:
            raise ValueError(f"a block table names a block outside 0..{self._num_blocks - 1}")
        places = KvPlaces(self._tensor(slot_of // self._block_size), self._tensor(slot_of % self._block_size))
        last_token = [0] * len(rows)
        for index, start in zip(order, starts, strict=True):
            last_token[index] = start + rows[index][0].num_tokens - 1
        return FlatBatch(
            self._tensor(np.concatenate(token_ids)).unsqueeze(0),
            self._tensor(np.concatenate(positions)).unsqueeze(0),
            AttentionPlan(places, tuple(groups), tuple(spans)),
            tuple(last_token),
        )

    def _decode_groups(self, rows: Rows[SequenceRow]) -> list[list[int]]:
        """Return the indices of decode rows, grouped by padded size."""
        by_size: dict[int, list[int]] = {}
        for index, (row, _) in enumerate(rows):
            if row.is_decode:
                blocks = max(_SMALLEST_GROUP_BLOCKS, row.first_position // self._block_size + 1)
                by_size.setdefault((blocks - 1).bit_length(), []).append(index)
        return [by_size[size] for size in sorted(by_size)]

    def _padded_tables(self, members: Rows[SequenceRow]) -> NDArray[np.int64]:
        """Return block tables `[rows, longest]`; the padding names block 0, whose bytes are finite, and masked later."""
        needed = [row.first_position // self._block_size + 1 for row, _ in members]
        tables = np.zeros((len(members), max(needed)), dtype=np.int64)
        for target, (row, sequence), blocks in zip(tables, members, needed, strict=True):
            target[:blocks] = sequence.block_table(row.block_ids)[:blocks]
        return tables

    def _decode_group(self, start: int, tables: NDArray[np.int64], positions: NDArray[np.int64]) -> DecodeGroup:
        rows, blocks = tables.shape
        exists = np.arange(blocks * self._block_size) <= positions[:, None]
        bias = np.where(exists, np.float32(0), np.float32(-np.inf)).repeat(len(self._heads), axis=0)
        return DecodeGroup(
            start,
            start + rows,
            self._gather_index(tables),
            self._tensor(bias).to(self._dtype).unsqueeze(1),
            self._tensor(positions),
        )

    def _prefill_span(self, start: int, row: BatchRow, table: NDArray[np.int64]) -> PrefillSpan:
        end, context_length = start + row.num_tokens, row.first_position + row.num_tokens
        if row.first_position == 0:
            return PrefillSpan(start, end, context_length)
        blocks = -(-context_length // self._block_size)
        return PrefillSpan(start, end, context_length, self._gather_index(table[None, :blocks]))

    def _gather_index(self, tables: NDArray[np.int64]) -> torch.Tensor:
        """Return flat indices into a layer's `[kv_heads * blocks_per_head]` blocks, for tables `[rows, blocks]`."""
        if tables.min() < 0 or tables.max() >= self._num_blocks:
            raise ValueError(f"a block table names a block outside 0..{self._num_blocks - 1}")
        return self._tensor((self._heads[None, :, None] * self._blocks_per_head + tables[:, None, :]).reshape(-1))

    def _offset(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return positions % self._block_size

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
