"""The one thread that runs torch, so that the event loop never waits for an iteration.

Law: everything that touches the engine's sequences runs on this thread, in the order in which it was asked for; what comes
back arrives on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import structlog

from spotwise.core.batching import Batch
from spotwise.core.record import RequestRecord
from spotwise.core.sampling import SampledToken
from spotwise.engine.engine import Engine, EngineConfig
from spotwise.engine.layer_progress import LayersWritten
from spotwise.engine.native.build import variant_for_this_processor

_log = structlog.get_logger(__name__)


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")


def _step_back(niceness: int) -> None:
    """Add to the calling thread's niceness, which on Linux is a thread's own, and set its session's.

    Where the kernel groups processes by session (sched_autogroup), niceness counts within a session alone: a worker that is a
    session of its own must step back as a group, too.
    """
    if niceness == 0:
        return
    thread_id = threading.get_native_id()
    # To what it has: nobody but root may become less nice than he was started.
    os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, thread_id) + niceness)
    is_session_leader = os.getsid(0) == os.getpid()
    if is_session_leader:
        with contextlib.suppress(OSError):  # a kernel that does not group, or not by session
            Path("/proc/self/autogroup").write_text(str(niceness))


class EngineThread:
    """An engine, and the thread that owns it: a `WorkerEngine`."""

    def __init__(self, engine: Engine, executor: ThreadPoolExecutor | None = None) -> None:
        self.engine = engine
        self._executor = executor or _one_thread()
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def load(cls, config: EngineConfig, niceness: int) -> Self:
        """Load an engine beside the event loop, so that heartbeats go on, on the thread that will own it.

        Args:
            config: of the engine.
            niceness: added for everything that computes, as by nice(2): the loop, whose messages are short, keeps its own.

        Raises:
            ModelError, ValueError: as `Engine.load`.
        """
        executor = _one_thread()
        loop = asyncio.get_running_loop()
        try:
            # Threads inherit it, so it comes before the engine has any.
            await loop.run_in_executor(executor, _step_back, niceness)
            engine = await loop.run_in_executor(executor, Engine.load, config)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(engine, executor)

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self.engine.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.engine.block_size

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
        """Sequences known here."""
        return self.engine.num_sequences

    @property
    def computes_with(self) -> str:
        """What it computes with: number format, device, kernels."""
        engine = self.engine
        words = [f"{engine.dtype} on {engine.device}"]
        if engine.is_native:
            words += [f"native {variant_for_this_processor().name}", f"{engine.fused_layers} fused layers"]
        elif engine.device == "cpu":
            words.append("no native kernels")
        else:
            words.append(engine.attention_name)
            if engine.graphs is not None and not engine.graphs.off:
                words.append(f"{engine.graphs.recorded} decode graphs")
        return ", ".join(words)

    async def add_sequence(self, record: RequestRecord) -> None:
        """Give the engine a sequence.

        Raises:
            ValueError: the engine refuses it.
        """
        await self._loop.run_in_executor(self._executor, self.engine.add_sequence, record)

    def append_token(self, sequence_id: str, token_id: int) -> None:
        """Tell the engine a token that another worker sampled."""
        self._submit(self.engine.append_token, sequence_id, token_id)

    def drop_sequence(self, sequence_id: str) -> None:
        """Let the engine forget a sequence."""
        self._submit(self.engine.drop_sequence, sequence_id)

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: LayersWritten | None = None,
    ) -> None:
        """Run a batch; one of the first two is called on the event loop when it is done, `on_layers` on the engine's thread."""

        def done(future: Future[tuple[SampledToken, ...]]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                self._loop.call_soon_threadsafe(on_finished, future.result())
            elif isinstance(error, Exception):
                _log.error("iteration_failed", rows=len(batch.rows), exc_info=error)
                self._loop.call_soon_threadsafe(on_failed, error)

        self._executor.submit(self.engine.run_iteration, batch, on_layers).add_done_callback(done)

    def close(self) -> None:
        """Wait for what runs, forget what does not yet."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _submit(self, work: Callable[..., Any], *args: Any) -> None:
        def done(future: Future[Any]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                _log.error("engine_call_failed", call=work.__name__, exc_info=error)

        self._executor.submit(work, *args).add_done_callback(done)
