"""Encodes and decodes messages of the mesh; protobuf types never leave `wire`.

Fields are listed in core and in `proto/` only: the codec follows from both (`field_codec.py`), but for `codec_exceptions.py`.
Instants, durations, prices and rates in a message are numbers: what is neither finite nor a number is never acted on.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from spotwise.core.messages.mesh import Message
from spotwise.wire.message_codec import UnionCodec
from spotwise.wire.v1 import envelope_pb2
from spotwise.wire.v1.request_pb2 import TokenLogprobs

_UNKNOWN = "empty envelope, or a message this version does not know"
_MESSAGES = UnionCodec(Message, envelope_pb2.Envelope, "mesh message", _UNKNOWN)

_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
#: The log-probability of what cannot come is minus infinity.
_EXEMPT = frozenset({TokenLogprobs.DESCRIPTOR.full_name})


def encode(message: Message) -> bytes:
    """Return the envelope bytes of a message; raises `TypeError` where it is not a message of the mesh."""
    return _MESSAGES.encode(message)


def decode(payload: bytes) -> Message:
    """Return the message that `encode` turned into `payload`; raises `MalformedMessageError` where the bytes are no envelope,
    or hold a message that this version does not know, or a number that is not finite.
    """
    message: Message = _MESSAGES.decode(payload, check_finite)
    return message


def check_finite(proto: Any) -> None:
    """Raise `ValueError`, which names the field, where a floating-point field of the message or of its parts is not finite."""
    floats, parts = _fields(proto.DESCRIPTOR)
    for name, repeated in floats:
        value = getattr(proto, name)
        if not (all(map(math.isfinite, value)) if repeated else math.isfinite(value)):
            raise ValueError(f"{name} of a {proto.DESCRIPTOR.name} is not finite")
    for name, repeated in parts:
        if repeated:
            for part in getattr(proto, name):
                check_finite(part)
        elif proto.HasField(name):
            check_finite(getattr(proto, name))


@cache
def _fields(descriptor: Descriptor) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Return the floating-point fields, and the message fields that hold some: name, and whether it is repeated."""
    floats = [(each.name, each.is_repeated) for each in descriptor.fields if each.cpp_type in _FLOATS]
    parts = [
        (each.name, each.is_repeated)
        for each in descriptor.fields
        if each.message_type is not None
        and each.message_type.full_name not in _EXEMPT
        and any(_fields(each.message_type))
    ]
    return floats, parts
