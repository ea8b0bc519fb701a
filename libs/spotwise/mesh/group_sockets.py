"""TCP connections among the processes of a group: two with each other process, for data and for signs of life.

A process listens as long as it lives, and may be in several groups. In each it connects to the members before it, and those
behind it connect to it. A connection begins with the group's epoch, its secret and who calls; one for a group that this process
has not heard of waits for that group, unless a later one is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from spotwise.mesh.ports import MeshError

_log = structlog.get_logger(__name__)

#: Epoch, number of the calling member, lane, secret.
_GREETING = struct.Struct("!QHB16s")
_DATA, _PULSE = 0, 1
_LANES = (_DATA, _PULSE)
#: A process that does not accept a connection, or does not say what it is for, within so long is not there.
_CONNECT_S = 5.0
#: Connections for groups to come that wait at most.
_WAITING = 256

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
        epoch: of the group.
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
        """What its connections begin with."""
        return self.epoch, bytes.fromhex(self.secret)

    def greeting(self, lane: int) -> bytes:
        """Return the first bytes of a connection of this member."""
        return _GREETING.pack(self.epoch, self.member, lane, bytes.fromhex(self.secret))


class GroupSockets:
    """A process's end of the connections of its groups; `open` makes it."""

    def __init__(self, listener: socket.socket, host: str) -> None:
        self._listener = listener
        self.address = f"{host}:{listener.getsockname()[1]}"  #: where members connect
        self._calls: dict[_Key, _Calls] = {}
        self._meetings: dict[_Key, tuple[GroupMeeting, Connected]] = {}
        self._over_epoch = 0  # the latest of a group that is over
        self._tasks: set[asyncio.Task[None]] = set()
        self._ungreeted: set[socket.socket] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, bind_host: str, port: int, host: str) -> AsyncIterator[GroupSockets]:
        """Listen at `bind_host`, known to others as `host`; port 0 takes a free one. Raises `MeshError` where it is taken."""
        family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
        try:
            listener = socket.create_server((bind_host, port), family=family, backlog=_WAITING)
        except OSError as error:
            raise MeshError(f"no connections of a group can be taken at {bind_host}:{port}: {error}") from error
        listener.setblocking(False)
        sockets = cls(listener, host)
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
            for connection in sockets._ungreeted:
                connection.close()
            listener.close()

    def connect(self, meeting: GroupMeeting, connected: Connected, lost: Callable[[int], None]) -> None:
        """Connect with the other members, until `forget`.

        Args:
            meeting: of a group that this process was not in before.
            connected: takes each member's connections, which are its own from then on.
            lost: is called with each member that cannot be reached.
        """
        self._meetings[meeting.key] = (meeting, connected)
        for member in range(meeting.member):
            self._spawn(self._call(meeting, member, connected, lost))
        self._hand_over(meeting.key)

    def forget(self, meeting: GroupMeeting) -> None:
        """Take no connections of this group any more. Idempotent."""
        if self._meetings.pop(meeting.key, None) is not None:
            self._over_epoch = max(self._over_epoch, meeting.epoch)
        for key in [key for key in self._calls if key[0] <= self._over_epoch and key not in self._meetings]:
            _close(self._calls.pop(key))

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            self._ungreeted.add(connection)
            self._spawn(self._greeted(connection))

    async def _greeted(self, connection: socket.socket) -> None:
        greeting = b""
        try:
            connection.setblocking(False)
            async with asyncio.timeout(_CONNECT_S):
                while len(greeting) < _GREETING.size:
                    part = await asyncio.get_running_loop().sock_recv(connection, _GREETING.size - len(greeting))
                    if not part:
                        break
                    greeting += part
            epoch, member, lane, secret = _GREETING.unpack(greeting)
            if lane not in _LANES or not self._is_welcome((epoch, secret)):
                raise ValueError(f"no group of epoch {epoch} is expected")
        except (OSError, TimeoutError, struct.error, ValueError) as error:
            _log.info("group_connection_refused", reason=str(error) or type(error).__name__)
            self._ungreeted.discard(connection)
            connection.close()
            return
        self._ungreeted.discard(connection)
        lanes = self._calls.setdefault((epoch, secret), {}).setdefault(member, {})
        if lane in lanes:
            lanes[lane].close()
        lanes[lane] = connection
        self._hand_over((epoch, secret))

    def _is_welcome(self, key: _Key) -> bool:
        if key in self._meetings:
            return True
        is_known = key[0] <= self._over_epoch or any(key[0] == epoch for epoch, _ in self._meetings)
        return not is_known and sum(map(len, self._calls.values())) < _WAITING

    def _hand_over(self, key: _Key) -> None:
        if key not in self._meetings:
            return
        meeting, connected = self._meetings[key]
        calls = self._calls.get(key, {})
        for member in [member for member, lanes in calls.items() if len(lanes) == len(_LANES)]:
            lanes = calls.pop(member)
            if meeting.member < member < len(meeting.addresses):
                connected(member, lanes[_DATA], lanes[_PULSE])
            else:
                _close({member: lanes})

    async def _call(
        self, meeting: GroupMeeting, member: int, connected: Connected, lost: Callable[[int], None]
    ) -> None:
        greetings = [meeting.greeting(lane) for lane in _LANES]
        dialling = asyncio.get_running_loop().run_in_executor(None, _dialled, meeting.addresses[member], greetings)
        try:
            data, pulse = await asyncio.shield(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(_close_dialled)
            raise
        except (OSError, ValueError) as error:
            _log.warning("group_member_unreachable", address=meeting.addresses[member], reason=str(error))
            if meeting.key in self._meetings:
                lost(member)
            return
        if meeting.key in self._meetings:
            connected(member, data, pulse)
        else:
            data.close()
            pulse.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _dialled(address: str, greetings: Sequence[bytes]) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    connections: list[socket.socket] = []
    try:
        for greeting in greetings:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
            connections.append(connection)
            connection.sendall(greeting)
    except (OSError, ValueError):
        for connection in connections:
            connection.close()
        raise
    return connections


def _close_dialled(dialling: asyncio.Future[list[socket.socket]]) -> None:
    if dialling.exception() is None:
        for connection in dialling.result():
            connection.close()


def _close(calls: _Calls) -> None:
    for lanes in calls.values():
        for connection in lanes.values():
            connection.close()
