"""Pushes that move blocks of all layers at once, and one push as several, one to each process of the target."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from spotwise.core.kv.stream import KvStream
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvSource, KvTarget
from spotwise.mesh.ports.ports import KvPush, KvTransferError, TransferReport


async def push_at_once(push: KvPush, num_layers: int, num_blocks: int, handoff: KvHandoff) -> TransferReport:
    """Report all of an open push as written, commit it, and return when it is delivered; raises as `KvPush.delivered`."""
    push.wrote(num_layers, num_blocks)
    push.commit(handoff)
    return await push.delivered()


def source_of(handoff: KvHandoff, block_ids: tuple[int, ...]) -> KvSource:
    """Return the source of a hand-off whose KV is all written."""
    return KvSource(handoff.choice_id, handoff.epoch, block_ids, handoff.num_tokens, handoff.num_tokens)


#: Moves the KV of these blocks, the first of which are copied already, hands over, and returns the bytes of all.
MoveAll = Callable[[KvHandoff, tuple[int, ...], int], Awaitable[int]]
#: Copies so many blocks.
CopyBlocks = Callable[[int], Awaitable[None]]


class WholePush:
    """A `KvPush` that moves nothing before its commit, or, given a `pre_copy`, before `caught_up`; raises `ValueError` for no
    blocks, or more than the target reserved.

    Args:
        num_layers: layers of the model.
        transport: its name, for reports.
        move: at the commit, with the number of pre-copied blocks; its `KvTransferError` need not name the push.
        pre_copy: copies the written blocks of a sequence that decodes on; `None` where these move with the commit too.
    """

    def __init__(
        self,
        target: KvTarget,
        source: KvSource,
        num_layers: int,
        transport: str,
        move: MoveAll,
        pre_copy: CopyBlocks | None = None,
    ) -> None:
        self._reserved = len(target.block_ids)
        self._num_layers = num_layers
        self._block_ids: tuple[int, ...] = ()
        self._take(source.block_ids)
        self._where = f"KV of {source.choice_id} epoch {source.epoch} to {target.worker_id} at {target.address}"
        self._cells = KvStream(num_layers, len(source.block_ids), 1, 1)
        self._transport = transport
        self._move = move
        self._pre_copy = pre_copy
        self._copied_blocks = 0
        self._started_s = time.perf_counter()
        self._committed: asyncio.Future[tuple[KvHandoff, float]] = asyncio.get_running_loop().create_future()
        self._moving: asyncio.Future[int] | None = None
        self._copying: asyncio.Future[None] | None = None
        self._is_called_off = self._is_over = False

    def wrote(self, layers: int, blocks: int) -> None:
        """See `KvPush`."""
        self._cells.wrote(layers, blocks)

    def _take(self, block_ids: tuple[int, ...]) -> None:
        before = self._block_ids
        if not block_ids or block_ids[: len(before)] != before or len(block_ids) > self._reserved:
            raise ValueError(f"{len(block_ids)} blocks to push, after {len(before)}, {self._reserved} reserved")
        self._block_ids = block_ids

    def commit(self, handoff: KvHandoff, source_block_ids: tuple[int, ...] = ()) -> None:
        """See `KvPush`."""
        if source_block_ids:
            self._take(source_block_ids)
            self._cells.grow(len(source_block_ids))
            self._cells.wrote(self._num_layers, len(source_block_ids))
        if not self._cells.is_written:
            raise ValueError(f"the KV of {handoff.choice_id} is not all written")
        if not self._committed.cancelled():
            self._committed.set_result((handoff, time.perf_counter()))

    async def caught_up(self) -> None:
        """See `KvPush`; begins to copy what is written by now. Only pushes of sequences that decode on wait for it."""
        blocks = self._cells.written_blocks - self._copied_blocks
        if self._pre_copy is None or not blocks or self._committed.done() or self._is_over:
            return
        self._copied_blocks += blocks
        self._copying = asyncio.ensure_future(self._pre_copy(blocks))
        try:
            await self._copying
        except asyncio.CancelledError:
            if not self._is_over:
                raise

    def abort(self) -> None:
        """See `KvPush`."""
        self._is_called_off = True
        self._committed.cancel()
        if self._moving is not None:
            self._moving.cancel()
        self._end()

    def _end(self) -> None:
        self._is_over = True
        if self._copying is not None:
            self._copying.cancel()

    async def delivered(self) -> TransferReport:
        """See `KvPush`."""
        try:
            handoff, committed_s = await asyncio.shield(self._committed)
            # As a real push, after the callbacks that are ready on the loop.
            await asyncio.sleep(0)
            if not self._is_called_off:
                self._moving = asyncio.ensure_future(self._move(handoff, self._block_ids, self._copied_blocks))
                kv_bytes = await self._moving
                ended_s = time.perf_counter()
                return TransferReport(kv_bytes, ended_s - self._started_s, self._transport, ended_s - committed_s)
        except KvTransferError as error:
            raise KvTransferError(f"{self._where}: {error}") from None
        except asyncio.CancelledError:
            if not self._is_called_off:
                raise
        finally:
            self._end()
        raise KvTransferError(f"{self._where}: called off")


_T = TypeVar("_T")


class SectionPush:
    """The push of one section of this process's KV; `own` is what the process has, `part` the section."""

    def __init__(self, push: KvPush, own: KvPart, part: KvPart) -> None:
        self.push = push
        self._first = part.layers.start - own.layers.start
        self._count = len(part.layers)

    def wrote(self, layers: int, blocks: int) -> None:
        """Note the first `blocks` blocks of the process's first `layers` layers as complete."""
        self.push.wrote(max(0, min(layers - self._first, self._count)), blocks)


class SplitPush:
    """A `KvPush` of several sections: delivered once all are; where one fails, the others are aborted."""

    def __init__(self, sections: Sequence[SectionPush]) -> None:
        self._sections = sections

    def wrote(self, layers: int, blocks: int) -> None:
        """See `KvPush`."""
        for section in self._sections:
            section.wrote(layers, blocks)

    def commit(self, handoff: KvHandoff, source_block_ids: tuple[int, ...] = ()) -> None:
        """See `KvPush`."""
        for section in self._sections:
            section.push.commit(handoff, source_block_ids)

    async def caught_up(self) -> None:
        """See `KvPush`."""
        await asyncio.gather(*(section.push.caught_up() for section in self._sections))

    def abort(self) -> None:
        """See `KvPush`."""
        for section in self._sections:
            section.push.abort()

    async def delivered(self) -> TransferReport:
        """See `KvPush`."""
        return together(await all_or_none((section.push.delivered() for section in self._sections), self.abort))


async def all_or_none(works: Iterable[Awaitable[_T]], abort: Callable[[], None]) -> list[_T]:
    """Return all results, once each of the works has ended; at the first failure call `abort`, and raise that in the end."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        abort()
        await asyncio.wait(tasks)
        raise
    failed = [task for task in tasks if task.done() and (task.cancelled() or task.exception() is not None)]
    if failed:
        abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        failed[0].result()
    return [task.result() for task in tasks]


def together(reports: Iterable[TransferReport]) -> TransferReport:
    """Return the figures of pushes side by side."""
    all_of = list(reports)
    transports = {name for report in all_of for name in report.transport.split(", ")}
    visible = [report.visible_s for report in all_of if report.visible_s is not None]
    return TransferReport(
        sum(report.kv_bytes for report in all_of),
        max(report.seconds for report in all_of),
        ", ".join(sorted(transports)),
        max(visible, default=None),
    )
