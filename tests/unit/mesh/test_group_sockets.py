"""Processes of a group find each other over TCP, in whatever order they come; strangers and earlier groups do not get in."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from dataclasses import replace

import pytest

from spotwise.mesh.links.group_sockets import MOST_UNGREETED, GroupMeeting, GroupSockets, _dialled
from spotwise.mesh.links.sealed_stream import sealed_stream
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.security.link_security import LinkEncryption, LinkRefusedError, LinkSecurity
from spotwise.mesh.security.seal import LinkSeal
from spotwise.mesh.security.secrets import MeshSecret
from spotwise.wire.link_hello import HEAD_BYTES
from tests.unit.mesh.group_processes import MESH, SECRET, all_of, connected, processes


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
    """And counted; the caller knows at once."""
    async with processes(2) as (members, addresses):
        members[0].join(4, addresses, 0)
        members[0].leave()
        members[0].join(5, addresses, 0)
        stranger = GroupMeeting(5, "f" * 32, addresses, 1)
        for meeting in (stranger, replace(stranger, epoch=4, secret=SECRET), replace(stranger, epoch=3)):
            with pytest.raises(LinkRefusedError, match="not in this group"):
                await asyncio.to_thread(_dialled, LinkSecurity(), meeting, 0)
        assert members[0].sockets.refused.by_reason == {"no_such_group": 3}
        members[1].join(5, addresses, 1)
        await members[0].has(1)


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        (LinkSecurity(MESH), LinkSecurity(MeshSecret(b"n" * 32)), "SPOTWISE_MESH_SECRET_FILE"),
        (LinkSecurity(MESH), LinkSecurity(), "SPOTWISE_MESH_SECRET_FILE"),
        (LinkSecurity(MESH, LinkEncryption.ON), LinkSecurity(MESH, LinkEncryption.OFF), "SPOTWISE_LINK_ENCRYPTION"),
    ],
    ids=["another secret", "no secret", "encryption differs"],
)
async def test_who_differs_in_secret_or_encryption_does_not_get_in(
    mine: LinkSecurity, theirs: LinkSecurity, why: str
) -> None:
    """Although it knows the group's secret; the other way round, too. The caller learns why."""
    for listens, calls in ((mine, theirs), (theirs, mine)):
        async with processes(1, listens) as (members, addresses):
            members[0].join(1, (*addresses, "unused"), 0)
            meeting = replace(members[0].meeting, member=1)
            with pytest.raises(LinkRefusedError, match=why):
                await asyncio.to_thread(_dialled, calls, meeting, 0)
            assert not members[0].connections


async def test_connections_that_say_nothing_are_few() -> None:
    async with processes(2) as (members, addresses):
        members[0].join(1, addresses, 0)
        silent = [await asyncio.to_thread(connected, addresses[0]) for _ in range(MOST_UNGREETED + 10)]
        await members[0].hears(lambda: members[0].sockets.refused.total == 10)
        assert len(members[0].sockets._ungreeted) == MOST_UNGREETED
        members[1].join(1, addresses, 1)
        await members[0].has(1)
        for connection in silent:
            connection.close()


async def test_connections_for_groups_to_come_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room for a new one, and is closed."""
    monkeypatch.setattr("spotwise.mesh.links.group_sockets._WAITING", 4)
    async with processes(2) as (members, addresses):
        waiting = []
        for epoch in range(3, 6):
            meeting = GroupMeeting(epoch, SECRET, addresses, 1)
            waiting += await asyncio.to_thread(_dialled, LinkSecurity(), meeting, 0)
        await members[0].hears(lambda: members[0].sockets.refused.by_reason == {"too_many_early": 2})
        for connection in waiting[:2]:
            assert await asyncio.to_thread(connection.recv, 1) == b""
        members[0].join(5, addresses, 0)
        await members[0].has(1)
        for connection in waiting:
            connection.close()


async def test_encrypted_connections_carry_everything_and_end_with_it() -> None:
    """Bytes of any number arrive in order, none of them in the clear; where one end closes, the other one ends."""
    async with processes(2, LinkSecurity(MESH, LinkEncryption.ON)) as (members, addresses):
        members[0].join(1, addresses, 0)
        members[1].join(1, addresses, 1)
        await members[0].has(1)
        await members[1].has(0)
        data = random.Random(7).randbytes(3 << 20)
        for lane in (0, 1):
            there, here = members[1].connections[0][lane], members[0].connections[1][lane]
            assert there.family == socket.AF_UNIX
            sending = asyncio.create_task(asyncio.to_thread(there.sendall, data))
            assert await asyncio.to_thread(all_of, here, len(data)) == data
            await sending
            here.sendall(b"back")
            assert await asyncio.to_thread(all_of, there, 4) == b"back"
            there.sendall(b"the last words")
            there.shutdown(socket.SHUT_RDWR)
            assert await asyncio.to_thread(all_of, here, 14) == b"the last words"
            assert await asyncio.to_thread(here.recv, 1) == b""
    await asyncio.to_thread(_ended, "group-seal", "group-open")


@pytest.mark.parametrize("place", [2, 40])
async def test_a_record_that_is_changed_on_the_way_ends_an_encrypted_connection(place: int) -> None:
    """Its length, or what is in it; nothing of it is read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        tcp = socket.create_connection(server.getsockname())
        raw, _ = server.accept()
    user = sealed_stream(tcp, _seal(b"1"), _seal(b"2"))
    user.sendall(b"x" * 100)
    record = bytearray(await asyncio.to_thread(all_of, raw, 120))
    assert b"xxxx" not in record
    with socket.create_server(("127.0.0.1", 0)) as server:
        back = socket.create_connection(server.getsockname())
        end, _ = server.accept()
    reader = sealed_stream(end, _seal(b"2"), _seal(b"1"))
    reader.settimeout(5.0)
    record[place] ^= 1
    back.sendall(record)
    back.shutdown(socket.SHUT_WR)
    assert await asyncio.to_thread(reader.recv, 1) == b""
    for each in (raw, user, back, reader):
        each.close()
    await asyncio.to_thread(_ended, "group-seal", "group-open")


def _seal(key: bytes) -> LinkSeal:
    return LinkSeal(32 * key, 32 * key)


async def test_a_member_that_cannot_be_reached_is_lost() -> None:
    async with processes(2) as (members, addresses):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        members[1].join(1, (nobody, addresses[1]), 1)
        await members[1].hears(lambda: bool(members[1].lost))
        assert members[1].lost == [0]


async def test_who_forgets_a_group_gets_no_connection_of_it() -> None:
    """Who calls knows that it is lost."""
    async with processes(2) as (members, addresses):
        members[0].join(1, addresses, 0)
        members[0].leave()
        members[1].join(1, addresses, 1)
        await members[1].hears(lambda: members[1].lost == [0])
        assert not members[0].connections
        assert not members[1].connections


async def test_a_process_that_ends_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has not greeted, and one that it gets after it has ended."""
    may_return = threading.Event()

    def late(security: LinkSecurity, meeting: GroupMeeting, member: int) -> list[socket.socket]:
        connections = _dialled(security, meeting, member)
        assert may_return.wait(5.0)
        dialled.extend(connections)
        return connections

    dialled: list[socket.socket] = []
    monkeypatch.setattr("spotwise.mesh.links.group_sockets._dialled", late)
    async with processes(2) as (members, addresses):
        silent = await asyncio.to_thread(connected, addresses[0])
        members[0].join(1, addresses, 0)
        members[1].join(1, addresses, 1)
        await members[0].has(1)
    assert len(await asyncio.to_thread(all_of, silent, HEAD_BYTES + 1)) == HEAD_BYTES
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


def _ended(*names: str) -> None:
    deadline_s = time.monotonic() + 10.0
    while any(thread.name in names for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, threading.enumerate()
        time.sleep(0.01)
