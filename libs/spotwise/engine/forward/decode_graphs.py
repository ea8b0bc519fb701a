"""Recorded decodes: a computation as a CUDA graph, for each size of a batch.

All recordings share one stream and one memory pool; their outputs are copied out of it. Capture errors are "thread_local",
since other threads copy KV and allocate meanwhile.

A batch of decodes is padded to a power of two of rows and, where attention reads padded block tables, of blocks. Padding rows
read and write the cache's scratch block. Prefills, mixed batches and batches above the bounds are not recorded.
Source: CUDA graphs for bucketed decodes are common in servers (vLLM, SGLang); the padding is this engine's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from spotwise.engine.forward.iteration import SequenceRow
from spotwise.engine.kv.cache import KvPlaces, PagedKvCache
from spotwise.engine.model.decode_inputs import Bucket, DecodeInputs, DecodeTables, GraphedAttention

_log = structlog.get_logger(__name__)


class CudaCapture:
    """Records CUDA graphs on one device.

    Args:
        device: a CUDA device with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run once to warm up, record, and return a function that replays on the caller's current stream.

        Raises:
            RuntimeError: an operation cannot be recorded.
        """
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                run()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                run()
        return self._replayed(graph)

    def _replayed(self, graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
        def replay() -> None:
            with torch.cuda.device(self._device):
                graph.replay()

        return replay


#: Rows of the largest bucket; larger batches run without a recording.
MAX_ROWS = 64
# Block tables are padded to a power of two of at least this many blocks.
_FEWEST_BLOCKS = 8
# Columns of the input buffer before the block table.
_TOKEN, _POSITION, _BLOCK, _TABLE = 0, 1, 2, 3
_READING = (torch.Tensor.tolist, torch.Tensor.numpy)
_INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)

#: Runs a function on fixed tensors at least once and returns a function that repeats it; may raise RuntimeError. The caller
#: keeps the first as long as the second: a recording holds addresses, not tensors.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


class DataDependentError(RuntimeError):
    """An operation of the model depends on tensor values, so that a replay would differ."""


@contextlib.contextmanager
def operations_do_not_depend() -> Iterator[None]:
    """Make operations raise that read a value back or whose output size depends on values.

    A recording would freeze such a value or size, or fail; this finds it before anything is recorded.

    Raises:
        DataDependentError: from inside the block, naming the operation.
    """
    with _ValuesAreNotRead(), _SizesAreFixed():  # type: ignore[no-untyped-call]
        yield


class _SizesAreFixed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Checks the operations that reach a device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run `func`, or raise."""
        kwargs = kwargs or {}
        with self:  # a composite operation is checked by its parts
            composed = func.decompose(*args, **kwargs)
        if composed is not NotImplemented:
            return composed
        if func.overloadpacket in _INDEXING:  # sizes follow from values where an index is a mask
            depends = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        else:
            depends = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
        if depends:
            raise DataDependentError(f"{func} depends on values")
        return func(*args, **kwargs)


class _ValuesAreNotRead(TorchFunctionMode):
    """Checks Python calls on tensors, since reading back a CPU tensor is not a dispatched operation."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, or raise."""
        if func in _READING:
            raise DataDependentError(f"{func.__name__} depends on values")
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True)
class _Graph:
    staging: torch.Tensor
    buffer: torch.Tensor
    recorded: Callable[[], None]
    replay: Callable[[], None]


class DecodeGraphs:
    """Records and replays the decode iterations of one model."""

    def __init__(
        self,
        cache: PagedKvCache,
        attention: GraphedAttention,
        forward: Callable[[torch.Tensor, torch.Tensor, Any, torch.Tensor], torch.Tensor],
        capture: Capture,
        context_length: int,
    ) -> None:
        """Set up without recording; a bucket is recorded when first used.

        Args:
            cache: with a scratch block.
            attention: the model's.
            forward: maps token ids `[1, rows]`, positions `[1, rows]`, a plan and the rows whose logits to return to
                logits `[rows, vocab_size]`.
            capture: records a computation.
            context_length: positions of a sequence at most.

        Raises:
            ValueError: the cache has no scratch block.
        """
        if cache.scratch_block is None:
            raise ValueError("rows of padding need a cache with a scratch block")
        self._scratch_block = cache.scratch_block
        self._cache = cache
        self._attention = attention
        self._forward = forward
        self._capture: Capture | None = capture
        self._context_blocks = -(-context_length // cache.block_size)
        self._graphs: dict[Bucket, _Graph] = {}
        self._logits: torch.Tensor | None = None

    @property
    def recorded(self) -> int:
        """Buckets recorded so far."""
        return len(self._graphs)

    @property
    def off(self) -> bool:
        """Whether recording was given up because the model cannot be recorded."""
        return self._capture is None

    def run(self, rows: Rows[SequenceRow]) -> torch.Tensor | None:
        """Compute rows by a recording.

        Returns:
            Logits `[rows, vocab_size]` in row order, which the next call overwrites; `None` where the rows must run eagerly:
            one is no decode, is pooled or has an adapter, they exceed the buckets, or the model cannot be recorded.

        Raises:
            ValueError: a block table names a block that the cache does not have.
        """
        if not all(row.is_decode and sequence.pooling is None and sequence.adapter is None for row, sequence in rows):
            return None
        bucket = self._bucket(rows)
        if bucket is None or self._capture is None:
            return None
        packed, tables = self._packed(rows, bucket)
        self._attention.prepare_decodes(bucket, tables)
        graph = self._graphs.get(bucket)
        if graph is None:
            graph = self._record(bucket, packed, self._capture)
            if graph is None:
                return None
        # The staging buffer is free: the logits of the iteration before have been read, so its copy is complete.
        graph.staging.numpy()[:] = packed
        graph.buffer.copy_(graph.staging, non_blocking=True)
        graph.replay()
        assert self._logits is not None
        return self._logits[: len(rows)]

    def _bucket(self, rows: Rows[SequenceRow]) -> Bucket | None:
        padded = _power_of_two(len(rows))
        if padded > MAX_ROWS:
            return None
        limit = self._attention.max_padded_positions
        if limit is None:
            return Bucket(padded, 0)
        longest = max(row.first_position for row, _ in rows) // self._cache.block_size + 1
        blocks = min(_power_of_two(max(longest, _FEWEST_BLOCKS)), max(longest, self._context_blocks))
        return Bucket(padded, blocks) if padded * blocks * self._cache.block_size <= limit else None

    def _packed(self, rows: Rows[SequenceRow], bucket: Bucket) -> tuple[NDArray[np.int64], DecodeTables]:
        """Return the content of the input buffer, and the same rows as the host-side planner reads them."""
        packed = np.zeros((bucket.rows, _TABLE + bucket.blocks), dtype=np.int64)
        packed[:, _BLOCK:] = self._scratch_block
        tables = [np.array([self._scratch_block])] * bucket.rows
        for index, (row, sequence) in enumerate(rows):
            position = row.first_position
            last = position // self._cache.block_size
            table = sequence.block_table(row.block_ids)[: last + 1]
            if table.min() < 0 or table.max() >= self._cache.num_blocks:
                raise ValueError(f"a block table names a block outside 0..{self._cache.num_blocks - 1}")
            packed[index, :_TABLE] = sequence.tokens[position], position, table[last]
            if bucket.blocks:
                packed[index, _TABLE : _TABLE + last + 1] = table
            tables[index] = table
        return packed, DecodeTables(packed[:, _POSITION].copy(), tables)

    def _record(self, bucket: Bucket, packed: NDArray[np.int64], capture: Capture) -> _Graph | None:
        device = self._cache.device
        staging = torch.from_numpy(packed.copy())
        if device.type == "cuda":
            staging = staging.pin_memory()
        buffer = staging.to(device, copy=True)
        keep = torch.arange(bucket.rows, device=device)

        def compute() -> torch.Tensor:
            inputs = self._inputs(bucket, buffer)
            plan = self._attention.decode_plan(inputs)
            return self._forward(inputs.token_ids.unsqueeze(0), inputs.positions.unsqueeze(0), plan, keep)

        def compute_into_place() -> None:
            into.copy_(compute())

        try:
            with operations_do_not_depend():
                first = compute()
            if self._logits is None:
                self._logits = first.new_empty(MAX_ROWS, first.shape[-1])
            into = self._logits[: bucket.rows]
            replay = capture(compute_into_place)
        except RuntimeError as error:
            _log.warning("decode_graphs_off", rows=bucket.rows, blocks=bucket.blocks, reason=str(error))
            self._capture = None
            self._graphs.clear()
            return None
        _log.info("decode_graph_recorded", rows=bucket.rows, blocks=bucket.blocks)
        graph = self._graphs[bucket] = _Graph(staging, buffer, compute_into_place, replay)
        return graph

    def _inputs(self, bucket: Bucket, buffer: torch.Tensor) -> DecodeInputs:
        positions = buffer[:, _POSITION].contiguous()
        places = KvPlaces(buffer[:, _BLOCK].contiguous(), positions % self._cache.block_size)
        return DecodeInputs(bucket, buffer[:, _TOKEN].contiguous(), positions, places, buffer[:, _TABLE:])


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
