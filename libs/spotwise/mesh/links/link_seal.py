"""Encrypts what goes one way on a transfer link, with AES-256-GCM, which also finds damage and changes.

Headers and payloads have keys of their own, which no other link and no other direction has, so that counted nonces never
repeat. A header's nonce is its place in the order: one that is left out, repeated or moved is refused. A payload's is in its
header, since threads seal payloads in any order.
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
    """The keys of one direction of a link; payloads may be sealed and opened on any thread."""

    def __init__(self, header_key: bytes, payload_key: bytes) -> None:
        self._headers, self._payloads = AESGCM(header_key), AESGCM(payload_key)
        self._header_numbers, self._payload_numbers = itertools.count(), itertools.count(1)

    def seal_header(self, header: bytes) -> bytes:
        """Return the next header, sealed."""
        return self._headers.encrypt(_nonce(next(self._header_numbers)), header, None)

    def open_header(self, sealed: bytearray) -> bytes:
        """Return the next header; raises `FrameError` where this is not the one that was sealed."""
        try:
            return self._headers.decrypt(_nonce(next(self._header_numbers)), bytes(sealed), None)
        except InvalidTag:
            raise FrameError("the header was not sealed by the peer: it was changed, repeated or left out") from None

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
