"""Codecs that follow from a core type's fields and a protobuf message's descriptor; each is made once, when first needed.

Rules: a core field and the protobuf field of its name hold the same; `Exceptions` apart, no field is without its counterpart.
An optional value is a field with presence; an optional tuple has a flag `has_NAME` beside it, else an empty one is `None`.
An enum is a string, empty for `None`, or a protobuf enum whose names begin with its own, 0 for `None`.
A tuple is a repeated field, a tuple of tuples a repeated message of one repeated field, a tuple of pairs also a map, read in
order of its keys. A message sets its field `absent` for `None` in a tuple.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, StrEnum
from operator import attrgetter
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.descriptor import FieldDescriptor as Field


class Codec(NamedTuple):
    """Returns the arguments of a core object's protobuf message, parts as dictionaries; and the object of a message."""

    to_fields: Callable[[Any], dict[str, Any]]
    from_proto: Callable[[Any], Any]


class SplitField(NamedTuple):
    """A core field that the protobuf fields `names` hold in another shape.

    Attributes:
        to_fields: from the field's value; `from_proto`: the value, from the whole message.
    """

    names: tuple[str, ...]
    to_fields: Callable[[Any], dict[str, Any]]
    from_proto: Callable[[Any], Any]


#: By the name of a core type, the fields that have another name in protobuf, or another shape, which a function may return.
Exceptions = Mapping[str, Mapping[str, str | SplitField | Callable[[], SplitField]]]


class _Derived(NamedTuple):
    """A core field that one protobuf field holds; a conversion is `None` where values are equal on both sides."""

    name: str
    to_proto: Callable[[Any], Any] | None = None
    from_proto: Callable[[Any], Any] | None = None
    may_be_unset: bool = False


_KINDS: dict[type, tuple[int, ...]] = {
    bool: (Field.TYPE_BOOL,),
    float: (Field.TYPE_DOUBLE, Field.TYPE_FLOAT),
    str: (Field.TYPE_STRING,),
    bytes: (Field.TYPE_BYTES,),
    int: (
        *(Field.TYPE_UINT32, Field.TYPE_INT32, Field.TYPE_SINT32, Field.TYPE_FIXED32, Field.TYPE_SFIXED32),
        *(Field.TYPE_UINT64, Field.TYPE_INT64, Field.TYPE_SINT64, Field.TYPE_FIXED64, Field.TYPE_SFIXED64),
    ),
}
_ABSENT = "absent"


class Codecs:
    """Makes and keeps the codecs of pairs of types.

    Its methods raise `TypeError`, which names the field, where a field has no counterpart or one of another type.
    """

    def __init__(self, exceptions: Exceptions) -> None:
        self._exceptions = exceptions
        self._made: dict[tuple[type, str], Codec] = {}

    def of(self, core_type: type, message: Descriptor) -> Codec:
        """Return the codec of a core dataclass or named tuple and a message."""
        key = (core_type, message.full_name)
        if key not in self._made:
            self._made[key] = self._derive(core_type, message)
        return self._made[key]

    def bare(self, core_type: type, field: Field) -> Codec:
        """Return the codec of a core type with one field, which a protobuf field holds without a message around it."""
        (name,) = field_names(core_type)
        _, to_proto, from_proto, _ = self._single(get_type_hints(core_type)[name], field)
        return Codec(
            lambda value: getattr(value, name) if to_proto is None else to_proto(getattr(value, name)),
            lambda proto: core_type(proto if from_proto is None else from_proto(proto)),
        )

    def _derive(self, core_type: type, message: Descriptor) -> Codec:
        hints, exceptions = get_type_hints(core_type), self._exceptions.get(core_type.__name__, {})
        parts: dict[str, _Derived | SplitField] = {}
        names = {field.name for field in message.fields}
        used = {_ABSENT} & names
        for name in field_names(core_type):
            part = exceptions.get(name, name)
            if not isinstance(part, str):
                parts[name] = part if isinstance(part, SplitField) else part()
            elif part in names:
                try:
                    parts[name] = self._field(hints[name], message.fields_by_name[part])
                except TypeError as error:
                    raise TypeError(f"{core_type.__name__}.{name}: {error}") from None
            else:
                raise TypeError(
                    f"{core_type.__name__}.{name} has no field in {message.full_name}; add one with a number of its own in "
                    f"proto/{message.file.name}, and run make proto"
                )
            used.update(_protobuf_names(parts[name]))
        if unlike := used ^ names:
            raise TypeError(
                f"{core_type.__name__} and {message.full_name} (proto/{message.file.name}) differ in "
                f"{', '.join(sorted(unlike))}; add it to the one that lacks it"
            )
        if unknown := exceptions.keys() - parts:
            raise TypeError(f"{core_type.__name__} has no {', '.join(sorted(unknown))}")
        return Codec(_encoder(core_type, parts), _decoder(core_type, parts))

    def _field(self, hint: Any, field: Field) -> _Derived | SplitField:
        kind, is_optional = _without_none(hint)
        if field.is_repeated:
            derived = _Derived(field.name, *self._repeated(kind, field))
            return _optional_repeated(field, derived) if is_optional else derived
        derived = self._single(kind, field)
        if is_optional and not field.has_presence:
            if field.enum_type is not None:
                return derived
            if issubclass(kind, StrEnum):
                return derived._replace(from_proto=lambda text: kind(text) if text else None)
        if is_optional != (field.has_presence or field.enum_type is not None) and field.message_type is None:
            raise TypeError(f"{'optional' if is_optional else 'not optional'}, unlike {field.full_name}")
        return derived._replace(may_be_unset=is_optional)

    def _single(self, kind: Any, field: Field) -> _Derived:
        """Return how a field that is not repeated holds values that are not `None`."""
        if field.message_type is not None and _is_record(kind):
            to_fields, from_proto = self.of(kind, field.message_type)
            if _ABSENT not in field.message_type.fields_by_name:
                return _Derived(field.name, to_fields, from_proto)
            return _Derived(
                field.name,
                lambda value: {_ABSENT: True} if value is None else to_fields(value),
                lambda proto: None if proto.absent else from_proto(proto),
            )
        if field.enum_type is not None and isinstance(kind, type) and issubclass(kind, Enum):
            numbers = _enum_numbers(kind, field.enum_type)
            return _Derived(field.name, numbers.__getitem__, {number: each for each, number in numbers.items()}.get)
        is_text = isinstance(kind, type) and issubclass(kind, StrEnum) and field.type == Field.TYPE_STRING
        if not is_text and field.type not in _KINDS.get(kind, ()):
            raise TypeError(f"{kind} is no type of {field.full_name}")
        return _Derived(field.name, None, kind if is_text else None)

    def _repeated(self, kind: Any, field: Field) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any]]:
        """Return how a repeated field, or a map, holds a tuple or a mapping."""
        origin, args = get_origin(kind), get_args(kind)
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            return dict, dict if origin is not tuple else lambda entries: tuple(sorted(entries.items()))
        if origin is not tuple or len({*args} - {Ellipsis}) != 1:
            raise TypeError(f"{kind} is no type of the repeated {field.full_name}")
        element, has_none = _without_none(args[0])
        if get_origin(element) is tuple and message is not None and len(message.fields) == 1:
            (inner,) = message.fields
            to_inner, from_inner = self._repeated(element, inner)
            name = inner.name
            return (
                lambda rows: [{name: row if to_inner is None else to_inner(row)} for row in rows],
                lambda protos: tuple([from_inner(getattr(proto, name)) for proto in protos]),
            )
        if has_none and (message is None or _ABSENT not in message.fields_by_name):
            raise TypeError(f"{field.full_name} cannot hold None")
        _, to_proto, from_proto, _ = self._single(element, field)
        return (
            None if to_proto is None else lambda values: [*map(to_proto, values)],
            tuple if from_proto is None else lambda protos: tuple(map(from_proto, protos)),
        )


def columns(*names: str) -> SplitField:
    """Return the part of a tuple of tuples of one length: a protobuf column for each position."""
    getters = [attrgetter(name) for name in names]
    return SplitField(
        names,
        lambda rows: dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {},
        lambda proto: tuple(zip(*[get(proto) for get in getters], strict=True)),
    )


def elsewhere(value: Any, *names: str) -> SplitField:
    """Return the part of a field that the message does not hold, and that is read as `value`; other code sets `names`."""
    return SplitField(names, lambda _: {}, lambda _: value)


def field_names(core_type: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's or named tuple's fields, in the order in which it takes them."""
    return tuple(field.name for field in fields(core_type)) if is_dataclass(core_type) else core_type._fields


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) or hasattr(kind, "_fields")


def _protobuf_names(part: _Derived | SplitField) -> tuple[str, ...]:
    return part.names if isinstance(part, SplitField) else (part.name,)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not types.NoneType]
    if len(kinds) != 1:
        raise TypeError(f"{hint} is more than one type")
    return kinds[0], True


def _enum_numbers(kind: type[Enum], enum: EnumDescriptor) -> dict[Enum | None, int]:
    """Return the numbers of an enum's members, by the protobuf enum's names; `None` is 0."""
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.name).upper()
    numbers: dict[Enum | None, int] = {None: 0}
    for member in kind:
        value = enum.values_by_name.get(f"{prefix}_{member.name}")
        if value is None:
            raise TypeError(f"{enum.name} has no {member.name}")
        numbers[member] = value.number
    if len(numbers) != len(enum.values):
        raise TypeError(f"{kind.__name__} lacks values of {enum.name}")
    return numbers


def _optional_repeated(field: Field, derived: _Derived) -> _Derived | SplitField:
    name, to_proto, from_proto, _ = derived
    flag, message = f"has_{name}", field.containing_type
    assert message is not None and from_proto is not None
    if flag not in message.fields_by_name:
        return derived._replace(from_proto=lambda protos: from_proto(protos) or None)
    return SplitField(
        (name, flag),
        lambda values: {} if values is None else {name: to_proto(values) if to_proto else values, flag: True},
        lambda proto: from_proto(getattr(proto, name)) if getattr(proto, flag) else None,
    )


def _encoder(core_type: type, parts: Mapping[str, _Derived | SplitField]) -> Callable[[Any], dict[str, Any]]:
    """Return a function that is written for the type: one expression, as fast as one by hand."""
    functions: dict[str, Any] = {}
    arguments = []
    for name, part in parts.items():
        if isinstance(part, SplitField):
            functions[f"to_{name}"] = part.to_fields
            arguments.append(f"**to_{name}(value.{name})")
        elif part.to_proto is None:
            arguments.append(f"{part.name!r}: value.{name}")
        else:
            functions[f"to_{name}"] = part.to_proto
            arguments.append(f"{part.name!r}: None if value.{name} is None else to_{name}(value.{name})")
    return _function(f"lambda value: {{{', '.join(arguments)}}}", core_type, functions)


def _decoder(core_type: type, parts: Mapping[str, _Derived | SplitField]) -> Callable[[Any], Any]:
    functions: dict[str, Any] = {"core_type": core_type}
    arguments = []
    for name, part in parts.items():
        field = "proto" if isinstance(part, SplitField) else f"proto.{part.name}"
        if part.from_proto is not None:
            functions[f"from_{name}"] = part.from_proto
            field = f"from_{name}({field})"
        if isinstance(part, _Derived) and part.may_be_unset:
            field = f"{field} if proto.HasField({part.name!r}) else None"
        arguments.append(field)
    return _function(f"lambda proto: core_type({', '.join(arguments)})", core_type, functions)


def _function(source: str, core_type: type, functions: dict[str, Any]) -> Callable[[Any], Any]:
    """Return the function of an expression; a traceback says whose codec it is."""
    function: Callable[[Any], Any] = eval(compile(source, f"<codec of {core_type.__name__}>", "eval"), functions)
    return function
