"""What a group's process does with calls that no honest member makes: recorded, noise, cut off, stalled, of another version."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.mesh.links.group_sockets import CALL_BYTES, REPLY_BYTES, GroupCall, GroupMeeting, _dialled, encode_call
from spotwise.mesh.security.handshake import Handshake
from spotwise.mesh.security.link_security import LinkRefusedError, LinkSecurity
from spotwise.wire import framing
from spotwise.wire.link_hello import HEAD_BYTES, HelloRefusal, LinkKind, decode_refusal
from tests.unit.mesh.group_processes import MESH, SECRET, all_of, connected, processes


def _caller(key: tuple[int, bytes], offer: bytes, lane: int = 0) -> tuple[Handshake, bytes]:
    handshake = Handshake(LinkSecurity(MESH), LinkKind.GROUP, "127.0.0.1")
    handshake.meet(offer)
    return handshake, handshake.hello(encode_call(handshake, lane, 1, *key))


async def test_a_recorded_call_is_refused() -> None:
    """The offer is another one each time, so that the listener knows no secret that was sent."""
    async with processes(1, LinkSecurity(MESH)) as (members, addresses):
        members[0].join(1, (*addresses, "unused"), 0)
        first, second = [await asyncio.to_thread(connected, addresses[0]) for _ in range(2)]
        caller, call = _caller(members[0].meeting.key, await asyncio.to_thread(all_of, first, HEAD_BYTES))
        first.sendall(call)
        assert caller.verify(await asyncio.to_thread(all_of, first, REPLY_BYTES), bytes) == b""
        await asyncio.to_thread(all_of, second, HEAD_BYTES)
        second.sendall(call)
        refusal = await asyncio.to_thread(all_of, second, REPLY_BYTES + 1)
        assert decode_refusal(refusal) is HelloRefusal.WRONG_SECRET
        assert len(refusal) == REPLY_BYTES  # and the connection is closed
        assert members[0].sockets.refused.by_reason == {"wrong_secret": 1}
        assert bytes.fromhex(SECRET) not in call
        first.close()
        second.close()


def test_a_proof_of_a_groups_secret_is_of_one_connection() -> None:
    """A member of the mesh that is not of the group cannot use one that it has received."""
    secret, other = b"s" * 16, b"o" * 16
    listener, again = [Handshake(LinkSecurity(MESH), LinkKind.GROUP, "127.0.0.1") for _ in range(2)]
    _, call = _caller((3, secret), listener.offer(), lane=1)
    heard = GroupCall(listener, call)
    assert (heard.lane, heard.member, heard.epoch) == (1, 1, 3)
    assert heard.is_of(secret) and not heard.is_of(other)
    thief = Handshake(LinkSecurity(MESH), LinkKind.GROUP, "127.0.0.1")
    thief.meet(again.offer())
    stolen = call[HEAD_BYTES : CALL_BYTES - 32]
    assert not GroupCall(again, thief.hello(stolen)).is_of(secret)


def test_a_call_that_names_no_connection_of_a_group_is_refused() -> None:
    """Although its sender has proved the mesh's secret; likewise one that is too short."""
    for body in (None, b"", bytes(11)):
        listener = Handshake(LinkSecurity(MESH), LinkKind.GROUP, "127.0.0.1")
        caller = Handshake(LinkSecurity(MESH), LinkKind.GROUP, "127.0.0.1")
        caller.meet(listener.offer())
        call = caller.hello(encode_call(caller, 2, 1, 1, b"s" * 16) if body is None else body)
        with pytest.raises(LinkRefusedError) as caught:
            GroupCall(listener, call)
        assert caught.value.refusal is HelloRefusal.MALFORMED


@pytest.mark.parametrize("said", [0, 1, CALL_BYTES - 1])
async def test_a_caller_that_stalls_is_refused(said: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Having said nothing, or a part of its hello; one that leaves is lost."""
    monkeypatch.setattr("spotwise.mesh.links.group_sockets._CONNECT_S", 0.2)
    async with processes(1, LinkSecurity(MESH)) as (members, addresses):
        members[0].join(1, (*addresses, "unused"), 0)
        stalled, left = [await asyncio.to_thread(connected, addresses[0]) for _ in range(2)]
        _, call = _caller(members[0].meeting.key, await asyncio.to_thread(all_of, stalled, HEAD_BYTES))
        stalled.sendall(call[:said])
        left.sendall(call[:said])
        left.shutdown(socket.SHUT_WR)
        assert await asyncio.to_thread(all_of, stalled, 1) == b""
        assert members[0].sockets.refused.by_reason == {"timed_out": 1, "lost": 1}
        assert not members[0].sockets._ungreeted
        stalled.close()
        left.close()


@pytest.mark.parametrize("trickles", [False, True])
async def test_a_listener_that_stalls_holds_its_caller_for_a_short_time(
    trickles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent, or with a byte at a time that never becomes a message."""
    monkeypatch.setattr("spotwise.mesh.links.group_sockets._CONNECT_S", 0.3)

    def trickle() -> None:
        connection, _ = server.accept()
        with contextlib.suppress(OSError):
            while trickles and not over.wait(0.02):
                connection.send(b"S")
        over.wait(10.0)
        connection.close()

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle)
        thread.start()
        meeting = GroupMeeting(1, SECRET, (f"127.0.0.1:{server.getsockname()[1]}", "unused"), 1)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(_dialled, LinkSecurity(MESH), meeting, 0)
        over.set()
        await asyncio.to_thread(thread.join)


async def test_a_listener_of_another_version_is_named() -> None:
    """An operator sees which of the two is old."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting = GroupMeeting(1, SECRET, (f"127.0.0.1:{server.getsockname()[1]}", "unused"), 1)
        dialling = asyncio.create_task(asyncio.to_thread(_dialled, LinkSecurity(MESH), meeting, 0))
        connection, _ = await asyncio.to_thread(server.accept)
        body = bytearray(Handshake(LinkSecurity(MESH), LinkKind.GROUP, "127.0.0.1").offer()[: -framing.SEAL_BYTES])
        body[4] += 1
        connection.sendall(framing.seal(bytes(body)))
        with pytest.raises(LinkRefusedError, match=f"version {framing.VERSION + 1} "):
            await dialling
        connection.close()


@given(st.binary(max_size=3 * CALL_BYTES))
def test_noise_is_no_call(noise: bytes) -> None:
    """Of the right length it is refused, whatever it is; so are an offer and a reply."""
    listener, caller = [Handshake(LinkSecurity(MESH), LinkKind.GROUP, "127.0.0.1") for _ in range(2)]
    offer = listener.offer()
    with pytest.raises(LinkRefusedError):
        GroupCall(listener, noise.ljust(CALL_BYTES, b"\0")[:CALL_BYTES])
    with pytest.raises(LinkRefusedError):
        caller.meet(noise.ljust(HEAD_BYTES, b"\0")[:HEAD_BYTES])
    caller.meet(offer)
    caller.hello(encode_call(caller, 0, 1, 1, b"s" * 16))
    with pytest.raises(LinkRefusedError):
        caller.verify(noise.ljust(REPLY_BYTES, b"\0")[:REPLY_BYTES], bytes)


async def test_bytes_that_are_no_call_are_closed() -> None:
    async with processes(1) as (members, addresses):
        for noise in (b"GET / HTTP/1.1\r\n\r\n" + bytes(200), random.Random(1).randbytes(5000), b"SWHI" + bytes(300)):
            connection = await asyncio.to_thread(connected, addresses[0], noise)
            with contextlib.suppress(ConnectionResetError):
                await asyncio.to_thread(all_of, connection, HEAD_BYTES + REPLY_BYTES + 1)
            connection.close()
        assert members[0].sockets.refused.by_reason == {"malformed": 3}
