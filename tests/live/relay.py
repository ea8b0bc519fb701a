"""A relay before a server of a mesh, in a thread of its own."""

from __future__ import annotations

import abc
import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class Relay(abc.ABC):
    """Listens on a port of its own for connections to a server.

    Attributes:
        port: that it listens on while it runs.
    """

    def __init__(self) -> None:
        self.port = 0
        self._loop = asyncio.new_event_loop()

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Relay in a thread of its own."""
        server = self._loop.run_until_complete(asyncio.start_server(self._relay, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(server), self._loop).result(timeout=10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(timeout=10)
            self._loop.close()

    @abc.abstractmethod
    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one client's connection until it ends, or is cancelled; close both sides then."""

    async def _end(self, server: asyncio.Server) -> None:
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
