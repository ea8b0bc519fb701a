"""What a worker's process needs of an engine.

Law: the runtime knows no other side of an engine than this. The one with torch (`engine_thread.py`) and the simulated one
(`simulated/engine.py`) both have it, and a process loads the libraries of its own kind only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spotwise.core.batching import Batch
from spotwise.core.record import RequestRecord
from spotwise.core.sampling import SampledToken


class WorkerEngine(Protocol):
    """Computes batches; all calls come from the event loop, and none of them holds it up."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    @property
    def host_blocks(self) -> int:
        """Blocks of the host's memory for KV that the device has no room for; 0 for none."""

    @property
    def num_layers(self) -> int:
        """Layers of the model that have KV."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV per token, all layers, keys and values."""

    @property
    def num_sequences(self) -> int:
        """Sequences known here."""

    @property
    def computes_with(self) -> str:
        """What it computes with, for people."""

    async def add_sequence(self, record: RequestRecord) -> None:
        """Learn a sequence: its prompt and the output tokens committed so far.

        Raises:
            ValueError: the engine refuses it; says why.
        """

    def append_token(self, sequence_id: str, token_id: int) -> None:
        """Learn a token that another worker sampled."""

    def drop_sequence(self, sequence_id: str) -> None:
        """Forget a sequence, known or not."""

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: Callable[[int], None] | None = None,
    ) -> None:
        """Run a batch; one of the first two is called on the event loop when it is done, in the order of the calls.

        `on_layers` may be called meanwhile, on any thread, with the number of layers, from the first on, that have written
        their KV; an engine that calls nobody leaves all of them for the end.
        """

    def swap_out(
        self, block_ids: tuple[int, ...], host_block_ids: tuple[int, ...], on_ended: Callable[[Exception | None], None]
    ) -> None:
        """Copy blocks of the KV cache into as many of the host's, beside the iterations.

        `on_ended` is called on the event loop, with what went wrong where something did. What is copied was written by
        iterations that have ended; until then nobody writes it.
        """

    def swap_in(
        self, host_block_ids: tuple[int, ...], block_ids: tuple[int, ...], on_ended: Callable[[Exception | None], None]
    ) -> None:
        """Copy blocks of the host into as many of the KV cache; otherwise as `swap_out`."""
