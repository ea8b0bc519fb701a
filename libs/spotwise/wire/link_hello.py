"""Greeting of a new transfer link: the listener's offer, the hello of the end that connected, the listener's hello. A
hello is followed by its sender's proof that it knows the mesh's secret. The listener may send a refusal instead.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

import xxhash

from spotwise.wire.framing import SEAL_BYTES, VERSION, FrameError, decode_id, encode_id, seal, unseal

#: Longest worker id, in utf-8 bytes.
MAX_WORKER_ID_BYTES = 128
#: Longest digest of a model, in ascii bytes.
MAX_MODEL_DIGEST_BYTES = 32

#: Of a public key, which is new for each link, and of a proof.
PUBLIC_KEY_BYTES = PROOF_BYTES = 32

_OFFER_MAGIC, _HELLO_MAGIC, _REFUSAL_MAGIC = b"SWOF", b"SWHI", b"SWNO"
# magic, version, wish, public key
_OFFER = struct.Struct("!4sBBxx32s")
# magic, version, id length, digest length, wish, incarnation, layout, model digest, worker id, public key
_HELLO = struct.Struct("!4sBBBBQQ32s128s32s")
# magic, version, reason, to the length of a hello
_REFUSAL = struct.Struct(f"!4sBB{_HELLO.size - 6}x")

#: Bytes of an encoded offer.
OFFER_BYTES = _OFFER.size + SEAL_BYTES
#: Bytes of an encoded hello or refusal, without a proof.
HELLO_BYTES = _HELLO.size + SEAL_BYTES


class SealWish(enum.IntEnum):
    """Whether an end wants the frames of a link to be encrypted."""

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


@dataclass(frozen=True, slots=True)
class LinkOffer:
    """What the listener says first: its public key for this link, and its wish."""

    public_key: bytes
    wish: SealWish


@dataclass(frozen=True, slots=True)
class LinkHello:
    """The hello that each end of a new link sends once.

    Attributes:
        worker_id: this end's id, at most `MAX_WORKER_ID_BYTES` in utf-8.
        layout: `layout_fingerprint` of the memory that the link's payloads are of.
        model_digest: digest of its weights, at most `MAX_MODEL_DIGEST_BYTES`; `None` of a process without weights.
        wish: this end's wish to encrypt the link.
        public_key: public key of this end, for this link alone.
    """

    worker_id: str
    incarnation: int
    layout: int
    model_digest: str | None = None
    wish: SealWish = SealWish.EITHER
    public_key: bytes = bytes(PUBLIC_KEY_BYTES)


def layout_fingerprint(layout: str) -> int:
    """Return a hash, 64 bits, of a KV memory's layout."""
    return xxhash.xxh3_64_intdigest(layout.encode())


def encode_offer(offer: LinkOffer) -> bytes:
    """Return the offer's `OFFER_BYTES` bytes."""
    return seal(_OFFER.pack(_OFFER_MAGIC, VERSION, offer.wish, offer.public_key))


def decode_offer(data: bytes | bytearray | memoryview) -> LinkOffer:
    """Return the offer in `data`, `OFFER_BYTES` long; raises `FrameError`: no such offer, damaged, or of another version."""
    _, _, wish, public_key = _OFFER.unpack(unseal(data, OFFER_BYTES, _OFFER_MAGIC))
    try:
        return LinkOffer(public_key, SealWish(wish))
    except ValueError as error:
        raise FrameError(f"the offer names what this version does not know: {error}") from None


def encode_hello(hello: LinkHello) -> bytes:
    """Return the hello's `HELLO_BYTES` bytes; raises `ValueError` where an id is too long or a number does not fit."""
    worker_id = encode_id(hello.worker_id, MAX_WORKER_ID_BYTES)
    digest = b"" if hello.model_digest is None else encode_id(hello.model_digest, MAX_MODEL_DIGEST_BYTES)
    try:
        body = _HELLO.pack(
            _HELLO_MAGIC, VERSION, len(worker_id), len(digest), hello.wish, hello.incarnation, hello.layout, digest,
            worker_id, hello.public_key,
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"the hello does not fit its fields: {error}") from None
    return seal(body)


def decode_hello(data: bytes | bytearray | memoryview) -> LinkHello:
    """Return the hello in `data`, `HELLO_BYTES` long; raises `FrameError`: no such hello, damaged, or of another version."""
    body = unseal(data, HELLO_BYTES, _HELLO_MAGIC)
    _, _, id_bytes, digest_bytes, wish, incarnation, layout, digest, worker_id, public_key = _HELLO.unpack(body)
    try:
        model_digest = decode_id(digest, digest_bytes) if digest_bytes else None
        name = decode_id(worker_id, id_bytes)
        return LinkHello(name, incarnation, layout, model_digest, SealWish(wish), public_key)
    except ValueError as error:
        raise FrameError(f"the hello's worker id, digest or wish cannot be read: {error}") from None


def encode_refusal(reason: HelloRefusal) -> bytes:
    """Return a refusal, as long as a hello."""
    return seal(_REFUSAL.pack(_REFUSAL_MAGIC, VERSION, reason))


def decode_refusal(data: bytes | bytearray | memoryview) -> HelloRefusal | None:
    """Return the reason of a refusal; `None` where `data` is none, or of another version."""
    try:
        return HelloRefusal(_REFUSAL.unpack(unseal(data, HELLO_BYTES, _REFUSAL_MAGIC))[2])
    except ValueError:  # also `FrameError`
        return None
