"""The handshake of a transfer link.

The listener offers a new public key; the other end answers with one of its own, its hello, and the HMAC of all that under a
key of the secret. The listener verifies it before anything else, and proves itself over the whole exchange. A recorded hello is
of no use, since the other end's key is another each time. Tags and keys of the frames come from the secret and the exchange
of the two keys (X25519, HKDF): a secret that leaks later does not open what was recorded. A mesh without a secret shakes hands
with a known one: it proves nothing, but no peer can guess the tags of another's link.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from spotwise.mesh.links.link_seal import LinkSeal
from spotwise.mesh.links.ucx_loopback import is_loopback
from spotwise.mesh.ports.ports import KvTransferError, MeshError
from spotwise.mesh.process.secrets import KEY_BYTES, MeshSecret
from spotwise.wire.framing import FrameError
from spotwise.wire.link_hello import (
    HELLO_BYTES,
    HelloRefusal,
    LinkHello,
    LinkOffer,
    SealWish,
    decode_hello,
    decode_offer,
    decode_refusal,
    encode_hello,
    encode_offer,
)

_DISCARD_PORT = 9


def is_local(host: str | None) -> bool:
    """Whether what is sent to this numeric address stays on this host; an unknown one (`None`) or a name does not count.

    The kernel chooses an address of this host as its own source, and no other one. Nothing is sent.
    """
    try:
        address = ipaddress.ip_address((host or "").strip("[]").partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT))
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError:
        return False


NO_SECRET_TO_ENCRYPT_BY = "SPOTWISE_LINK_ENCRYPTION=on needs the secret of the mesh: set SPOTWISE_MESH_SECRET_FILE"

_TAG_BYTES = 8
_DIRECTION_BYTES = 2 * KEY_BYTES + 2 * _TAG_BYTES
_EXPLAINED = {
    HelloRefusal.WRONG_SECRET: "the ends have different mesh secrets, or one has none; give both the same "
    "SPOTWISE_MESH_SECRET_FILE",
    HelloRefusal.ENCRYPTION_DIFFERS: "one end must encrypt this link and the other must not; give both the same "
    "SPOTWISE_LINK_ENCRYPTION",
    HelloRefusal.TOO_MANY_LINKS: "the peer has too many links of this process",
    HelloRefusal.TOO_MANY_WAITING: "too many connections wait at the peer for their hello",
}


class LinkEncryption(StrEnum):
    """Which links are encrypted: all, none, or those between hosts where the mesh has a secret."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class LinkRefusedError(KvTransferError):
    """An end did not take a link; `refusal` says why."""

    def __init__(self, refusal: HelloRefusal, detail: str = "") -> None:
        super().__init__(_EXPLAINED.get(refusal) or detail or refusal.name.lower().replace("_", " "))
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    """What a process does about the security of its links; raises `MeshError` for encryption without a secret."""

    secret: MeshSecret | None = None
    encryption: LinkEncryption = LinkEncryption.AUTO

    def __post_init__(self) -> None:
        if self.encryption is LinkEncryption.ON and self.secret is None:
            raise MeshError(NO_SECRET_TO_ENCRYPT_BY)

    def wish(self, peer_host: str | None) -> SealWish:
        """Return this end's wish for a link with a host; `None`: an unknown one."""
        if self.encryption is LinkEncryption.ON:
            return SealWish.ALWAYS
        if self.encryption is LinkEncryption.OFF:
            return SealWish.NEVER
        return SealWish.ALWAYS if self.secret is not None and not is_local(peer_host) else SealWish.EITHER

    def encrypts_from(self, own_host: str) -> bool:
        """Whether links of a process at this address may have to be encrypted."""
        return self.encryption is LinkEncryption.ON or (
            self.encryption is LinkEncryption.AUTO and self.secret is not None and not is_loopback(own_host)
        )

    def key(self, purpose: str) -> bytes:
        """Return the key of the secret for a purpose; zeros without a secret."""
        return bytes(KEY_BYTES) if self.secret is None else self.secret.key(purpose)


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """One direction of a link: the tags of its headers and payloads, and its seal where it is encrypted."""

    header_tag: int
    payload_tag: int
    seal: LinkSeal | None


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """What a handshake has agreed on."""

    peer: LinkHello
    sends: LinkDirection
    receives: LinkDirection


class Handshake:
    """One end of one handshake.

    Args:
        hello: this end's hello, without a key and a wish.
        peer_host: host of the other end; `None`: unknown.
        can_seal: this end's payloads can be encrypted.

    Raises:
        LinkRefusedError: they cannot, and have to be.
    """

    def __init__(
        self, security: LinkSecurity, hello: LinkHello, peer_host: str | None, *, can_seal: bool = True
    ) -> None:
        self._key = security.key("links")
        self._private = X25519PrivateKey.generate()
        wish, public_key = security.wish(peer_host), self._private.public_key().public_bytes_raw()
        if not can_seal:
            must_seal(wish, SealWish.NEVER)
            wish = SealWish.NEVER
        self._hello = replace(hello, wish=wish, public_key=public_key)
        self._offer = LinkOffer(public_key, wish)
        self._transcript = b""

    def offer(self) -> bytes:
        """Return the listener's first message."""
        self._transcript = encode_offer(self._offer)
        return self._transcript

    def answer(self, offer: bytes) -> bytes:
        """Return the connecting end's hello and proof; raises `LinkRefusedError`."""
        try:
            offered = decode_offer(offer)
        except FrameError as error:
            raise LinkRefusedError(HelloRefusal.MALFORMED, str(error)) from None
        must_seal(self._hello.wish, offered.wish)
        self._offer = offered
        self._transcript = offer
        return self._proven(b"connects")

    def accept(self, answer: bytes) -> tuple[bytes, LinkTerms]:
        """Return the listener's hello and proof, and the terms; raises `LinkRefusedError`."""
        theirs = self._verified(answer, b"connects")
        must_seal(self._hello.wish, theirs.wish)
        reply = self._proven(b"listens")
        return reply, self._terms(theirs, connects=False)

    def finish(self, reply: bytes) -> LinkTerms:
        """Return the connecting end's terms; raises `LinkRefusedError`."""
        if (refusal := decode_refusal(reply[:HELLO_BYTES])) is not None:
            raise LinkRefusedError(refusal)
        theirs = self._verified(reply, b"listens")
        if (theirs.public_key, theirs.wish) != (self._offer.public_key, self._offer.wish):
            raise LinkRefusedError(HelloRefusal.MALFORMED, "the peer's hello is not that of its offer")
        return self._terms(theirs, connects=True)

    def _proven(self, role: bytes) -> bytes:
        body = encode_hello(self._hello)
        self._transcript += body
        proof = self._proof(role)
        self._transcript += proof
        return body + proof

    def _verified(self, message: bytes, role: bytes) -> LinkHello:
        body, proof = message[:HELLO_BYTES], message[HELLO_BYTES:]
        try:
            theirs = decode_hello(body)
        except FrameError as error:
            raise LinkRefusedError(HelloRefusal.MALFORMED, str(error)) from None
        self._transcript += body
        if not hmac.compare_digest(self._proof(role), proof):
            raise LinkRefusedError(HelloRefusal.WRONG_SECRET)
        self._transcript += proof
        return theirs

    def _proof(self, role: bytes) -> bytes:
        return hmac.digest(self._key, role + self._transcript, "sha256")

    def _terms(self, theirs: LinkHello, *, connects: bool) -> LinkTerms:
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(theirs.public_key))
        except ValueError:
            raise LinkRefusedError(HelloRefusal.MALFORMED, "the peer's public key is none") from None
        salt = sha256(self._transcript).digest()
        keys = HKDF(SHA256(), 2 * _DIRECTION_BYTES, salt=salt, info=b"link").derive(self._key + shared)
        is_sealed = must_seal(self._hello.wish, theirs.wish)
        there, back = (
            _direction(keys[start : start + _DIRECTION_BYTES], is_sealed=is_sealed) for start in (0, _DIRECTION_BYTES)
        )
        return LinkTerms(theirs, there, back) if connects else LinkTerms(theirs, back, there)


def must_seal(mine: SealWish, theirs: SealWish) -> bool:
    """Whether ends with these wishes encrypt; raises `LinkRefusedError` where one must and the other must not."""
    if {mine, theirs} == {SealWish.ALWAYS, SealWish.NEVER}:
        raise LinkRefusedError(HelloRefusal.ENCRYPTION_DIFFERS)
    return SealWish.ALWAYS in (mine, theirs)


def _direction(keys: bytes, *, is_sealed: bool) -> LinkDirection:
    tags = [int.from_bytes(keys[start : start + _TAG_BYTES]) for start in (0, _TAG_BYTES)]
    header_key, payload_key = keys[2 * _TAG_BYTES :][:KEY_BYTES], keys[2 * _TAG_BYTES + KEY_BYTES :]
    return LinkDirection(tags[0], tags[1], LinkSeal(header_key, payload_key) if is_sealed else None)
