"""A relay before the broker that can lose what one member sends."""

from __future__ import annotations

import asyncio
import json
import re

from tests.live.relay import Relay

_NAME = re.compile(rb"CONNECT (\{.*?\})\r\n")


class BrokerProxy(Relay):
    """Relays NATS connections; clients send their member's name when they connect."""

    def __init__(self, broker_port: int) -> None:
        super().__init__()
        self._broker_port = broker_port
        self._writers: dict[str, list[asyncio.StreamWriter]] = {}
        self._deaf: set[str] = set()

    @property
    def url(self) -> str:
        """For `--nats-url`."""
        return f"nats://127.0.0.1:{self.port}"

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
