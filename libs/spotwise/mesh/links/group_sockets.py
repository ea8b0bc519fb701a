"""TCP connections among the processes of a group: two with each other process, for data and for signs of life.

A process listens as long as it lives, and may be in several groups. In each it connects to the members before it, and those
behind it connect to it. A connection begins with the handshake of `mesh/security/`. One for a group that this process does not
know yet waits for that group, unless a later one is over. Few connections may be without a handshake, and for a short time: the
oldest makes room. Where the ends have agreed on it, a connection is encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from spotwise.mesh.links.sealed_stream import sealed_stream
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.addresses import is_loopback
from spotwise.mesh.process.logs import RefusedConnections
from spotwise.mesh.security.handshake import Handshake, LinkTerms
from spotwise.mesh.security.link_security import LinkRefusedError, LinkSecurity
from spotwise.mesh.security.secrets import is_proof, proof
from spotwise.wire.framing import FrameError
from spotwise.wire.link_hello import HEAD_BYTES, PROOF_BYTES, HelloRefusal, LinkKind, encode_refusal, message_bytes

# lane, number of the calling member, epoch; the proof follows
_PLACE = struct.Struct("!BxHQ")
_ROLE = b"member"

#: Bytes of the caller's hello and of the listener's.
CALL_BYTES = message_bytes(_PLACE.size + PROOF_BYTES)
REPLY_BYTES = message_bytes(0)

DATA, PULSE = 0, 1
#: The connections of two members: for data, and for signs of life.
LANES = (DATA, PULSE)

_log = structlog.get_logger(__name__)
#: A process that does not accept a connection, or does not complete the handshake, within so long is not there.
_CONNECT_S = 5.0
#: Connections for groups to come that wait at most.
_WAITING = 256
#: Connections without a handshake.
MOST_UNGREETED = 64
#: Takes a member's number and its connections, for data and for signs of life.
Connected = Callable[[int, socket.socket, socket.socket], None]
#: A group's epoch and secret.
_Key = tuple[int, bytes]
#: Connections that others have made, by member and lane.
_Calls = dict[int, dict[int, socket.socket]]


def encode_call(handshake: Handshake, lane: int, member: int, epoch: int, secret: bytes) -> bytes:
    """Return what a member says of itself, once its handshake has met the listener's offer."""
    place = _PLACE.pack(lane, member, epoch)
    return place + proof(secret, _ROLE, handshake.binding, place)


class GroupCall:
    """A caller that has proved the mesh's secret, and says what it is for.

    The body of its hello has its group, member and lane, with a proof of the group's secret. The proof is bound to the
    handshake, which shows before that the caller is of the mesh. A listener that has not heard of the group yet verifies the
    proof when it has.

    Attributes:
        lane, member, epoch: its connection of the two, its number in the group, and the group's.
    """

    def __init__(self, handshake: Handshake, hello: bytes) -> None:
        """Verify a caller's hello; raises `LinkRefusedError`."""
        self._handshake = handshake
        self.lane = self.member = self.epoch = 0
        self._place, self._proof = handshake.verify(hello, self._decoded)

    def is_of(self, secret: bytes) -> bool:
        """Whether the caller knows a group's secret."""
        return is_proof(self._proof, secret, _ROLE, self._handshake.binding, self._place)

    def terms(self, secret: bytes) -> LinkTerms:
        """Return the terms of a connection of that group, once the listener has replied; raises `LinkRefusedError`."""
        return self._handshake.terms(secret)

    def _decoded(self, body: bytes) -> tuple[bytes, bytes]:
        place, proven = body[: _PLACE.size], body[_PLACE.size :]
        try:
            self.lane, self.member, self.epoch = _PLACE.unpack(place)
        except struct.error as error:
            raise FrameError(f"the call of a group's member cannot be read: {error}") from None
        if self.lane not in LANES:
            raise FrameError(f"a group has no connection {self.lane}")
        return place, proven


@dataclass(frozen=True, slots=True)
class GroupMeeting:
    """A group whose members connect with each other.

    Attributes:
        epoch: number of the group.
        secret: 32 hexadecimal digits, which only its members know.
        addresses: `host:port` of each member, in order.
        member: this process's number.
    """

    epoch: int
    secret: str
    addresses: tuple[str, ...]
    member: int

    @property
    def key(self) -> _Key:
        """What names the group among all."""
        return self.epoch, bytes.fromhex(self.secret)


class GroupSockets:
    """A process's end of the connections of its groups; `open` makes it."""

    def __init__(self, listener: socket.socket, host: str, security: LinkSecurity) -> None:
        self.refused = RefusedConnections("group")
        self._listener = listener
        self._security = security
        self.address = f"{host}:{listener.getsockname()[1]}"  #: where members connect
        self._calls: dict[_Key, _Calls] = {}
        self._early: dict[socket.socket, GroupCall] = {}  # for groups to come, the oldest first
        self._meetings: dict[_Key, tuple[GroupMeeting, Connected]] = {}
        self._over_epoch = 0  # the latest of a group that is over
        self._tasks: set[asyncio.Task[None]] = set()
        self._ungreeted: dict[socket.socket, asyncio.Task[None]] = {}  # the oldest first

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, bind_host: str, port: int, host: str, security: LinkSecurity | None = None
    ) -> AsyncIterator[GroupSockets]:
        """Listen at `bind_host`, known to others as `host`; port 0 takes a free one. Raises `MeshError` where it is taken.

        Args:
            security: security of the connections; by default, without a mesh's secret.
        """
        security = security or LinkSecurity()
        family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
        try:
            listener = socket.create_server((bind_host, port), family=family, backlog=_WAITING)
        except OSError as error:
            raise MeshError(f"no connections of a group can be taken at {bind_host}:{port}: {error}") from error
        listener.setblocking(False)
        if security.secret is None and not is_loopback(bind_host):
            _log.warning("group_port_without_a_secret", reason="set SPOTWISE_MESH_SECRET_FILE")
        sockets = cls(listener, host, security)
        sockets._spawn(sockets._listen())
        try:
            yield sockets
        finally:
            sockets._meetings.clear()
            for task in list(sockets._tasks):
                task.cancel()
            await asyncio.gather(*sockets._tasks, return_exceptions=True)
            for calls in sockets._calls.values():
                _close(calls)
            for connection in (*sockets._ungreeted, *sockets._early):
                connection.close()
            listener.close()

    def connect(self, meeting: GroupMeeting, connected: Connected, lost: Callable[[int], None]) -> None:
        """Connect with the other members, until `forget`.

        Args:
            meeting: members of a group that this process was not in before.
            connected: takes each member's connections, which are its own from then on.
            lost: is called with each member that cannot be reached.
        """
        self._meetings[meeting.key] = (meeting, connected)
        for member in range(meeting.member):
            self._spawn(self._call(meeting, member, connected, lost))
        for connection in [each for each, call in self._early.items() if call.epoch == meeting.epoch]:
            self._sort(connection, self._early.pop(connection))

    def forget(self, meeting: GroupMeeting) -> None:
        """Take no connections of this group any more. Idempotent."""
        if self._meetings.pop(meeting.key, None) is not None:
            self._over_epoch = max(self._over_epoch, meeting.epoch)
        for key in [key for key in self._calls if key not in self._meetings]:
            _close(self._calls.pop(key))
        for connection in [each for each, call in self._early.items() if call.epoch <= self._over_epoch]:
            del self._early[connection]
            connection.close()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, address = await loop.sock_accept(self._listener)
            self._ungreeted[connection] = self._spawn(self._greet(connection, address[0]))
            if len(self._ungreeted) > MOST_UNGREETED:
                oldest = next(iter(self._ungreeted))
                self.refused.count("too_many_waiting", "too many connections wait for their greeting", address[0])
                self._ungreeted.pop(oldest).cancel()
                oldest.close()

    async def _greet(self, connection: socket.socket, peer_host: str) -> None:
        loop = asyncio.get_running_loop()
        handshake = Handshake(self._security, LinkKind.GROUP, peer_host)
        try:
            connection.setblocking(False)
            async with asyncio.timeout(_CONNECT_S):
                await loop.sock_sendall(connection, handshake.offer())
                call = GroupCall(handshake, await _received(connection, CALL_BYTES))
                self._require_welcome(call)
                await loop.sock_sendall(connection, handshake.hello(b""))
        except (OSError, TimeoutError, LinkRefusedError) as error:
            if self._ungreeted.pop(connection, None) is not None:
                self.refused.count(_reason_of(error), str(error) or type(error).__name__, peer_host)
            if isinstance(error, LinkRefusedError):
                with contextlib.suppress(OSError):  # a courtesy: it does not wait
                    connection.send(encode_refusal(error.refusal, REPLY_BYTES))
            connection.close()
            return
        self._ungreeted.pop(connection, None)
        self._sort(connection, call)

    def _require_welcome(self, call: GroupCall) -> None:
        """Raise where a connection is of no group that this process is in, or may be in later."""
        if self._secret_of(call) is None and (
            call.epoch <= self._over_epoch or any(epoch == call.epoch for epoch, _ in self._meetings)
        ):
            raise LinkRefusedError(HelloRefusal.NO_SUCH_GROUP)

    def _secret_of(self, call: GroupCall) -> bytes | None:
        secrets = (secret for epoch, secret in self._meetings if epoch == call.epoch)
        return next((secret for secret in secrets if call.is_of(secret)), None)

    def _sort(self, connection: socket.socket, call: GroupCall) -> None:
        """Give a connection to its group, or keep it for one to come."""
        try:
            self._require_welcome(call)
            secret = self._secret_of(call)
            if secret is None:
                self._keep(connection, call)
                return
            connection = _user_end(connection, call.terms(secret))
        except (OSError, LinkRefusedError) as error:
            self.refused.count(_reason_of(error), str(error))
            connection.close()
            return
        key = call.epoch, secret
        lanes = self._calls.setdefault(key, {}).setdefault(call.member, {})
        if call.lane in lanes:
            lanes[call.lane].close()
        lanes[call.lane] = connection
        self._hand_over(key)

    def _keep(self, connection: socket.socket, call: GroupCall) -> None:
        self._early[connection] = call
        if len(self._early) > _WAITING:
            oldest = next(iter(self._early))
            self.refused.count("too_many_early", "too many connections wait for their group")
            del self._early[oldest]
            oldest.close()

    def _hand_over(self, key: _Key) -> None:
        meeting, connected = self._meetings[key]
        calls = self._calls[key]
        for member in [member for member, lanes in calls.items() if len(lanes) == len(LANES)]:
            lanes = calls.pop(member)
            if meeting.member < member < len(meeting.addresses):
                connected(member, lanes[DATA], lanes[PULSE])
            else:
                _close({member: lanes})

    async def _call(
        self, meeting: GroupMeeting, member: int, connected: Connected, lost: Callable[[int], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        dialling = loop.run_in_executor(None, _dialled, self._security, meeting, member)
        try:
            data, pulse = await asyncio.shield(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(_close_dialled)
            raise
        except (OSError, ValueError, LinkRefusedError) as error:
            _log.warning("group_member_unreachable", address=meeting.addresses[member], reason=str(error))
            if meeting.key in self._meetings:
                lost(member)
            return
        if meeting.key in self._meetings:
            connected(member, data, pulse)
        else:
            data.close()
            pulse.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _received(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes of a connection; raises `OSError` where it ends before."""
    received = b""
    while len(received) < size:
        part = await asyncio.get_running_loop().sock_recv(connection, size - len(received))
        if not part:
            raise ConnectionResetError(f"the caller left after {len(received)} of {size} bytes")
        received += part
    return received


def _dialled(security: LinkSecurity, meeting: GroupMeeting, member: int) -> list[socket.socket]:
    """Return the connections to a member. Called on a thread."""
    host, _, port = meeting.addresses[member].rpartition(":")
    epoch, secret = meeting.key
    connections: list[socket.socket] = []
    try:
        for lane in LANES:
            deadline_s = time.monotonic() + _CONNECT_S
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
            connections.append(connection)
            handshake = Handshake(security, LinkKind.GROUP, connection.getpeername()[0])
            handshake.meet(_read(connection, HEAD_BYTES, deadline_s))
            connection.sendall(handshake.hello(encode_call(handshake, lane, meeting.member, epoch, secret)))
            handshake.verify(_read(connection, REPLY_BYTES, deadline_s), bytes)
            connections[-1] = _user_end(connection, handshake.terms(secret))
    except (OSError, ValueError, LinkRefusedError):
        for connection in connections:
            connection.close()
        raise
    return connections


def _read(connection: socket.socket, size: int, deadline_s: float) -> bytes:
    """Return the next bytes of a connection that blocks; raises `OSError` where it ends before, or is too slow."""
    received = b""
    while len(received) < size:
        if (left_s := deadline_s - time.monotonic()) <= 0:
            raise TimeoutError("the member did not complete the handshake in time")
        connection.settimeout(left_s)
        if not (part := connection.recv(size - len(received))):
            raise ConnectionResetError("the member has closed the connection")
        received += part
    return received


def _user_end(connection: socket.socket, terms: LinkTerms) -> socket.socket:
    if terms.sends.seal is None or terms.receives.seal is None:
        return connection
    return sealed_stream(connection, terms.sends.seal, terms.receives.seal)


def _reason_of(error: Exception) -> str:
    if isinstance(error, LinkRefusedError):
        return error.refusal.name.lower()
    return "timed_out" if isinstance(error, TimeoutError) else "lost"


def _close_dialled(dialling: asyncio.Future[list[socket.socket]]) -> None:
    if dialling.exception() is None:
        for connection in dialling.result():
            connection.close()


def _close(calls: _Calls) -> None:
    for lanes in calls.values():
        for connection in lanes.values():
            connection.close()
