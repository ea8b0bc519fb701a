"""Codecs of core types and protobuf types whose fields have the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from spotwise.core.messages.worker import Attempt

Codec: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # to protobuf, and back


def codec_of(
    core_type: Callable[..., Any],
    proto_type: Callable[..., Any],
    *names: str,
    optional: tuple[str, ...] = (),
    **parts: Codec,
) -> Codec:
    """Return the codec of two types with the same field names; `names` have equal values on both sides, `optional` fields are
    `None` where protobuf's are unset, `parts` have a codec of their own.
    """

    def to_proto(value: Any) -> Any:
        own = {name: to(getattr(value, name)) for name, (to, _) in parts.items()}
        return proto_type(**{name: getattr(value, name) for name in (*names, *optional)}, **own)

    def from_proto(proto: Any) -> Any:
        own = {name: back(getattr(proto, name)) for name, (_, back) in parts.items()}
        unset = {name: getattr(proto, name) if proto.HasField(name) else None for name in optional}
        return core_type(**{name: getattr(proto, name) for name in names}, **unset, **own)

    return to_proto, from_proto


def each_of(codec: Codec) -> Codec:
    """Return the codec of a tuple of what `codec` is for."""
    to_proto, from_proto = codec
    return lambda values: [*map(to_proto, values)], lambda protos: tuple(map(from_proto, protos))


def attempts_codec(
    core_type: Callable[..., Any], proto_type: Callable[..., Any], field: str, columns: tuple[str, str], *names: str
) -> Codec:
    """Return the codec of a message whose `field` holds attempts: two protobuf columns, choice ids and epochs."""
    ids, epochs = columns

    def to_proto(message: Any) -> Any:
        attempts: tuple[Attempt, ...] = getattr(message, field)
        pair = {ids: [choice_id for choice_id, _ in attempts], epochs: [epoch for _, epoch in attempts]}
        return proto_type(**{name: getattr(message, name) for name in names}, **pair)

    def from_proto(proto: Any) -> Any:
        attempts = tuple(zip(getattr(proto, ids), getattr(proto, epochs), strict=True))
        return core_type(**{name: getattr(proto, name) for name in names}, **{field: attempts})

    return to_proto, from_proto


def same(value: Any) -> Any:
    """Return the value: its two sides are equal."""
    return value
