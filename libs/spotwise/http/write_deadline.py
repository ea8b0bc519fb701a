"""How long a client may leave its answer lying."""

from __future__ import annotations

import asyncio


class WriteDeadline:
    """Cuts a connection off whose client takes next to nothing; one that takes something gets as much time again.

    Args:
        loop: keeps the time.
        seconds: after which there is a look.
        min_taken_bytes: what must be gone by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, min_taken_bytes: int) -> None:
        self._loop = loop
        self._seconds = seconds
        self._min_taken_bytes = min_taken_bytes
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Begin, unless it has begun."""
        if self._timer is None:
            unwritten_bytes = transport.get_write_buffer_size()
            self._timer = self._loop.call_later(self._seconds, self._look, transport, unwritten_bytes)

    def stop(self) -> None:
        """The client has taken enough, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, transport: asyncio.Transport, unwritten_bytes: int) -> None:
        self._timer = None
        if unwritten_bytes - transport.get_write_buffer_size() < self._min_taken_bytes:
            transport.abort()
        else:
            self.start(transport)
