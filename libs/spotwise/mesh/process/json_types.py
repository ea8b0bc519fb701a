"""Readers of dataclasses from JSON, made when they are first needed, since that takes long."""

from __future__ import annotations

import functools
from typing import TypeVar

from pydantic import TypeAdapter

_Kept = TypeVar("_Kept")


@functools.cache
def reader_of(kind: type[_Kept]) -> TypeAdapter[_Kept]:
    """Return what reads a type; its `validate_json` raises `ValueError` where the JSON holds none."""
    return TypeAdapter(kind)
