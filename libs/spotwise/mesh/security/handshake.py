"""The handshake of a link: both ends prove that they know the mesh's secret, and derive the keys of the link.

The listener offers a new public key. The caller answers with one of its own, what it says of itself, and a proof; the listener
verifies that before it says more, and answers likewise. A proof is an HMAC, under a key of the secret, of its sender's role and
of all messages before it: a recorded hello answers no other offer, and none is the other end's. Keys come from the secret and
the exchange of the two public keys (X25519, HKDF): a secret that leaks later does not open what was recorded. A mesh without a
secret shakes hands with a known one: it proves nothing, but no peer can guess the tags of another's link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from spotwise.mesh.security.link_security import LinkRefusedError, LinkSecurity, must_seal
from spotwise.mesh.security.seal import LinkSeal
from spotwise.mesh.security.secrets import KEY_BYTES, derived_key, is_proof, proof
from spotwise.wire.framing import FrameError
from spotwise.wire.link_hello import (
    HEAD_BYTES,
    PROOF_BYTES,
    HeadKind,
    HelloRefusal,
    LinkHead,
    LinkKind,
    SealWish,
    decode_head,
    decode_refusal,
    encode_head,
)

_TAG_BYTES = 8
_DIRECTION_BYTES = 2 * _TAG_BYTES + 2 * KEY_BYTES
_CALLER, _LISTENER = b"caller", b"listener"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """One direction of a link: the tags of its headers and payloads on UCX, and its seal where it is encrypted."""

    header_tag: int
    payload_tag: int
    seal: LinkSeal | None


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """What a handshake has agreed on."""

    sends: LinkDirection
    receives: LinkDirection


class Handshake:
    """One end of one handshake.

    A listener calls `offer`, `verify`, `hello` and `terms`; a caller `meet`, `hello`, `verify` and `terms`.

    Args:
        kind: what the link carries.
        peer_host: host of the other end; `None`: unknown.
        can_seal: this end's payloads can be encrypted.

    Attributes:
        binding: offer and caller's head, which no other handshake has; set by `meet` and a listener's `verify`.

    Raises:
        LinkRefusedError: the payloads cannot be encrypted, and have to be.
    """

    def __init__(self, security: LinkSecurity, kind: LinkKind, peer_host: str | None, *, can_seal: bool = True) -> None:
        wish = security.wish(peer_host)
        if not can_seal:
            must_seal(wish, SealWish.NEVER)
            wish = SealWish.NEVER
        self.binding = b""
        self._key = security.key
        self._private = X25519PrivateKey.generate()
        self._mine = LinkHead(kind, wish, self._private.public_key().public_bytes_raw())
        self._theirs: LinkHead | None = None
        self._role = self._transcript = b""

    def offer(self) -> bytes:
        """Return the listener's first message."""
        self._role = _LISTENER
        self._transcript = encode_head(HeadKind.OFFER, self._mine)
        return self._transcript

    def meet(self, offer: bytes) -> None:
        """Take the listener's offer; raises `LinkRefusedError`."""
        self._role = _CALLER
        self._theirs = self._head(HeadKind.OFFER, offer)
        must_seal(self._mine.wish, self._theirs.wish)
        self._transcript = offer
        self.binding = offer + encode_head(HeadKind.HELLO, self._mine)

    def hello(self, body: bytes) -> bytes:
        """Return this end's hello, with what it says of itself: a caller's after `meet`, a listener's after `verify`."""
        said = encode_head(HeadKind.HELLO, self._mine) + body
        proven = said + proof(self._key, self._role, self._transcript + said)
        self._transcript += proven
        return proven

    def verify(self, hello: bytes, decode: Callable[[bytes], T]) -> T:
        """Verify the other end's hello and return its body.

        Args:
            decode: reads a body; raises `FrameError`.

        Raises:
            LinkRefusedError: the other end is not of this mesh, does not agree on the link, or has refused it.
        """
        if self._role is _LISTENER:
            self.binding = self._transcript + hello[:HEAD_BYTES]
        elif (refusal := decode_refusal(hello)) is not None:
            raise LinkRefusedError(refusal)
        said, proven = hello[:-PROOF_BYTES], hello[-PROOF_BYTES:]
        head = self._head(HeadKind.HELLO, said[:HEAD_BYTES])
        role = _CALLER if self._role is _LISTENER else _LISTENER
        if not is_proof(proven, self._key, role, self._transcript + said):
            raise LinkRefusedError(HelloRefusal.WRONG_SECRET)
        if self._theirs not in (None, head):
            raise LinkRefusedError(HelloRefusal.MALFORMED, "the peer's hello is not that of its offer")
        self._theirs = head
        self._transcript += hello
        must_seal(self._mine.wish, head.wish)
        try:
            return decode(said[HEAD_BYTES:])
        except FrameError as error:
            raise LinkRefusedError(HelloRefusal.MALFORMED, str(error)) from None

    def terms(self, secret: bytes = b"") -> LinkTerms:
        """Return the terms of the completed handshake; raises `LinkRefusedError` where the peer's key is none.

        Args:
            secret: a further one that both ends know; the keys depend on it.
        """
        assert self._theirs is not None
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(self._theirs.public_key))
        except ValueError:
            raise LinkRefusedError(HelloRefusal.MALFORMED, "the peer's public key is none") from None
        salt = sha256(self._transcript).digest()
        keys = derived_key(self._key + shared + secret, 2 * _DIRECTION_BYTES, salt, "link")
        is_sealed = must_seal(self._mine.wish, self._theirs.wish)
        there, back = (
            _direction(keys[start : start + _DIRECTION_BYTES], is_sealed=is_sealed) for start in (0, _DIRECTION_BYTES)
        )
        return LinkTerms(there, back) if self._role is _CALLER else LinkTerms(back, there)

    def _head(self, kind: HeadKind, data: bytes) -> LinkHead:
        try:
            head = decode_head(kind, data)
        except FrameError as error:
            raise LinkRefusedError(HelloRefusal.MALFORMED, str(error)) from None
        if head.kind is not self._mine.kind:
            detail = f"this end connects for {self._mine.kind.name}, the peer for {head.kind.name}"
            raise LinkRefusedError(HelloRefusal.INCOMPATIBLE, detail)
        return head


def _direction(keys: bytes, *, is_sealed: bool) -> LinkDirection:
    tags = [int.from_bytes(keys[start : start + _TAG_BYTES]) for start in (0, _TAG_BYTES)]
    first_key, second_key = keys[2 * _TAG_BYTES :][:KEY_BYTES], keys[2 * _TAG_BYTES + KEY_BYTES :]
    return LinkDirection(tags[0], tags[1], LinkSeal(first_key, second_key) if is_sealed else None)
