"""A relay before the broker that can lose what one member sends."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NAME = re.compile(rb"CONNECT (\{.*?\})\r\n")


class BrokerProxy:
    """Relays NATS connections; clients send their member's name when they connect.

    Attributes:
        url: for `--nats-url`.
    """

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._loop = asyncio.new_event_loop()
        self._writers: dict[str, list[asyncio.StreamWriter]] = {}
        self._deaf: set[str] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    @contextmanager
    def running(self) -> Iterator[BrokerProxy]:
        """Relay in a thread of its own."""
        self._server = self._loop.run_until_complete(asyncio.start_server(self._relay, "127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(timeout=10)
            self._loop.close()

    def lose(self, member_id: str) -> None:
        """From now on nothing that the member sends reaches the broker."""
        self._loop.call_soon_threadsafe(self._deaf.add, member_id)

    def cut(self, member_id: str) -> None:
        """Break its connection; the next one is relayed as ever."""
        self._loop.call_soon_threadsafe(self._cut, member_id)

    def _cut(self, member_id: str) -> None:
        self._deaf.discard(member_id)
        for writer in self._writers.pop(member_id, []):
            writer.close()

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for member_id in list(self._writers):
            self._cut(member_id)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_broker = None
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(from_broker, writer))
                group.create_task(self._listen(reader, to_broker, writer))
        except* (OSError, _EndedError):
            pass
        finally:
            for each in (writer, to_broker):
                if each is not None:
                    each.close()

    async def _listen(
        self, reader: asyncio.StreamReader, to_broker: asyncio.StreamWriter, to_client: asyncio.StreamWriter
    ) -> None:
        """Relay a client's messages, unless they are to be lost."""
        name = ""
        while data := await reader.read(65536):
            if not name and (said := _NAME.search(data)):
                name = json.loads(said[1]).get("name", "?")
                self._writers.setdefault(name, []).extend((to_broker, to_client))
            if name not in self._deaf:
                to_broker.write(data)
                await to_broker.drain()
        raise _EndedError

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        raise _EndedError


class _EndedError(Exception):
    """One side is done, and so is the other."""
