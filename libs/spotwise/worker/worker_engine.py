"""The interface of a worker's engine, with torch (`engine_thread.py`) or simulated (`simulated/engine.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from spotwise.core.costs.batching import Batch
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.mesh.grpc.control import GroupTimes


class WorkerEngine(Protocol):
    """Computes batches; all calls come from the event loop, and none blocks it."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    @property
    def host_blocks(self) -> int:
        """Blocks of host memory for swapped KV; 0: none."""

    @property
    def num_layers(self) -> int:
        """Layers of the model that have KV."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV per token, all layers, keys and values."""

    @property
    def max_in_flight(self) -> int:
        """Iterations that it computes at a time: its pipeline's stages."""

    @property
    def num_sequences(self) -> int:
        """Sequences in the engine."""

    @property
    def computes_with(self) -> str:
        """Number format, device and kernels, for people."""

    @property
    def group_times(self) -> GroupTimes | None:
        """What this process has spent as a member of a group; `None`: in none."""

    def watch(self, on_lost: Callable[[str], None], on_restored: Callable[[], None]) -> None:
        """Call `on_lost`, with the reason, when a part of the engine is gone: what runs has no result, and all sequences are
        dropped; `on_restored` when it is whole again. Both on the event loop. An engine of one process is never lost alone.
        """

    async def prepare(self, record: RequestRecord) -> Any:
        """Do what a sequence needs before it is added, beside iterations: its grammar is compiled. Returns what `add_sequence`
        takes; raises `ValueError` where the sequence can be served nowhere.
        """

    async def add_sequence(self, record: RequestRecord, prepared: Any = None) -> None:
        """Add a sequence: prompt and output tokens committed so far, and what `prepare` returned; raises `ValueError` where the
        engine refuses it.
        """

    def append_token(self, sequence_id: str, token_id: int) -> None:
        """Append a token that another worker sampled."""

    def drop_sequence(self, sequence_id: str) -> None:
        """Remove a sequence, known or not."""

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: Callable[[int], None] | None = None,
    ) -> None:
        """Run a batch; one of the first two is called on the event loop when it is done, in the order of the calls. `on_layers`
        may be called meanwhile, on any thread, with the number of layers that have written their KV.
        """

    def swap_out(
        self, block_ids: tuple[int, ...], host_block_ids: tuple[int, ...], on_ended: Callable[[Exception | None], None]
    ) -> None:
        """Copy blocks of the KV cache into as many of the host's, beside the iterations. The blocks were written by iterations
        that have ended, and are not written until the copy ends. `on_ended` is called on the event loop, with the error, if
        any.
        """

    def swap_in(
        self, host_block_ids: tuple[int, ...], block_ids: tuple[int, ...], on_ended: Callable[[Exception | None], None]
    ) -> None:
        """Copy blocks of the host into as many of the KV cache, as `swap_out`."""
