"""Processes of a group in one, and raw connections to them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

from spotwise.mesh.links.group_sockets import GroupMeeting, GroupSockets
from spotwise.mesh.security.link_security import LinkSecurity
from spotwise.mesh.security.secrets import MeshSecret

SECRET = "0123456789abcdef" * 2
MESH = MeshSecret(b"m" * 32)


class Process:
    """A process's sockets, and the connections that it was given."""

    def __init__(self, sockets: GroupSockets) -> None:
        self.sockets = sockets
        self.lost: list[int] = []
        self.connections: dict[int, tuple[socket.socket, socket.socket]] = {}

    def join(self, epoch: int, addresses: tuple[str, ...], member: int, secret: str = SECRET) -> None:
        self.meeting = GroupMeeting(epoch, secret, addresses, member)
        self.sockets.connect(self.meeting, self._connected, self._lost)

    def leave(self) -> None:
        self.sockets.forget(self.meeting)

    def _connected(self, member: int, data: socket.socket, pulse: socket.socket) -> None:
        for connection in (data, pulse):
            connection.setblocking(True)
            connection.settimeout(5.0)
        self.connections[member] = (data, pulse)

    def _lost(self, member: int) -> None:
        self.lost.append(member)

    async def has(self, *members: int) -> None:
        await self.hears(lambda: set(self.connections) == set(members))

    async def hears(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not is_so():  # noqa: ASYNC110 - not all of it has an event
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def processes(
    count: int, security: LinkSecurity | None = None
) -> AsyncIterator[tuple[list[Process], tuple[str, ...]]]:
    async with contextlib.AsyncExitStack() as stack:
        started = [
            Process(await stack.enter_async_context(GroupSockets.open("127.0.0.1", 0, "127.0.0.1", security)))
            for _ in range(count)
        ]
        yield started, tuple(process.sockets.address for process in started)
        for process in started:
            for pair in process.connections.values():
                for connection in pair:
                    connection.close()


def connected(address: str, first: bytes = b"") -> socket.socket:
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=5.0)
    connection.sendall(first)
    return connection


def all_of(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes of a connection, or those until its end."""
    received = b""
    while len(received) < size and (part := connection.recv(size - len(received))):
        received += part
    return received
