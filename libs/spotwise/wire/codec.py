"""Encodes and decodes messages of the mesh; protobuf types never leave `wire`.

Fields are listed in core and in `proto/` only: the codec follows from both (`field_codec.py`), but for `codec_exceptions.py`.
"""

from __future__ import annotations

from spotwise.core.messages.mesh import Message
from spotwise.wire.finite import check_finite
from spotwise.wire.message_codec import UnionCodec
from spotwise.wire.v1 import envelope_pb2

_UNKNOWN = "empty envelope, or a message this version does not know"
_MESSAGES = UnionCodec(Message, envelope_pb2.Envelope, "mesh message", _UNKNOWN)


def encode(message: Message) -> bytes:
    """Return the envelope bytes of a message; raises `TypeError` where it is not a message of the mesh."""
    return _MESSAGES.encode(message)


def decode(payload: bytes) -> Message:
    """Return the message that `encode` turned into `payload`; raises `MalformedMessageError` where the bytes are no envelope,
    or hold a message that this version does not know, or a number that is not finite.
    """
    message: Message = _MESSAGES.decode(payload, check_finite)
    return message
