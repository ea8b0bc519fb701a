"""What each end of a new transfer link says of itself first."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from spotwise.wire.framing import SEAL_BYTES, VERSION, FrameError, decode_id, encode_id, seal, unseal

#: Longest worker id, in utf-8 bytes.
MAX_WORKER_ID_BYTES = 128
#: Longest digest of a model, in ascii bytes.
MAX_MODEL_DIGEST_BYTES = 32

_HELLO_MAGIC = b"SWHI"
# magic, version, id length, digest length, receive tag, incarnation, layout, model digest, worker id
_HELLO = struct.Struct("!4sBBBxQQQ32s128s")

#: Bytes of an encoded hello.
HELLO_BYTES = _HELLO.size + SEAL_BYTES


@dataclass(frozen=True, slots=True)
class LinkHello:
    """The hello that each end of a new link sends once.

    Attributes:
        receive_tag: under which this end receives headers; payloads come under the next one.
        worker_id: of this end, at most `MAX_WORKER_ID_BYTES` in utf-8.
        layout: `layout_fingerprint` of the memory that the link's payloads are of.
        model_digest: of its weights, at most `MAX_MODEL_DIGEST_BYTES`; `None` of a process without weights.
    """

    receive_tag: int
    worker_id: str
    incarnation: int
    layout: int
    model_digest: str | None = None


def layout_fingerprint(layout: str) -> int:
    """Return a hash, 64 bits, of a KV memory's layout."""
    return xxhash.xxh3_64_intdigest(layout.encode())


def encode_hello(hello: LinkHello) -> bytes:
    """Return the hello's `HELLO_BYTES` bytes; raises `ValueError` where an id is too long or a number does not fit."""
    worker_id = encode_id(hello.worker_id, MAX_WORKER_ID_BYTES)
    digest = b"" if hello.model_digest is None else encode_id(hello.model_digest, MAX_MODEL_DIGEST_BYTES)
    try:
        body = _HELLO.pack(
            _HELLO_MAGIC, VERSION, len(worker_id), len(digest), hello.receive_tag, hello.incarnation, hello.layout, digest,
            worker_id,
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"the hello does not fit its fields: {error}") from None
    return seal(body)


def decode_hello(data: bytes | bytearray | memoryview) -> LinkHello:
    """Return the hello in `data`, `HELLO_BYTES` long; raises `FrameError`: no such hello, damaged, or of another version."""
    body = unseal(data, HELLO_BYTES, _HELLO_MAGIC)
    _, _, id_bytes, digest_bytes, receive_tag, incarnation, layout, digest, worker_id = _HELLO.unpack(body)
    try:
        model_digest = decode_id(digest, digest_bytes) if digest_bytes else None
        return LinkHello(receive_tag, decode_id(worker_id, id_bytes), incarnation, layout, model_digest)
    except ValueError as error:
        raise FrameError(f"the hello's worker id or digest cannot be read: {error}") from None
