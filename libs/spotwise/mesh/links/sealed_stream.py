"""Encrypts a TCP connection for a user that only reads and writes a socket: it gets one end of a pair, and two threads carry
what it writes and reads over the connection, in records that are sealed in order.

A record that is changed, repeated or left out ends the stream. Its length goes before it in the clear, and is bound to it. The
end of the connection is the end of the stream.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from spotwise.mesh.security.seal import SEALED_BYTES, LinkSeal
from spotwise.wire.framing import FrameError

_LENGTH = struct.Struct("!I")
_RECORD_BYTES = 256 << 10


def sealed_stream(connection: socket.socket, sends: LinkSeal, receives: LinkSeal) -> socket.socket:
    """Return the user's end of a connection that is encrypted from now on; the connection ends with it."""
    connection.setblocking(True)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    inner, outer = socket.socketpair()
    ends = _Ends(inner, connection)
    for name, carry, seal in (("seal", _seal, sends), ("open", _open, receives)):
        threading.Thread(target=_carry, args=(carry, ends, seal), name=f"group-{name}", daemon=True).start()
    return outer


class _Ends:
    """Both ends that the threads have; closed by the last of the two."""

    def __init__(self, inner: socket.socket, connection: socket.socket) -> None:
        self.inner, self.connection = inner, connection
        self._left = 2
        self._lock = threading.Lock()

    def leave(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        for each in (self.inner, self.connection):
            if is_last:
                each.close()
            else:
                # What was sent before still arrives; the other thread's reads end.
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


def _carry(carry: Callable[[_Ends, LinkSeal], None], ends: _Ends, seal: LinkSeal) -> None:
    try:
        carry(ends, seal)
    except (OSError, FrameError):
        pass  # the user sees its end
    finally:
        ends.leave()


def _seal(ends: _Ends, seal: LinkSeal) -> None:
    plain = memoryview(bytearray(_RECORD_BYTES))
    record = memoryview(bytearray(_LENGTH.size + _RECORD_BYTES + SEALED_BYTES))
    while size := ends.inner.recv_into(plain):
        end = _LENGTH.size + size + SEALED_BYTES
        _LENGTH.pack_into(record, 0, size)
        seal.seal_next(plain[:size], record[_LENGTH.size : end], record[: _LENGTH.size])
        ends.connection.sendall(record[:end])


def _open(ends: _Ends, seal: LinkSeal) -> None:
    plain = memoryview(bytearray(_RECORD_BYTES))
    record = memoryview(bytearray(_LENGTH.size + _RECORD_BYTES + SEALED_BYTES))
    while _filled(ends.connection, record[: _LENGTH.size]):
        (size,) = _LENGTH.unpack_from(record)
        if not 0 < size <= _RECORD_BYTES:
            return
        sealed = record[_LENGTH.size : _LENGTH.size + size + SEALED_BYTES]
        if not _filled(ends.connection, sealed):
            return
        seal.open_next(sealed, plain[:size], record[: _LENGTH.size])
        ends.inner.sendall(plain[:size])


def _filled(connection: socket.socket, into: memoryview) -> bool:
    """Fill memory from a connection; `False` where that ends before."""
    filled = 0
    while filled < len(into):
        if not (count := connection.recv_into(into[filled:])):
            return False
        filled += count
    return True
