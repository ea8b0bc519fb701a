"""Codecs of whole messages, to bytes and back: of one core type, and of a union that is a oneof in protobuf.

What converts fields is made when the first message of a type comes: most processes see few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar, get_args

from google.protobuf.message import DecodeError

from spotwise.wire.codec_exceptions import CODECS, UNION_FIELDS
from spotwise.wire.field_codec import Codec, field_names

_Core = TypeVar("_Core")


class MalformedMessageError(ValueError):
    """The bytes are not a message of this version."""


class MessageCodec(Generic[_Core]):
    """The codec of a core type and a protobuf type."""

    def __init__(self, core_type: type[_Core], proto_type: Any) -> None:
        self._core_type, self._proto_type = core_type, proto_type

    @cached_property
    def _codec(self) -> Codec:
        return CODECS.of(self._core_type, self._proto_type.DESCRIPTOR)

    def to_proto(self, value: _Core) -> Any:
        """Return the protobuf message of a value."""
        return self._proto_type(**self._codec.to_fields(value))

    def from_proto(self, proto: Any) -> _Core:
        """Return what `to_proto` turned into `proto`; raises `ValueError` for a value that core does not know."""
        value: _Core = self._codec.from_proto(proto)
        return value

    def encode(self, value: _Core) -> bytes:
        """Return the bytes of a value."""
        data: bytes = self.to_proto(value).SerializeToString()
        return data

    def decode(self, payload: bytes) -> _Core:
        """Return what `encode` turned into `payload`; raises `DecodeError` for other bytes, and as `from_proto` does."""
        return self.from_proto(self._proto_type.FromString(payload))


class UnionCodec:
    """The codec of a union; errors call its members `kind`, and `unknown` what is none of them.

    Raises:
        TypeError: a type of the union has no field in the message, or a field no type; the error names it.
    """

    def __init__(self, union: Any, proto_type: Any, kind: str, unknown: str) -> None:
        self._proto_type, self._kind, self._unknown = proto_type, kind, unknown
        (oneof,) = proto_type.DESCRIPTOR.oneofs
        self._oneof: str = oneof.name
        fields = {field.name: field for field in oneof.fields}
        of_message = {field.message_type.name: field.name for field in oneof.fields if field.message_type is not None}
        self._types: dict[str, type] = {}
        for core_type in get_args(union):
            name = UNION_FIELDS.get(core_type.__name__) or of_message.get(core_type.__name__, "")
            if name not in fields or name in self._types:
                raise TypeError(f"{proto_type.DESCRIPTOR.name} has no field for {core_type.__name__}")
            self._types[name] = core_type
        if len(self._types) < len(fields):
            raise TypeError(f"{proto_type.DESCRIPTOR.name} has no type for {sorted(fields.keys() - self._types)}")
        self._fields = {core_type: fields[name] for name, core_type in self._types.items()}
        self._made: dict[type, tuple[str, Codec]] = {}

    def _make(self, core_type: type) -> tuple[str, Codec]:
        """Return the name of a type's field, and its codec; raises `TypeError` where it is not of the union."""
        field = self._fields.get(core_type)
        if field is None:
            raise TypeError(f"{core_type.__name__} is no {self._kind}")
        is_bare = core_type.__name__ in UNION_FIELDS and len(field_names(core_type)) == 1
        codec = CODECS.bare(core_type, field) if is_bare else CODECS.of(core_type, field.message_type)
        return self._made.setdefault(core_type, (field.name, codec))

    def encode(self, message: Any) -> bytes:
        """Return the bytes of a message; raises `TypeError` where its type is not of the union."""
        core_type = type(message)
        field, codec = self._made.get(core_type) or self._make(core_type)
        data: bytes = self._proto_type(**{field: codec.to_fields(message)}).SerializeToString()
        return data

    def decode(self, payload: bytes, check: Callable[[Any], None] | None = None) -> Any:
        """Return the message that `encode` turned into `payload`.

        Args:
            check: raises `ValueError` for a protobuf message that is not to be decoded.

        Raises:
            MalformedMessageError: the bytes are none, or hold what this version does not know, or what `check` refuses.
        """
        try:
            union = self._proto_type.FromString(payload)
            field = union.WhichOneof(self._oneof)
            if field is None:
                raise MalformedMessageError(self._unknown)
            proto = getattr(union, field)
            if check is not None:
                check(proto)
            core_type = self._types[field]
            _, codec = self._made.get(core_type) or self._make(core_type)
            return codec.from_proto(proto)
        except (DecodeError, ValueError, IndexError) as error:
            raise MalformedMessageError(str(error)) from error
