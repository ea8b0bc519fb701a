"""Runs an engine beside the event loop: one thread computes, another one swaps KV. Each executes its calls in order; results
arrive on the event loop. Swaps touch no sequence of the engine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

import structlog

from spotwise.core.costs.batching import Batch
from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.engine.engine import Engine
from spotwise.engine.kv.host_swap import HostSwap
from spotwise.engine.model.attention_interface import LayersWritten
from spotwise.engine.model.kv_size import AutoKvSize, named_memory_errors
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.build import variant_for_this_processor
from spotwise.engine.native.exchange import GroupBrokenError
from spotwise.engine.native.library import load_kernels
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.weight_flow import WeightFlow
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.mesh.process.garbage import give_back_freed_memory
from spotwise.worker.compute_threads import ComputeThreads
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.machine import free_memory_bytes
from spotwise.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)

T = TypeVar("T")


_ANY_CORE = ComputeThreads()


def _on_their_cores(threads: ComputeThreads, load: Callable[[], Engine]) -> Engine:
    """Load an engine in the calling thread, which will run it. The kernels' threads each keep to their core from their start;
    the calling one once all is loaded, since torch's threads inherit its cores and compute meanwhile.
    """
    kernels = load_kernels() if threads.cores else None
    if kernels is not None:
        kernels.own_cores(threads.cores)
    engine = load()
    if kernels is not None and engine.is_native:
        os.sched_setaffinity(0, threads.cores[:1])
    return engine


class EngineThread:
    """A `WorkerEngine`: an engine, and the thread that owns it.

    Args:
        executor: executor of its thread; by default a new one.
        host: host memory for swapped KV, if any.
        threads: as in `load`; the thread that swaps KV has their niceness.
        watch: over its iterations and swaps, where nothing else watches them.
    """

    def __init__(
        self,
        engine: Engine,
        executor: ThreadPoolExecutor | None = None,
        host: HostSwap | None = None,
        threads: ComputeThreads = _ANY_CORE,
        watch: EngineWatch | None = None,
    ) -> None:
        self.engine = engine
        self._watch = watch
        self._executor = executor or _ANY_CORE.executor("engine")
        self._host = host
        self._mover = threads.executor("kv-swaps")
        self._loop = asyncio.get_running_loop()
        #: Seconds in iterations so far.
        self.busy_s = 0.0
        self._last_s = 0.0

    @classmethod
    async def load(
        cls,
        config: EngineConfig,
        threads: ComputeThreads = _ANY_CORE,
        kv_host_bytes: Callable[[int], int] | None = None,
    ) -> Self:
        """Load an engine on the thread that will own it; the event loop keeps running. Raises `ModelError`, `ValueError` as
        `Engine.load`, or where `kv_host_bytes` do not hold one block or cannot be had.

        Args:
            threads: how the threads run that compute.
            kv_host_bytes: host memory for swapped KV beside so many bytes of a cache; 0, or `None`: none.
        """
        executor = threads.executor("engine")

        def load() -> tuple[Engine, HostSwap | None]:
            engine = _on_their_cores(threads, lambda: Engine.load(config))
            give_back_freed_memory()
            if kv_host_bytes is None:
                return engine, None
            cache = engine.kv
            host_bytes = kv_host_bytes(cache.num_blocks * cache.num_layers * cache.layer_block_bytes)
            with named_memory_errors(f"{host_bytes} bytes of swapped KV (SPOTWISE_KV_HOST_BYTES)"):
                return engine, HostSwap.within(cache, host_bytes) if host_bytes else None

        try:
            engine, host = await asyncio.get_running_loop().run_in_executor(executor, load)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(engine, executor, host, threads)

    @classmethod
    async def load_part(
        cls,
        store: WeightStore,
        place: GroupPlace,
        num_blocks: int,
        host_blocks: int,
        threads: ComputeThreads,
        flow: WeightFlow | None = None,
        watch: EngineWatch | None = None,
    ) -> Self:
        """Load a group's part of an engine, as `load`; raises as `Engine.load_part`."""
        executor = threads.executor("engine")

        def load() -> tuple[Engine, HostSwap | None]:
            engine = _on_their_cores(threads, lambda: Engine.load_part(store, place, num_blocks, flow))
            give_back_freed_memory()
            with named_memory_errors(f"{host_blocks} blocks of swapped KV (SPOTWISE_KV_HOST_BYTES)"):
                return engine, HostSwap(engine.kv, host_blocks) if host_blocks else None

        try:
            engine, host = await asyncio.get_running_loop().run_in_executor(executor, load)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(engine, executor, host, threads, watch)

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self.engine.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.engine.block_size

    @property
    def host_blocks(self) -> int:
        """Blocks of host memory for swapped KV; 0: none."""
        return 0 if self._host is None else self._host.num_blocks

    @property
    def num_layers(self) -> int:
        """Layers of the model that have KV."""
        return self.engine.kv.num_layers

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV per token, all layers, keys and values."""
        return self.engine.kv_bytes_per_token

    @property
    def num_sequences(self) -> int:
        """Sequences in the engine."""
        return self.engine.num_sequences

    @property
    def max_in_flight(self) -> int:
        """One iteration runs at a time."""
        return 1

    @property
    def group_times(self) -> None:
        """It is in no group."""

    @property
    def computes_with(self) -> str:
        """Number format, device and kernels, for people."""
        engine = self.engine
        words = [f"{engine.dtype} on {engine.device}", self.kernels]
        if engine.graphs is not None and not engine.graphs.off:
            words.append(f"{engine.graphs.recorded} decode graphs")
        if engine.adapters:
            words.append(f"adapters {', '.join(adapter.name for adapter in engine.adapters)}")
        return ", ".join(words)

    @property
    def kernels(self) -> str:
        """What computes its layers."""
        engine = self.engine
        if engine.is_native:
            return f"native {variant_for_this_processor().name}, {engine.fused_layers} fused layers"
        return "no native kernels" if engine.device == "cpu" else engine.attention_name

    def watch(self, on_lost: Callable[[str], None], on_restored: Callable[[], None]) -> None:
        """Neither is ever called: the engine is this process."""

    async def prepare(self, record: RequestRecord) -> Any:
        """Wait for a sequence's grammar, which other threads compile; raises `ValueError` where that cannot be followed."""
        preparing = self.engine.prepare(record)
        if preparing is not None:
            # shielded: others wait for the same grammar
            await asyncio.shield(asyncio.wrap_future(preparing))
        return preparing

    async def add_sequence(self, record: RequestRecord, prepared: Any = None) -> None:
        """Add a sequence to the engine, with what `prepare` returned; raises `ValueError` where the engine refuses it."""
        await self._loop.run_in_executor(self._executor, self.engine.add_sequence, record, prepared)

    def append_token(self, sequence_id: str, token_id: int) -> None:
        """Append a token that another worker sampled."""
        self._submit(self.engine.append_token, sequence_id, token_id)

    def append_tokens(self, tokens: Sequence[tuple[str, int]]) -> None:
        """Append tokens to sequences, (sequence id, token id) each, that another process sampled."""

        def append() -> None:
            for sequence_id, token_id in tokens:
                self.engine.append_token(sequence_id, token_id)

        self._submit(append)

    def drop_sequence(self, sequence_id: str) -> None:
        """Remove a sequence."""
        self._submit(self.engine.drop_sequence, sequence_id)

    def clear_not_finite(self, block_ids: tuple[int, ...]) -> None:
        """Make zeros of what is no number in these blocks, after what was ordered before."""
        self._submit(self.engine.kv.clear_not_finite, block_ids)

    def drop_all(self) -> None:
        """Remove all sequences."""
        self._submit(self.engine.drop_all)

    async def run(self, work: Callable[[], T]) -> T:
        """Run something on the engine's thread, after what was ordered before."""
        return await self._loop.run_in_executor(self._executor, work)

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: LayersWritten | None = None,
    ) -> None:
        """Run a batch; one of the first two is called on the event loop, `on_layers` on the engine's thread."""

        shape = BatchShape.of(batch)
        if self._watch is not None:
            self._watch.ordered(shape)

        def done(future: Future[tuple[SampledToken, ...]]) -> None:
            is_whole = not future.cancelled() and future.exception() is None
            if self._watch is not None:
                self._watch.ended(IterationTime(shape, self._last_s) if is_whole else None)
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                self._loop.call_soon_threadsafe(on_finished, future.result())
            elif isinstance(error, Exception):
                if not isinstance(error, GroupBrokenError):
                    _log.error("iteration_failed", rows=len(batch.rows), exc_info=error)
                self._loop.call_soon_threadsafe(on_failed, error)

        self._executor.submit(self._timed_iteration, batch, on_layers).add_done_callback(done)

    def _timed_iteration(self, batch: Batch, on_layers: LayersWritten | None) -> tuple[SampledToken, ...]:
        began_s = time.perf_counter()
        try:
            return self.engine.run_iteration(batch, on_layers)
        finally:
            self._last_s = time.perf_counter() - began_s
            self.busy_s += self._last_s

    def swap_out(
        self, block_ids: tuple[int, ...], host_block_ids: tuple[int, ...], on_ended: Callable[[Exception | None], None]
    ) -> None:
        """Copy blocks of the KV cache into as many of the host's; `on_ended` is called on the event loop."""
        assert self._host is not None  # else there are no host blocks
        self._move(on_ended, self._host.swap_out, block_ids, host_block_ids)

    def swap_in(
        self, host_block_ids: tuple[int, ...], block_ids: tuple[int, ...], on_ended: Callable[[Exception | None], None]
    ) -> None:
        """Copy blocks of the host into as many of the KV cache; `on_ended` is called on the event loop."""
        assert self._host is not None  # else there are no host blocks
        self._move(on_ended, self._host.swap_in, host_block_ids, block_ids)

    def close(self) -> None:
        """Wait for the calls that run, and drop the others."""
        for executor in (self._executor, self._mover):
            executor.shutdown(wait=True, cancel_futures=True)

    def _move(
        self,
        on_ended: Callable[[Exception | None], None],
        copy: Callable[[tuple[int, ...], tuple[int, ...]], None],
        source_ids: tuple[int, ...],
        target_ids: tuple[int, ...],
    ) -> None:
        if self._watch is not None:
            self._watch.swap_began()

        def done(future: Future[None]) -> None:
            if self._watch is not None:
                self._watch.swap_ended()
            if future.cancelled():
                return
            error = future.exception()
            if isinstance(error, Exception):
                _log.error("kv_swap_failed", blocks=len(source_ids), exc_info=error)
            if error is None or isinstance(error, Exception):
                self._loop.call_soon_threadsafe(on_ended, error)

        self._mover.submit(copy, source_ids, target_ids).add_done_callback(done)

    def _submit(self, work: Callable[..., Any], *args: Any) -> None:
        def done(future: Future[Any]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                _log.error("engine_call_failed", call=work.__name__, exc_info=error)

        self._executor.submit(work, *args).add_done_callback(done)


def engine_config(settings: WorkerSettings) -> EngineConfig:
    """Return how a worker's process loads its model."""
    return EngineConfig(
        model_dir=settings.model_dir,
        dtype=settings.dtype,
        device=settings.device,
        kv_cache_bytes=AutoKvSize(settings.max_num_seqs, settings.local_workers, free_memory_bytes)
        if settings.kv_cache_bytes == "auto"
        else settings.kv_cache_bytes,
        block_size=settings.kv_block_size,
        threads=settings.threads,
        decode_graphs=settings.decode_graphs,
        shared_weights=settings.shared_weights,
        storage_bytes_per_s=settings.storage_bytes_per_s,
        adapters=settings.adapter_folders,
        weights=settings.weights,
    )
