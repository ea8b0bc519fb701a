"""The body of a caller's hello on a group's TCP connection: group, member and lane, with a proof of the group's secret.

The proof is bound to the handshake, which shows before that the caller is of the mesh. A listener that has not heard of the
group yet verifies the proof when it has.
"""

from __future__ import annotations

import struct

from spotwise.mesh.security.handshake import Handshake, LinkTerms
from spotwise.mesh.security.secrets import is_proof, proof
from spotwise.wire.framing import FrameError
from spotwise.wire.link_hello import PROOF_BYTES, message_bytes

# lane, number of the calling member, epoch; the proof follows
_PLACE = struct.Struct("!BxHQ")
_ROLE = b"member"

#: Bytes of the caller's hello and of the listener's.
CALL_BYTES = message_bytes(_PLACE.size + PROOF_BYTES)
REPLY_BYTES = message_bytes(0)

DATA, PULSE = 0, 1
#: The connections of two members: for data, and for signs of life.
LANES = (DATA, PULSE)


def encode_call(handshake: Handshake, lane: int, member: int, epoch: int, secret: bytes) -> bytes:
    """Return what a member says of itself, once its handshake has met the listener's offer."""
    place = _PLACE.pack(lane, member, epoch)
    return place + proof(secret, _ROLE, handshake.binding, place)


class GroupCall:
    """A caller that has proved the mesh's secret, and says what it is for.

    Attributes:
        lane, member, epoch: its connection of the two, its number in the group, and the group's.
    """

    def __init__(self, handshake: Handshake, hello: bytes) -> None:
        """Verify a caller's hello; raises `LinkRefusedError`."""
        self._handshake = handshake
        self.lane = self.member = self.epoch = 0
        self._place, self._proof = handshake.verify(hello, self._decoded)

    def is_of(self, secret: bytes) -> bool:
        """Whether the caller knows a group's secret."""
        return is_proof(self._proof, secret, _ROLE, self._handshake.binding, self._place)

    def terms(self, secret: bytes) -> LinkTerms:
        """Return the terms of a connection of that group, once the listener has replied; raises `LinkRefusedError`."""
        return self._handshake.terms(secret)

    def _decoded(self, body: bytes) -> tuple[bytes, bytes]:
        place, proven = body[: _PLACE.size], body[_PLACE.size :]
        try:
            self.lane, self.member, self.epoch = _PLACE.unpack(place)
        except struct.error as error:
            raise FrameError(f"the call of a group's member cannot be read: {error}") from None
        if self.lane not in LANES:
            raise FrameError(f"a group has no connection {self.lane}")
        return place, proven
