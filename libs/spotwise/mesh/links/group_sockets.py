"""TCP connections among the processes of a group: two with each other process, for data and for signs of life.

A process listens as long as it lives, and may be in several groups. In each it connects to the members before it, and those
behind it connect to it. A connection begins with the greetings of `group_greeting.py`. One for a group that this process does
not know yet waits for that group, unless a later one is over. Few connections may lack a greeting, and for a short time: the
oldest makes room. Where the ends have agreed on it, a connection is encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from spotwise.mesh.links.group_greeting import (
    CHALLENGE_BYTES,
    DATA,
    GREETING_BYTES,
    LANES,
    PULSE,
    WELCOME_BYTES,
    GroupCaller,
    GroupListener,
    StreamKeys,
)
from spotwise.mesh.links.link_handshake import LinkRefusedError, LinkSecurity
from spotwise.mesh.links.sealed_stream import sealed_stream
from spotwise.mesh.links.ucx_loopback import is_loopback
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.logs import RefusedConnections

_log = structlog.get_logger(__name__)

#: A process that does not accept a connection, or does not say what it is for, within so long is not there.
_CONNECT_S = 5.0
#: Connections for groups to come that wait at most.
_WAITING = 256
#: Connections without a greeting.
MOST_UNGREETED = 64

#: Takes a member's number and its connections, for data and for signs of life.
Connected = Callable[[int, socket.socket, socket.socket], None]
#: A group's epoch and secret.
_Key = tuple[int, bytes]
#: Connections that others have made, by member and lane.
_Calls = dict[int, dict[int, socket.socket]]


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
        self._early: dict[socket.socket, GroupListener] = {}  # for groups to come, the oldest first
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
        for connection in [each for each, greeting in self._early.items() if greeting.epoch == meeting.epoch]:
            self._sort(connection, self._early.pop(connection))

    def forget(self, meeting: GroupMeeting) -> None:
        """Take no connections of this group any more. Idempotent."""
        if self._meetings.pop(meeting.key, None) is not None:
            self._over_epoch = max(self._over_epoch, meeting.epoch)
        for key in [key for key in self._calls if key not in self._meetings]:
            _close(self._calls.pop(key))
        for connection in [each for each, greeting in self._early.items() if greeting.epoch <= self._over_epoch]:
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
        greeting = GroupListener(self._security, peer_host)
        try:
            connection.setblocking(False)
            async with asyncio.timeout(_CONNECT_S):
                await loop.sock_sendall(connection, greeting.challenge())
                welcome = greeting.accept(await _received(connection, GREETING_BYTES))
                self._require_welcome(greeting)
                await loop.sock_sendall(connection, welcome)
        except (OSError, TimeoutError, LinkRefusedError) as error:
            if self._ungreeted.pop(connection, None) is not None:
                self.refused.count(_reason_of(error), str(error) or type(error).__name__, peer_host)
            connection.close()
            return
        self._ungreeted.pop(connection, None)
        self._sort(connection, greeting)

    def _require_welcome(self, greeting: GroupListener) -> None:
        """Raise where a connection is of no group that this process is in, or may be in later."""
        if self._secret_of(greeting) is None and (
            greeting.epoch <= self._over_epoch or any(epoch == greeting.epoch for epoch, _ in self._meetings)
        ):
            raise ConnectionRefusedError(f"no group of epoch {greeting.epoch} is expected")

    def _secret_of(self, greeting: GroupListener) -> bytes | None:
        secrets = (secret for epoch, secret in self._meetings if epoch == greeting.epoch)
        return next((secret for secret in secrets if greeting.is_of(secret)), None)

    def _sort(self, connection: socket.socket, greeting: GroupListener) -> None:
        """Give a connection to its group, or keep it for one to come."""
        try:
            self._require_welcome(greeting)
            secret = self._secret_of(greeting)
            if secret is None:
                self._keep(connection, greeting)
                return
            connection = _user_end(connection, greeting.keys(secret))
        except (OSError, LinkRefusedError) as error:
            self.refused.count(_reason_of(error), str(error))
            connection.close()
            return
        key = greeting.epoch, secret
        lanes = self._calls.setdefault(key, {}).setdefault(greeting.member, {})
        if greeting.lane in lanes:
            lanes[greeting.lane].close()
        lanes[greeting.lane] = connection
        self._hand_over(key)

    def _keep(self, connection: socket.socket, greeting: GroupListener) -> None:
        self._early[connection] = greeting
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
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
            connections.append(connection)
            caller = GroupCaller(security, connection.getpeername()[0], epoch, secret, meeting.member, lane)
            connection.sendall(caller.answer(_read(connection, CHALLENGE_BYTES)))
            connections[-1] = _user_end(connection, caller.finish(_read(connection, WELCOME_BYTES)))
    except (OSError, ValueError, LinkRefusedError):
        for connection in connections:
            connection.close()
        raise
    return connections


def _read(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes of a connection that blocks; raises `OSError` where it ends before."""
    received = b""
    while len(received) < size:
        if not (part := connection.recv(size - len(received))):
            raise ConnectionResetError(
                "the member has closed the connection: it is not in the group, or its secret differs"
            )
        received += part
    return received


def _user_end(connection: socket.socket, keys: StreamKeys | None) -> socket.socket:
    return connection if keys is None else sealed_stream(connection, keys)


def _reason_of(error: Exception) -> str:
    if isinstance(error, LinkRefusedError):
        return error.refusal.name.lower()
    if isinstance(error, TimeoutError):
        return "timed_out"
    return "no_such_group" if isinstance(error, ConnectionRefusedError) else "lost"


def _close_dialled(dialling: asyncio.Future[list[socket.socket]]) -> None:
    if dialling.exception() is None:
        for connection in dialling.result():
            connection.close()


def _close(calls: _Calls) -> None:
    for lanes in calls.values():
        for connection in lanes.values():
            connection.close()
