"""Greeting of a group's TCP connection: mutual proofs of both ends, and the keys derived from it.

The listener sends a challenge with a new public key; the caller answers with its own, its place in a group, and two proofs
(HMAC): of the mesh's secret, which every listener can verify, and of the group's, which one that has not heard of the group yet
verifies when it has. The listener then proves that it knows the mesh's secret. No secret is sent, and a recorded greeting
answers no other challenge.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from spotwise.mesh.links.link_handshake import LinkRefusedError, LinkSecurity, must_seal
from spotwise.mesh.process.secrets import KEY_BYTES
from spotwise.wire.link_hello import HelloRefusal, SealWish

_CHALLENGE_MAGIC, _GREETING_MAGIC = b"SWG1", b"SWG2"
# magic, wish, public key
_CHALLENGE = struct.Struct("!4sBxxx32s")
# magic, wish, lane, number of the calling member, epoch, public key; both proofs follow
_GREETING = struct.Struct("!4sBBHQ32s")
_PROOF_BYTES = 32

#: Bytes of each message.
CHALLENGE_BYTES = _CHALLENGE.size
GREETING_BYTES = _GREETING.size + 2 * _PROOF_BYTES
WELCOME_BYTES = _PROOF_BYTES

DATA, PULSE = 0, 1
#: The connections of two members: for data, and for signs of life.
LANES = (DATA, PULSE)


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys of an encrypted connection, one for each direction."""

    sends: bytes
    receives: bytes


class GroupCaller:
    """The calling end of one connection."""

    def __init__(
        self, security: LinkSecurity, peer_host: str, epoch: int, secret: bytes, member: int, lane: int
    ) -> None:
        self._key, self._secret = security.key("groups"), secret
        self._wish = security.wish(peer_host)
        self._private = X25519PrivateKey.generate()
        self._place = (lane, member, epoch)
        self._transcript = self._theirs = b""
        self._is_sealed = False

    def answer(self, challenge: bytes) -> bytes:
        """Return the greeting; raises `LinkRefusedError`."""
        magic, wish, self._theirs = _CHALLENGE.unpack(challenge)
        if magic != _CHALLENGE_MAGIC:
            raise LinkRefusedError(HelloRefusal.MALFORMED, "no member of a group listens there")
        self._is_sealed = must_seal(self._wish, _wish(wish))
        public_key = self._private.public_key().public_bytes_raw()
        body = _GREETING.pack(_GREETING_MAGIC, self._wish, *self._place, public_key)
        self._transcript = challenge + body
        proofs = _proof(self._key, b"caller", self._transcript), _proof(self._secret, b"member", self._transcript)
        return body + b"".join(proofs)

    def finish(self, welcome: bytes) -> StreamKeys | None:
        """Return the keys of the connection, `None` of one that is not encrypted; raises `LinkRefusedError`."""
        if not hmac.compare_digest(welcome, _proof(self._key, b"listener", self._transcript)):
            raise LinkRefusedError(HelloRefusal.WRONG_SECRET)
        if not self._is_sealed:
            return None
        there, back = _stream_keys(self._private, self._theirs, self._key + self._secret, self._transcript)
        return StreamKeys(there, back)


class GroupListener:
    """The listening end of one connection.

    Attributes:
        lane, member, epoch: what the caller says it is for, once it is accepted.
    """

    def __init__(self, security: LinkSecurity, peer_host: str) -> None:
        self._key = security.key("groups")
        self._wish = security.wish(peer_host)
        self._private = X25519PrivateKey.generate()
        self._transcript = self._theirs = self._member_proof = b""
        self._is_sealed = False
        self.lane = self.member = self.epoch = 0

    def challenge(self) -> bytes:
        """Return the first message."""
        self._transcript = _CHALLENGE.pack(_CHALLENGE_MAGIC, self._wish, self._private.public_key().public_bytes_raw())
        return self._transcript

    def accept(self, greeting: bytes) -> bytes:
        """Return the welcome of a caller of this mesh; raises `LinkRefusedError`."""
        body, proofs = greeting[: _GREETING.size], greeting[_GREETING.size :]
        magic, wish, self.lane, self.member, self.epoch, self._theirs = _GREETING.unpack(body)
        if magic != _GREETING_MAGIC or self.lane not in LANES:
            raise LinkRefusedError(HelloRefusal.MALFORMED, "no member of a group calls")
        self._transcript += body
        if not hmac.compare_digest(proofs[:_PROOF_BYTES], _proof(self._key, b"caller", self._transcript)):
            raise LinkRefusedError(HelloRefusal.WRONG_SECRET)
        self._member_proof = proofs[_PROOF_BYTES:]
        self._is_sealed = must_seal(self._wish, _wish(wish))
        return _proof(self._key, b"listener", self._transcript)

    def is_of(self, secret: bytes) -> bool:
        """Whether the caller knows a group's secret."""
        return hmac.compare_digest(self._member_proof, _proof(secret, b"member", self._transcript))

    def keys(self, secret: bytes) -> StreamKeys | None:
        """Return the keys of a connection of that group, `None` of one that is not encrypted; raises `LinkRefusedError`."""
        if not self._is_sealed:
            return None
        there, back = _stream_keys(self._private, self._theirs, self._key + secret, self._transcript)
        return StreamKeys(back, there)


def _wish(number: int) -> SealWish:
    try:
        return SealWish(number)
    except ValueError:
        raise LinkRefusedError(HelloRefusal.MALFORMED, f"an unknown wish {number}") from None


def _proof(key: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, role + transcript, "sha256")


def _stream_keys(private: X25519PrivateKey, theirs: bytes, secrets: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise LinkRefusedError(HelloRefusal.MALFORMED, "the peer's public key is none") from None
    salt = sha256(transcript).digest()
    keys = HKDF(SHA256(), 2 * KEY_BYTES, salt=salt, info=b"group").derive(secrets + shared)
    return keys[:KEY_BYTES], keys[KEY_BYTES:]
