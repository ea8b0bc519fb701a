"""Processes of a group find each other over TCP, in whatever order they come; strangers and earlier groups do not get in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import pytest

from spotwise.mesh.group_sockets import GroupMeeting, GroupSockets, _dialled
from spotwise.mesh.ports import MeshError

SECRET = "0123456789abcdef" * 2


class Process:
    """A process's sockets, and the connections that it was given."""

    def __init__(self, sockets: GroupSockets) -> None:
        self.sockets = sockets
        self.lost: list[int] = []
        self.connections: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._news = asyncio.Event()

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
        self._news.set()

    def _lost(self, member: int) -> None:
        self.lost.append(member)
        self._news.set()

    async def has(self, *members: int) -> None:
        await self.hears(lambda: set(self.connections) == set(members))

    async def hears(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not is_so():
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def processes(count: int) -> AsyncIterator[tuple[list[Process], tuple[str, ...]]]:
    async with contextlib.AsyncExitStack() as stack:
        started = [
            Process(await stack.enter_async_context(GroupSockets.open("127.0.0.1", 0, "127.0.0.1")))
            for _ in range(count)
        ]
        yield started, tuple(process.sockets.address for process in started)
        for process in started:
            for pair in process.connections.values():
                for connection in pair:
                    connection.close()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_each_gets_two_connections_with_each_other(order: tuple[int, ...]) -> None:
    async with processes(3) as (members, addresses):
        for number in order:
            members[number].join(1, addresses, number)
            await asyncio.sleep(0.05)
        for number, process in enumerate(members):
            await process.has(*{0, 1, 2} - {number})
        for lane, name in enumerate((b"data", b"pulse")):
            members[2].connections[0][lane].sendall(name)
            assert members[0].connections[2][lane].recv(16) == name


async def test_a_connection_for_the_next_group_waits_for_it() -> None:
    """A member may hear of the next group while another is in the present one."""
    async with processes(2) as (members, addresses):
        members[0].join(1, addresses, 0)
        members[1].join(2, addresses, 1)
        await asyncio.sleep(0.2)
        assert not members[0].connections
        members[0].join(2, addresses, 0)
        await members[0].has(1)


async def test_a_process_is_in_several_groups_at_a_time() -> None:
    """The end of one closes no connection of another, also where that one was formed before."""
    async with processes(3) as (members, addresses):
        members[0].join(1, addresses[:2], 0)
        first = members[0].meeting
        members[0].join(2, (addresses[0], addresses[2]), 0)
        members[1].join(1, addresses[:2], 1)
        await members[0].has(1)
        members[0].leave()
        assert members[0].sockets._meetings.keys() == {first.key}
        members[0].connections[1][0].sendall(b"still there")
        await members[1].has(0)
        assert members[1].connections[0][0].recv(16) == b"still there"


async def test_connections_of_an_earlier_group_and_of_strangers_are_closed() -> None:
    async with processes(2) as (members, addresses):
        members[0].join(4, addresses, 0)
        members[0].leave()
        members[0].join(5, addresses, 0)
        stranger = GroupMeeting(5, "f" * 32, addresses, 1)
        for meeting in (stranger, replace(stranger, epoch=4, secret=SECRET), replace(stranger, epoch=3)):
            connection = await asyncio.to_thread(_greet, addresses[0], meeting.greeting(0))
            assert await asyncio.to_thread(connection.recv, 1) == b""
            connection.close()
        members[1].join(5, addresses, 1)
        await members[0].has(1)


async def test_bytes_that_are_no_greeting_are_closed() -> None:
    async with processes(1) as (_, addresses):
        connection = await asyncio.to_thread(_greet, addresses[0], b"GET / HTTP/1.1\r\n\r\n" + bytes(40))
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(connection.recv, 1) == b""
        connection.close()


async def test_a_member_that_cannot_be_reached_is_lost() -> None:
    async with processes(2) as (members, addresses):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        members[1].join(1, (nobody, addresses[1]), 1)
        await members[1].hears(lambda: bool(members[1].lost))
        assert members[1].lost == [0]


async def test_who_forgets_a_group_gets_no_connection_of_it() -> None:
    async with processes(2) as (members, addresses):
        members[0].join(1, addresses, 0)
        members[0].leave()
        members[1].join(1, addresses, 1)
        await members[1].has(0)  # the system took it
        assert await asyncio.to_thread(members[1].connections[0][0].recv, 1) == b""
        assert not members[0].connections


async def test_a_process_that_ends_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has not greeted, and one that it gets after it has ended."""
    may_return = threading.Event()

    def late(address: str, greetings: Sequence[bytes]) -> list[socket.socket]:
        connections = _dialled(address, greetings)
        assert may_return.wait(5.0)
        dialled.extend(connections)
        return connections

    dialled: list[socket.socket] = []
    monkeypatch.setattr("spotwise.mesh.group_sockets._dialled", late)
    async with processes(2) as (members, addresses):
        silent = await asyncio.to_thread(_greet, addresses[0], b"")
        members[0].join(1, addresses, 0)
        members[1].join(1, addresses, 1)
        await members[0].has(1)
    assert await asyncio.to_thread(silent.recv, 1) == b""
    silent.close()
    may_return.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)
    assert [connection.fileno() for connection in dialled] == [-1, -1]


async def test_a_taken_port_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MeshError, match=f"127.0.0.1:{port}"):
            async with GroupSockets.open("127.0.0.1", port, "127.0.0.1"):
                pass


def _greet(address: str, greeting: bytes) -> socket.socket:
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=5.0)
    connection.sendall(greeting)
    return connection
