"""A hand-off that moves all at once, when it is committed: of transports for which layers are no unit of work.

Invariants: nothing moves before the commit, nor once it was called off; `delivered` ends in every case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from spotwise.core.kv_stream import KvStream
from spotwise.core.record import KvHandoff
from spotwise.mesh.ports import KvTransferError, TransferReport


class WholePush:
    """One hand-off; see `spotwise.mesh.ports.KvPush`.

    Args:
        where: says in errors what goes where.
        num_layers: of the model.
        num_blocks: of the prompt.
        transport: how it goes, for reports.
        move: moves all of it, hands over, and returns its bytes; its `KvTransferError` says what went wrong, and not where.
    """

    def __init__(
        self,
        where: str,
        num_layers: int,
        num_blocks: int,
        transport: str,
        move: Callable[[KvHandoff], Awaitable[int]],
    ) -> None:
        self._where = where
        self._cells = KvStream(num_layers, num_blocks, 1, 1)
        self._transport = transport
        self._move = move
        self._started_s = time.perf_counter()
        self._committed: asyncio.Future[tuple[KvHandoff, float]] = asyncio.get_running_loop().create_future()
        self._moving: asyncio.Future[int] | None = None
        self._is_called_off = False

    def wrote(self, layers: int, blocks: int) -> None:
        """Note that the first blocks of the first layers are written.

        Raises:
            ValueError: there are fewer.
        """
        self._cells.wrote(layers, blocks)

    def commit(self, handoff: KvHandoff) -> None:
        """Let the hand-off go.

        Raises:
            ValueError: not all is written.
        """
        if not self._cells.is_written:
            raise ValueError(f"the KV of {handoff.request_id} is not all written")
        if not self._committed.cancelled():
            self._committed.set_result((handoff, time.perf_counter()))

    def abort(self) -> None:
        """Call it off; idempotent."""
        self._is_called_off = True
        self._committed.cancel()
        if self._moving is not None:
            self._moving.cancel()

    async def delivered(self) -> TransferReport:
        """Return when the receiver has it.

        Raises:
            KvTransferError: it could not be moved, or was called off.
        """
        try:
            handoff, committed_s = await asyncio.shield(self._committed)
            # A push always takes a while: what is ready on the loop comes first.
            await asyncio.sleep(0)
            if not self._is_called_off:
                self._moving = asyncio.ensure_future(self._move(handoff))
                kv_bytes = await self._moving
                ended_s = time.perf_counter()
                return TransferReport(kv_bytes, ended_s - self._started_s, self._transport, ended_s - committed_s)
        except KvTransferError as error:
            raise KvTransferError(f"{self._where}: {error}") from None
        except asyncio.CancelledError:
            if not self._is_called_off:
                raise
        raise KvTransferError(f"{self._where}: called off")
