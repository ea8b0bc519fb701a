"""Hand-offs of which all is there at once: transports for which layers are no unit of work, and prompts that are computed.

Invariants of a `WholePush`: nothing moves before the commit, nor once it was called off; `delivered` ends in every case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from spotwise.core.kv_stream import KvStream
from spotwise.core.record import KvHandoff, KvTarget
from spotwise.mesh.ports import KvPush, KvTransferError, TransferReport


async def push_at_once(push: KvPush, num_layers: int, num_blocks: int, handoff: KvHandoff) -> TransferReport:
    """Say that all of an open push is written, commit it, and return when it is delivered.

    Raises:
        KvTransferError: as `KvPush.delivered`.
    """
    push.wrote(num_layers, num_blocks)
    push.commit(handoff)
    return await push.delivered()


class WholePush:
    """One hand-off that moves when it is committed; see `spotwise.mesh.ports.KvPush`.

    Args:
        target: the reservation.
        choice_id, epoch: the attempt.
        num_layers: of the model.
        num_blocks: of the prompt.
        transport: how it goes, for reports.
        move: moves all of it, hands over, and returns its bytes; its `KvTransferError` says what went wrong, and not where.

    Raises:
        ValueError: no blocks, or more than the target reserved.
    """

    def __init__(
        self,
        target: KvTarget,
        choice_id: str,
        epoch: int,
        num_layers: int,
        num_blocks: int,
        transport: str,
        move: Callable[[KvHandoff], Awaitable[int]],
    ) -> None:
        if not 0 < num_blocks <= len(target.block_ids):
            raise ValueError(f"{num_blocks} blocks to push, {len(target.block_ids)} reserved")
        self._where = f"KV of {choice_id} epoch {epoch} to {target.worker_id} at {target.address}"
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
            raise ValueError(f"the KV of {handoff.choice_id} is not all written")
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
