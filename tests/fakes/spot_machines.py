"""Machines that start and end by a spot trace, each with its metadata."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Self

from spotwise.files.spot_traces import SpotEventKind, SpotTrace
from tests.fakes.metadata_server import MetadataServer


class SpotMachines:
    """The metadata of every machine of a trace, under a clock that the test moves.

    Args:
        trace: when each machine starts and ends.
        notice_s: how long before its end a machine is given notice; 0 is no notice at all.
        start_s: Unix time of the trace's start.
    """

    def __init__(self, trace: SpotTrace, notice_s: float, start_s: float) -> None:
        self._trace = trace
        self._notice_s = notice_s
        self._start_s = start_s
        self._next = 0
        self._servers = AsyncExitStack()
        self.now = start_s
        #: Of the machines that are there, by node.
        self.here: dict[str, MetadataServer] = {}
        #: Unix time at which a machine ends, of machines with a notice.
        self.deadlines: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        await self._servers.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._servers.aclose()

    @property
    def moments(self) -> list[float]:
        """Unix times at which something happens, in order: notices, and machines that come or go."""
        at = {event.time_s for event in self._trace.events}
        at |= {event.time_s - self._notice_s for event in self._trace.events if event.kind is SpotEventKind.REMOVE}
        return sorted(self._start_s + max(0.0, time_s) for time_s in at)

    async def advance(self, now: float) -> None:
        """Let everything happen that happens until then."""
        self.now = now
        while self._next < len(self._trace.events):
            event = self._trace.events[self._next]
            if self._start_s + event.time_s > now:
                break
            self._next += 1
            for node in event.nodes:
                if event.kind is SpotEventKind.ADD:
                    server = MetadataServer(node, node, clock=lambda: self.now)
                    self.here[node] = await self._servers.enter_async_context(server)
                elif event.kind is SpotEventKind.REMOVE:
                    self.here.pop(node)
        for event in self._trace.events[self._next :]:
            if event.kind is SpotEventKind.REMOVE and self._start_s + event.time_s - self._notice_s <= now:
                for node in event.nodes:
                    if node in self.here and node not in self.deadlines:
                        self.deadlines[node] = self.here[node].announce(self._start_s + event.time_s)
