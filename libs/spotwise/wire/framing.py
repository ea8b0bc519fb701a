"""Common parts of the headers on transfer links: fixed size, a magic number, a version, and a checksum of their own."""

from __future__ import annotations

import struct

import xxhash

#: Version of all protocols of transfer links; both ends must agree.
VERSION = 10
#: Longest name of a numerics class, in ascii bytes.
MAX_NUMERICS_CLASS_BYTES = 40
#: A header that announces more is refused: no sender cuts such large pieces.
MAX_PAYLOAD_BYTES = 256 * 2**20

_CHECKSUM = struct.Struct("!Q")
#: Bytes that `seal` adds.
SEAL_BYTES = _CHECKSUM.size


class FrameError(ValueError):
    """The bytes are not a valid header of this protocol and version; the link cannot be used any more."""


def seal(body: bytes) -> bytes:
    """Return a header, which begins with 4 bytes of magic and one of `VERSION`, with its checksum."""
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def unseal(data: bytes | bytearray | memoryview, size: int, magic: bytes) -> bytes:
    """Return a sealed header of `size` bytes without its checksum; raises `FrameError`: none, damaged, or another version."""
    raw = bytes(data)
    if len(raw) != size:
        raise FrameError(f"{len(raw)} bytes where {size} are due")
    if raw[:4] != magic:
        raise FrameError("the peer does not speak this transfer protocol")
    body, checksum = raw[:-SEAL_BYTES], _CHECKSUM.unpack(raw[-SEAL_BYTES:])[0]
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise FrameError("the header is damaged: its checksum does not match")
    if body[4] != VERSION:
        raise FrameError(f"the peer speaks version {body[4]} of the transfer protocol, this process {VERSION}")
    return body


def encode_id(name: str, limit: int) -> bytes:
    """Return an id's utf-8; raises `ValueError` where it is empty or longer than `limit` bytes."""
    raw = name.encode()
    if not 0 < len(raw) <= limit:
        raise ValueError(f"an id needs 1 to {limit} utf-8 bytes, {name[:40]!r} has {len(raw)}")
    return raw


def decode_id(raw: bytes, length: int) -> str:
    """Return the id in the first `length` bytes of a padded field; raises `ValueError`."""
    if not 0 < length <= len(raw):
        raise ValueError(f"an id of {length} bytes")
    return raw[:length].decode()
