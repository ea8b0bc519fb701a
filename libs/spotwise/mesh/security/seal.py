"""Encrypts one direction of a link with AES-256-GCM, which also finds damage and changes.

What is sent in order (headers on UCX, records on TCP) and what is sent in any order (payloads on UCX) have keys of their own,
which no other link and no other direction has, so that counted nonces never repeat. The nonce of a message in order is its
place: one that is left out, repeated or moved is refused. A payload's is in its header, since threads seal payloads in any
order.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from spotwise.wire.framing import FrameError

#: Bytes that sealing adds.
SEALED_BYTES = 16
_NONCE_BYTES = 12


class LinkSeal:
    """The keys of one direction of a link; payloads may be sealed and opened on any thread, messages in order on one."""

    def __init__(self, ordered_key: bytes, payload_key: bytes) -> None:
        self._ordered, self._payloads = AESGCM(ordered_key), AESGCM(payload_key)
        self._ordered_numbers, self._payload_numbers = itertools.count(), itertools.count(1)

    def seal_next(self, plain: Any, into: Any, clear: Any = None) -> None:
        """Seal the next message into memory of its size and `SEALED_BYTES`; what goes with it in the clear is bound to it."""
        self._ordered.encrypt_into(_nonce(next(self._ordered_numbers)), plain, clear, _bytes(into))

    def open_next(self, sealed: Any, into: Any, clear: Any = None) -> None:
        """Open the next message into memory of its size; raises `FrameError` where this is not the one that was sealed."""
        try:
            self._ordered.decrypt_into(_nonce(next(self._ordered_numbers)), sealed, clear, _bytes(into))
        except InvalidTag:
            raise FrameError("a message was not sealed by the peer: it was changed, repeated or left out") from None

    def seal_payload(self, payload: Any, into: Any) -> int:
        """Seal a payload into memory of its size and `SEALED_BYTES`, and return the number to open it by."""
        number = next(self._payload_numbers)
        self._payloads.encrypt_into(_nonce(number), _bytes(payload), None, _bytes(into))
        return number

    def open_payload(self, number: int, sealed: Any, into: Any) -> bool:
        """Open a payload into memory of its size; `False` where it is not the one that was sealed: `into` is then undefined."""
        try:
            self._payloads.decrypt_into(_nonce(number), _bytes(sealed), None, _bytes(into))
        except (InvalidTag, OverflowError):
            return False
        return True


def sealed_copy(seal: LinkSeal, payload: Any) -> tuple[NDArray[np.uint8], int]:
    """Return a payload sealed in new memory, and the number to open it by."""
    into = np.empty(_bytes(payload).nbytes + SEALED_BYTES, np.uint8)
    return into, seal.seal_payload(payload, into)


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")


def _bytes(data: Any) -> memoryview:
    return memoryview(data).cast("B")
