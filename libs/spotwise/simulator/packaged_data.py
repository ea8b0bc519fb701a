"""Reads the JSON files that the simulator's packages ship, each with its `source` inside."""

from __future__ import annotations

from importlib import resources
from typing import TypeVar

from pydantic import TypeAdapter

_Data = TypeVar("_Data")


def read_packaged(package: str, file: str, kind: type[_Data]) -> _Data:
    """Return a package's JSON file as a dataclass; raises pydantic.ValidationError if it does not fit."""
    return TypeAdapter(kind).validate_json((resources.files(package) / file).read_bytes())
