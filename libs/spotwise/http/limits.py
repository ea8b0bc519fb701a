"""Limits of the gateway's connections: bytes, time, and number."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

#: Connections beyond the limit that are answered 503, as a share of the limit; further ones are closed without an answer.
REFUSED_SHARE = 0.25
#: Files of the gateway that are no clients' connections, generously.
_OTHER_FILES = 128


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of connections.

    Attributes:
        max_connections: open at the same time; further ones take the place of idle ones, or receive a 503.
        max_header_bytes: bytes of a request's line and headers; also of what is between two parts of its body.
        max_header_fields: header fields of a request.
        max_pipelined: requests that wait for the answer to an earlier one of their connection.
        header_timeout_s: from a request's first byte, or from the connection's beginning, to the end of its headers.
        body_timeout_s: from there to the end of its body.
        write_timeout_s: a client that takes less than `min_taken_bytes` from a full buffer in this time is cut off.
        min_taken_bytes: see there; a client that takes a byte now and then takes nothing.
    """

    max_connections: int = 4096
    max_header_bytes: int = 64 << 10
    max_header_fields: int = 256
    max_pipelined: int = 16
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    min_taken_bytes: int = 4096


def within_open_files(max_connections: int) -> int:
    """Return how many connections there may be, so that files are left for the mesh and for turning clients away."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files == resource.RLIM_INFINITY:
        return max_connections
    return max(1, min(max_connections, int((open_files - _OTHER_FILES) / (1 + REFUSED_SHARE))))


class IdleConnection(Protocol):
    """A connection without a request."""

    def leave(self) -> None:
        """Close it."""


@dataclass(slots=True)
class Places:
    """Which connections a new one could take the place of, shared by all of a server.

    Attributes:
        limits: the bounds.
        count_error: receives the code of every error that is answered below the application.
    """

    limits: HttpLimits
    count_error: Callable[[str], None]
    _idle: dict[IdleConnection, None] = field(default_factory=dict)

    def idle(self, connection: IdleConnection) -> None:
        """Note that a connection has no request from now on."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def busy(self, connection: IdleConnection) -> None:
        """Note that it has one, or is closed."""
        self._idle.pop(connection, None)

    def close_longest_idle(self) -> bool:
        """Close the connection that has been idle for longest; return whether there was one."""
        for connection in self._idle:
            self.busy(connection)
            connection.leave()
            return True
        return False
