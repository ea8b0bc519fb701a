"""Makes a class with written-out methods (`explicit_classes.py`) a dataclass to others: to `dataclasses.replace` and
`fields`, to pickle and to pydantic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

#: `dataclasses.field`, whose declared result is the field's value: compiled code would look for that.
field: Callable[..., Any] = dataclasses.field


def fields_of(name: str, fields: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Return the fields of a dataclass by their names.

    Args:
        fields: name, type as in the source, and `field(...)` of each.
    """
    return {each.name: each for each in dataclasses.fields(dataclasses.make_dataclass(name, fields))}


def rebuilt(kind: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Make an object again from its fields, once it is unpickled."""
    return kind(**values)


def schema_of(kind: type, handler: Any) -> Any:
    """Return how pydantic reads and writes a field of this type: as a dataclass of the same fields."""
    from pydantic_core import PydanticSerializationUnexpectedValue, core_schema

    again = [
        (
            each.name,
            each.type,
            dataclasses.field(
                default=each.default, default_factory=each.default_factory, init=each.init, kw_only=each.kw_only
            ),
        )
        for each in dataclasses.fields(kind)
    ]
    twin = dataclasses.make_dataclass(kind.__name__, again)
    twin.__module__ = kind.__module__
    arguments = [each.name for each in dataclasses.fields(kind) if each.init]

    def read(made: Any) -> Any:
        return made if type(made) is kind else kind(**{name: getattr(made, name) for name in arguments})

    def write(value: Any, as_twin: Callable[[Any], Any]) -> Any:
        if type(value) is not kind:  # of a union, it is another one's
            raise PydanticSerializationUnexpectedValue(f"no {kind.__name__}: {value!r}")
        return as_twin(twin(**{name: getattr(value, name) for name in arguments}))

    schema = handler.generate_schema(twin)
    either = core_schema.union_schema([core_schema.is_instance_schema(kind), schema])
    writer = core_schema.wrap_serializer_function_ser_schema(write, schema=schema)
    return core_schema.no_info_after_validator_function(read, either, serialization=writer)
