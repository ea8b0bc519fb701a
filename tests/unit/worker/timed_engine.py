"""An engine that computes nothing and whose iterations advance its clock by a cost model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spotwise.core.costs.batching import Batch
from spotwise.core.costs.cost_model import BatchShape, IterationCost
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken


class TimedEngine:
    """A `WorkerEngine` and its clock; it refuses rows that an engine would refuse.

    Attributes:
        now_s: its clock.
        batches: that ran, in order.
        written: blocks that a prompt was computed in.
        first_run_s: what the first iteration of each shape takes beside its cost.
        most_tokens: of an iteration that it has memory for.
    """

    num_layers = 2
    kv_bytes_per_token = 4
    computes_with = "a clock"

    def __init__(self, cost: IterationCost, num_blocks: int = 512, block_size: int = 16) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.now_s = 100.0
        self.batches: list[Batch] = []
        self.written: set[int] = set()
        self.first_run_s = 0.0
        self.most_tokens = 1 << 30
        self._cost = cost
        self._lengths: dict[str, int] = {}
        self._sizes_seen: set[tuple[int, int]] = set()

    def clock(self) -> float:
        return self.now_s

    @property
    def num_sequences(self) -> int:
        return len(self._lengths)

    async def prepare(self, record: RequestRecord) -> None:
        """Nothing is needed."""

    async def add_sequence(self, record: RequestRecord, prepared: None = None) -> None:
        assert record.sequence_id not in self._lengths
        assert record.prompt_token_ids
        self._lengths[record.sequence_id] = len(record.prompt_token_ids)

    def append_token(self, sequence_id: str, token_id: int) -> None:
        self._lengths[sequence_id] += 1

    def drop_sequence(self, sequence_id: str) -> None:
        self._lengths.pop(sequence_id, None)

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: Callable[[int], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        if batch.num_tokens > self.most_tokens:
            loop.call_soon(on_failed, MemoryError("too many tokens"))
            return
        for row in batch.rows:
            end = row.first_position + row.num_tokens
            assert end == self._lengths[row.sequence_id], "each row computes all that is left"
            assert len(row.block_ids) * self.block_size >= end
            assert all(0 <= block < self.num_blocks for block in row.block_ids)
            self._lengths[row.sequence_id] += 1
            if not row.is_decode:
                self.written.update(row.block_ids[row.first_position // self.block_size :])
        self.batches.append(batch)
        shape = BatchShape.of(batch)
        size = (shape.prompt_tokens, shape.decodes)
        self.now_s += self._cost.iteration_s(shape) + (0.0 if size in self._sizes_seen else self.first_run_s)
        self._sizes_seen.add(size)
        loop.call_soon(on_finished, ())
