"""A relay before the store that answers late: what the store did, its clients learn some time after."""

from __future__ import annotations

import asyncio
import contextlib

from tests.live.relay import Relay


class SlowStore(Relay):
    """Relays connections to a store; each answer comes `delay_s` after the store gave it.

    Attributes:
        delay_s: of every answer from now on.
    """

    def __init__(self, store_port: int) -> None:
        super().__init__()
        self.delay_s = 0.0
        self._store_port = store_port

    @property
    def url(self) -> str:
        """For `--redis-url`."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_store, to_store = await asyncio.open_connection("127.0.0.1", self._store_port)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        steps = (self._listen(reader, to_store), self._note(from_store, late), self._answer(late, writer))
        tasks = [asyncio.create_task(step) for step in steps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in (writer, to_store):
                each.close()

    @staticmethod
    async def _listen(reader: asyncio.StreamReader, to_store: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            to_store.write(data)
            await to_store.drain()

    async def _note(self, from_store: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        while data := await from_store.read(65536):
            late.put_nowait((self._loop.time() + self.delay_s, data))

    async def _answer(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due_s, data = await late.get()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
