"""Messages of the handshake that begins each link between two processes: the listener's offer, the caller's hello, the
listener's hello. The listener may send a refusal in place of its own.

An offer is a head: version, kind of the link, wish and public key. A hello is a head, a body whose size the kind of the link
gives, and its sender's proof of the mesh's secret. Size and checksum of a head, and the place of its version, are the same in
every version, so that ends of two versions report that.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

import xxhash

from spotwise.wire.framing import (
    MAX_NUMERICS_CLASS_BYTES,
    SEAL_BYTES,
    VERSION,
    FrameError,
    decode_id,
    encode_id,
    seal,
    unseal,
)

#: Longest worker id, in utf-8 bytes.
MAX_WORKER_ID_BYTES = 128
#: Longest digest of a model, in ascii bytes.
MAX_MODEL_DIGEST_BYTES = 32

#: Of a public key, which is new for each link, and of a proof.
PUBLIC_KEY_BYTES = PROOF_BYTES = 32

_REFUSAL_MAGIC = b"SWNO"
# magic, version, kind of the link (in a refusal: reason), wish, public key
_HEAD = struct.Struct("!4sBBBx32s")
# id length, digest length, length of the class's name, incarnation, layout, model digest, numerics class, worker id
_HELLO = struct.Struct("!BBB5xQQ32s40s128s")

#: Bytes of an encoded head: of an offer, a hello or a refusal.
HEAD_BYTES = _HEAD.size + SEAL_BYTES
#: Bytes of an encoded `LinkHello`.
HELLO_BYTES = _HELLO.size


class HeadKind(enum.Enum):
    """What a head begins; the value is its magic."""

    OFFER = b"SWOF"
    HELLO = b"SWHI"


class LinkKind(enum.IntEnum):
    """What a link carries; the ends of a link must agree."""

    KV = 1
    WEIGHTS = 2
    GROUP = 3


class SealWish(enum.IntEnum):
    """Whether an end wants the link to be encrypted."""

    NEVER = 0
    EITHER = 1
    ALWAYS = 2


class HelloRefusal(enum.IntEnum):
    """Why an end refused a link; by its name in metrics."""

    MALFORMED = 1
    TIMED_OUT = 2
    LOST = 3
    WRONG_SECRET = 4
    ENCRYPTION_DIFFERS = 5
    INCOMPATIBLE = 6
    TOO_MANY_WAITING = 7
    TOO_MANY_LINKS = 8
    NO_SUCH_GROUP = 9


@dataclass(frozen=True, slots=True)
class LinkHead:
    """What every end of every link says first.

    Attributes:
        wish: this end's wish to encrypt the link.
        public_key: public key of this end, for this link alone.
    """

    kind: LinkKind
    wish: SealWish
    public_key: bytes


@dataclass(frozen=True, slots=True)
class LinkHello:
    """The body of a hello on UCX links.

    Attributes:
        worker_id: this end's id, at most `MAX_WORKER_ID_BYTES` in utf-8.
        layout: `layout_fingerprint` of the memory that the link's payloads are of.
        model_digest: digest of its weights, at most `MAX_MODEL_DIGEST_BYTES`; `None` of a process without weights.
        numerics_class: in which its KV is computed; empty of a process that computes none.
    """

    worker_id: str
    incarnation: int
    layout: int
    model_digest: str | None = None
    numerics_class: str = ""


def layout_fingerprint(layout: str) -> int:
    """Return a hash, 64 bits, of a KV memory's layout."""
    return xxhash.xxh3_64_intdigest(layout.encode())


def message_bytes(body_bytes: int) -> int:
    """Return the size of a hello with a body of this size, or of a refusal in its place."""
    return HEAD_BYTES + body_bytes + PROOF_BYTES


def encode_head(kind: HeadKind, head: LinkHead) -> bytes:
    """Return a head's `HEAD_BYTES` bytes."""
    return seal(_HEAD.pack(kind.value, VERSION, head.kind, head.wish, head.public_key))


def decode_head(kind: HeadKind, data: bytes | bytearray | memoryview) -> LinkHead:
    """Return the head in `data`, `HEAD_BYTES` long; raises `FrameError`: no such head, damaged, or of another version."""
    _, _, link_kind, wish, public_key = _HEAD.unpack(unseal(data, HEAD_BYTES, kind.value))
    try:
        return LinkHead(LinkKind(link_kind), SealWish(wish), public_key)
    except ValueError as error:
        raise FrameError(f"the peer names what this version does not know: {error}") from None


def encode_hello(hello: LinkHello) -> bytes:
    """Return the hello's `HELLO_BYTES` bytes; raises `ValueError` where an id is too long or a number does not fit."""
    worker_id = encode_id(hello.worker_id, MAX_WORKER_ID_BYTES)
    digest = b"" if hello.model_digest is None else encode_id(hello.model_digest, MAX_MODEL_DIGEST_BYTES)
    of_class = encode_id(hello.numerics_class, MAX_NUMERICS_CLASS_BYTES) if hello.numerics_class else b""
    sizes = len(worker_id), len(digest), len(of_class)
    try:
        return _HELLO.pack(*sizes, hello.incarnation, hello.layout, digest, of_class, worker_id)
    except struct.error as error:
        raise ValueError(f"the hello does not fit its fields: {error}") from None


def decode_hello(data: bytes) -> LinkHello:
    """Return the hello in `data`; raises `FrameError` where there is none. Proofs protect it: it has no checksum."""
    try:
        id_bytes, digest_bytes, class_bytes, incarnation, layout, digest, of_class, worker_id = _HELLO.unpack(data)
        model_digest = decode_id(digest, digest_bytes) if digest_bytes else None
        numerics_class = decode_id(of_class, class_bytes) if class_bytes else ""
        return LinkHello(decode_id(worker_id, id_bytes), incarnation, layout, model_digest, numerics_class)
    except (struct.error, ValueError) as error:
        raise FrameError(f"the hello cannot be read: {error}") from None


def encode_refusal(reason: HelloRefusal, size: int) -> bytes:
    """Return a refusal, of the size of the message that it replaces."""
    return seal(_HEAD.pack(_REFUSAL_MAGIC, VERSION, reason, 0, b"")).ljust(size, b"\0")


def decode_refusal(data: bytes | bytearray | memoryview) -> HelloRefusal | None:
    """Return the reason of the refusal that a message is; `None` where it is none, or of another version."""
    try:
        return HelloRefusal(_HEAD.unpack(unseal(data[:HEAD_BYTES], HEAD_BYTES, _REFUSAL_MAGIC))[2])
    except ValueError:  # also `FrameError`
        return None
