"""Gathers and messages among the processes of a group: through memory that they share on one machine, else through TCP.

One thread of a member sends, receives and gathers; any thread may break the exchange, which ends every call of every member at
once. A member that ends or stops breaks it as well. A broken exchange stays broken: the group forms a new one.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from spotwise.core.messages.groups import GROUP_PATIENCE_S
from spotwise.engine.native.library import Kernels, StageFields

#: Bytes of the ring from one member to another: an activation of 2,048 tokens of 4,096 numbers, so that a stage need not wait
#: until the next one reads. Only what is used takes memory.
RING_BYTES = 16 << 20


class GroupBrokenError(RuntimeError):
    """A member of the group is gone or stopped, or the group was dissolved; the iteration has computed nothing."""


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """What a member has spent in exchanges, waiting included.

    Attributes:
        gathers: among its stage's shards, and their seconds.
        receive_s: seconds of receiving from the stage before.
    """

    gathers: int
    gather_s: float
    receive_s: float


class Exchange:
    """A member's end of its group's exchange.

    Args:
        kernels: exchange.
        handle: address of the native exchange; owned.
    """

    def __init__(self, kernels: Kernels, handle: int) -> None:
        self._kernels = kernels
        #: Address of the native exchange; `None` once closed.
        self.handle: int | None = handle

    @property
    def broken_by(self) -> int | None:
        """The member that is gone, where one broke the exchange; `None` where all are there, or the group was dissolved."""
        gone = 0 if self.handle is None else self._kernels.exchange_broken(self.handle)
        return gone - 1 if gone > 0 else None

    @property
    def is_whole(self) -> bool:
        """Whether all members are there."""
        return self.handle is not None and self._kernels.exchange_broken(self.handle) == 0

    @property
    def is_complete(self) -> bool:
        """Whether every member has joined and shown life: from then on each that ends or stops breaks the exchange."""
        return self.handle is not None and bool(self._kernels.exchange_complete(self.handle))

    @property
    def is_waiting(self) -> bool:
        """Whether this member's thread waits in it for another member."""
        return self.handle is not None and bool(self._kernels.exchange_waits(self.handle))

    def times(self) -> ExchangeTimes:
        """Return what this member's thread has spent in it so far."""
        numbers = (ctypes.c_int64 * 3)()
        if self.handle is not None:
            self._kernels.exchange_times(self.handle, numbers)
        return ExchangeTimes(numbers[0], numbers[1] / 1e9, numbers[2] / 1e9)

    def send(self, member: int, data: torch.Tensor) -> None:
        """Send a contiguous tensor on the CPU; raises `GroupBrokenError`."""
        self._require(self._kernels.exchange_send(self.handle, member, data.data_ptr(), data.nbytes))

    def receive(self, member: int, into: torch.Tensor) -> None:
        """Receive a contiguous tensor of this size; raises `GroupBrokenError`."""
        self._require(self._kernels.exchange_receive(self.handle, member, into.data_ptr(), into.nbytes))

    def gather(self, stage: StageFields, matrix: torch.Tensor, bounds: Sequence[int], root: int | None) -> None:
        """Complete a contiguous matrix `[..., width]`, of which each shard of a stage has written its columns.

        Args:
            stage: stage of this member.
            matrix: completed in place.
            bounds: columns at which each shard's begin, and last the width.
            root: the only shard that needs the others' columns; `None`: all.

        Raises:
            GroupBrokenError: a member is gone; the matrix is undefined.
        """
        size, width = matrix.element_size(), matrix.shape[-1]
        places = (ctypes.c_int64 * len(bounds))(*(bound * size for bound in bounds))
        rows = matrix.numel() // width
        to = -1 if root is None else root
        self._require(
            self._kernels.exchange_gather(ctypes.addressof(stage), matrix.data_ptr(), rows, width * size, places, to)
        )

    def fail(self) -> None:
        """Break the exchange for all members; any thread may call it."""
        if self.handle is not None:
            self._kernels.exchange_fail(self.handle, -1)

    def close(self) -> None:
        """Leave, after the last call has returned; the other members find that this one is gone. Idempotent."""
        if self.handle is not None:
            self._kernels.exchange_leave(self.handle)
            self.handle = None

    def error(self) -> GroupBrokenError:
        """Return the error of a call that the break ended."""
        gone = self.broken_by
        return GroupBrokenError("the group was dissolved" if gone is None else f"member {gone} of the group is gone")

    def _require(self, done: int) -> None:
        if not done:
            raise self.error()


class MemoryExchange(Exchange):
    """Through memory that all members map.

    Args:
        kernels: exchange.
        path: path of the shared memory, `bytes` long, the same for all members and new for each group.
        member: this process's number in the group, from 0.
        size: members of the group.
        patience_s: after which a silent member is gone.
    """

    def __init__(
        self, kernels: Kernels, path: Path, member: int, size: int, patience_s: float = GROUP_PATIENCE_S
    ) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), self.bytes(kernels, size))
        self._view: ctypes.c_char | None = ctypes.c_char.from_buffer(self._memory)
        address = ctypes.addressof(self._view)
        super().__init__(kernels, kernels.exchange_join(address, member, size, RING_BYTES, _milliseconds(patience_s)))

    @staticmethod
    def bytes(kernels: Kernels, size: int) -> int:
        """Return the bytes of shared memory, zero at first, that a group of this size needs."""
        return int(kernels.exchange_bytes(size, RING_BYTES))

    def close(self) -> None:
        """Leave, as `Exchange.close`."""
        super().close()
        if self._view is not None:
            self._view = None
            self._memory.close()


class SocketExchange(Exchange):
    """Through two TCP connections with each other member, which are handed over one member at a time.

    Args:
        kernels: exchange.
        member: this process's number in the group, from 0.
        size: members of the group.
        patience_s: after which a silent member is gone.
    """

    def __init__(self, kernels: Kernels, member: int, size: int, patience_s: float = GROUP_PATIENCE_S) -> None:
        super().__init__(kernels, kernels.socket_exchange_join(member, size, _milliseconds(patience_s)))

    def connect(self, member: int, data: socket.socket, pulse: socket.socket) -> None:
        """Take the connections with a member, once: for data, and for signs of life. Closes them where it is closed."""
        if self.handle is None:
            data.close()
            pulse.close()
            return
        for connection in (data, pulse):
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:  # that of an encrypted one
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._kernels.exchange_connect(self.handle, member, data.detach(), pulse.detach())

    def lost(self, member: int) -> None:
        """Break the exchange, since a member cannot be reached."""
        if self.handle is not None:
            self._kernels.exchange_fail(self.handle, 1 + member)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
