"""The app behind the gateway's own server, on a real socket of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette

from spotwise.http.limits import HttpLimits
from spotwise.http.protocol import http_protocol
from spotwise.http.server import HttpServer
from spotwise.mesh.embedded.servers import LOOPBACK
from tests.contracts.waiting import PATIENCE_S, until


@dataclass
class Listening:
    """Where a server listens, and the errors that it answered below the app."""

    port: int
    server: HttpServer
    errors: list[str]
    clients: list[Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    async def connect(self, receive_buffer_bytes: int | None = None) -> Client:
        """Open a bare connection."""
        bare = socket.socket()
        bare.setblocking(False)
        if receive_buffer_bytes is not None:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(bare, (LOOPBACK, self.port))
        client = Client(*await asyncio.open_connection(sock=bare, limit=receive_buffer_bytes or 1 << 24))
        self.clients.append(client)
        return client


@dataclass
class Client:
    """A client that sends and reads bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send, unless the server has closed the connection."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def read_until(self, end: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(end)

    async def read_exactly(self, count: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(count)

    async def answer(self) -> tuple[bytes, bytes]:
        """One answer with a length: its status line with headers, and its body."""
        head = (await self.read_until(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head, await self.read_exactly(length)

    async def rest(self) -> bytes:
        """All until the server closes; a reset is an end, too."""
        parts = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while part := await self.reader.read(65536):
                    parts += part
        return bytes(parts)

    def leave(self) -> None:
        self.writer.transport.abort()


def config_of(app: Starlette, limits: HttpLimits, on_error: Callable[[str], None], **more: Any) -> uvicorn.Config:
    """Uvicorn's configuration as the gateway has it."""
    quiet: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_config": None, "access_log": False}
    return uvicorn.Config(app, http=http_protocol(limits, on_error), timeout_graceful_shutdown=1, **quiet, **more)


@contextlib.asynccontextmanager
async def listening(
    app: Starlette, limits: HttpLimits, send_buffer_bytes: int | None = None
) -> AsyncIterator[Listening]:
    errors: list[str] = []
    taken = socket.create_server((LOOPBACK, 0))
    if send_buffer_bytes is not None:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)  # connections take it over
    server = HttpServer(config_of(app, limits, errors.append), PATIENCE_S)
    serving = asyncio.create_task(server.serve(sockets=[taken]))
    await until(lambda: server.started)
    here = Listening(taken.getsockname()[1], server, errors)
    try:
        yield here
    finally:
        server.should_exit = True
        for client in here.clients:
            client.leave()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await serving
        taken.close()


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    """A request's bytes."""
    lines = [f"POST {path} HTTP/{version}", "Host: gateway", "Content-Type: application/json", *headers]
    if not any(line.lower().startswith("transfer-encoding") for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
