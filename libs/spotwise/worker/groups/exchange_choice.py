"""Chooses the exchange of a group's members: memory where they share a machine, else TCP."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace

from spotwise.core.messages.groups import DeviceOffered, FormGroup, GroupExchange
from spotwise.engine.native.exchange import MemoryExchange
from spotwise.engine.native.library import load_kernels
from spotwise.mesh.ports.ports import MeshError


@contextlib.contextmanager
def with_exchange(form: FormGroup, offers: Sequence[DeviceOffered], choice: GroupExchange) -> Iterator[FormGroup]:
    """Return the order with the exchange of members that offer this, by position; what they need to join it is there within
    the block. Raises `MeshError` without native kernels.
    """
    if choice == GroupExchange.TCP or (choice == GroupExchange.AUTO and len({offer.machine for offer in offers}) > 1):
        addresses = tuple(offer.exchange_address for offer in offers)
        yield replace(form, exchange=secrets.token_hex(16), addresses=addresses)
        return
    memory = SharedMemory(len(offers))
    try:
        yield replace(form, exchange=memory.path, addresses=())
    finally:
        memory.close()


class SharedMemory:
    """The memory of one group's exchange, made by its leader; members open it through the leader's process, and nothing is left
    behind. Raises `MeshError` without native kernels.
    """

    def __init__(self, members: int) -> None:
        kernels = load_kernels()
        if kernels is None:
            raise MeshError("a group needs the native kernels; install g++ on this machine")
        self._handle = os.memfd_create("spotwise-exchange")
        os.ftruncate(self._handle, MemoryExchange.bytes(kernels, members))

    @property
    def path(self) -> str:
        """Where members of this machine open it."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def close(self) -> None:
        """Close it; members that have opened it keep it."""
        os.close(self._handle)
