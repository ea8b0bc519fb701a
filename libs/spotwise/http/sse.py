"""Server-sent events and the life of a connection.

An event is sent as soon as there is one; work for a client that has left is cancelled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from spotwise.mesh.process.background_work import end_tasks

Item = TypeVar("Item")

DONE = b"data: [DONE]\n\n"
#: Which readers skip.
COMMENT = b":\n\n"


#: What Python's `splitlines` and its kin take for ends of lines, in UTF-8, and how JSON spells it otherwise.
_LINE_ENDS = ((b"\xc2\x85", rb"\u0085"), (b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"))


def one_line(body: object) -> bytes:
    """Return JSON that every reader takes for one line, those included that know more ends of lines than events have."""
    written = orjson.dumps(body)
    if not written.isascii():
        for raw, escaped in _LINE_ENDS:
            written = written.replace(raw, escaped)
    return written


def event(body: object) -> bytes:
    """Return one event that carries JSON."""
    return b"data: " + one_line(body) + b"\n\n"


def named_event(name: str, body: object) -> bytes:
    """Return one event of a name that carries JSON."""
    return b"event: " + name.encode() + b"\n" + event(body)


def stream_start(headers: dict[str, str]) -> Message:
    """Return the ASGI message that opens a stream; no proxy shall buffer or keep it."""
    fixed = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
    pairs = [(name.lower().encode(), value.encode()) for name, value in (fixed | headers).items()]
    return {"type": "http.response.start", "status": 200, "headers": pairs}


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or cancel it when the client leaves.

    The request's body must have been read: what `receive` then gives is the disconnect.

    Raises:
        Exception: what `work` raised.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            await worker
    finally:
        await end_tasks((worker, watcher))


async def run_unless_left(receive: Receive, work: Coroutine[Any, Any, Item]) -> Item:
    """Return what `work` returns; see `run_while_connected`.

    Raises:
        ClientDisconnect: the client left before.
        Exception: what `work` raised.
    """
    results: list[Item] = []

    async def keep_result() -> None:
        results.append(await work)

    await run_while_connected(receive, keep_result())
    if not results:
        raise ClientDisconnect
    return results[0]


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def interleave(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Run generators concurrently; give their items with their index, as they come.

    The first error ends all. Closing this generator closes them.

    Raises:
        Exception: what a source raised.
    """
    if len(sources) == 1:  # no queue and no task between the mesh and the socket of a single stream
        async with aclosing(sources[0]) as items:
            async for item in items:
                yield 0, item
        return
    # One item of each waits here at most: what a slow reader does not take stays in the sources, which see that it is slow.
    arrived: asyncio.Queue[tuple[int, Item] | Exception | None] = asyncio.Queue(len(sources))

    async def pump(index: int, source: AsyncGenerator[Item, None]) -> None:
        try:
            async with aclosing(source) as items:
                async for item in items:
                    await arrived.put((index, item))
        except Exception as error:
            await arrived.put(error)
        else:
            await arrived.put(None)

    tasks = [asyncio.create_task(pump(index, source)) for index, source in enumerate(sources)]
    try:
        running = len(tasks)
        while running:
            got = await arrived.get()
            if got is None:
                running -= 1
            elif isinstance(got, Exception):
                raise got
            else:
                yield got
    finally:
        await end_tasks(tasks)
