"""One push as several, one to each process of the target that keeps a part of what this process has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff
from spotwise.mesh.ports.ports import KvPush, TransferReport

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
