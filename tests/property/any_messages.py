"""Well-formed messages of any content, and of a kind that meets what a small mesh knows: the same ids, epochs and numbers."""

from __future__ import annotations

import math
import random
import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

#: What a field of that name, or of a name that ends so, holds most of the time.
_KNOWN: dict[str, list[Any]] = {
    "choice_id": ["r0", "r1", "r2", "r3"],
    "gateway_id": ["gateway", "gateway", "another"],
    "scheduler_id": ["scheduler", "scheduler", "another"],
    "worker_id": ["w0", "w1", "w2"],
    "worker": ["w0", "w1", "w2"],
    "source_id": ["", "w0", "w1"],
    "target_id": ["", "w0", "w1", "w2"],
    "holder_id": ["w0", "scheduler"],
    "sender_id": ["planner", "w0", "p0"],
    "epoch": [0, 1, 1, 2, 3],
    "attempt_id": [0, 1, 2, 3, 4],
    "id": ["w0", "w1", "gateway", "scheduler", "p0"],
}
_INTS = [0, 1, 1, 2, 3, 5, 17, 64, 2**31, 2**32 - 1]
_FLOATS = [0.0, 0.01, 1.0, 5.0, 1000.0, 1003.5, 1e12, -1.0, math.inf, -math.inf, math.nan]
_TEXTS = ["", "w0", "r0", "gateway", "é", "x" * 300]


def any_value(rng: random.Random, hint: Any, name: str = "", depth: int = 0) -> Any:
    """Return a value of a type that core's messages have as a field's."""
    origin = get_origin(hint)
    if name in _KNOWN and hint is type(_KNOWN[name][0]) and rng.random() < 0.9:
        return rng.choice(_KNOWN[name])
    if origin in (Union, types.UnionType):
        chosen = rng.choice([None, *(arg for arg in get_args(hint) if arg is not type(None))])
        return None if chosen is None and type(None) in get_args(hint) else any_value(rng, chosen, name, depth)
    if origin is tuple:
        return _any_tuple(rng, get_args(hint), name, depth)
    if hint is bool:
        return rng.random() < 0.5
    if hint is int:
        return rng.choice(_INTS)
    if hint is float:
        return rng.choice(_FLOATS)
    if hint is str:
        return rng.choice(_TEXTS)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return rng.choice(list(hint))
    return any_message(rng, hint, depth + 1)


def _any_tuple(rng: random.Random, kinds: tuple[Any, ...], name: str, depth: int) -> tuple[Any, ...]:
    if kinds[-1] is Ellipsis:
        count = rng.choice([0, 1, 1, 2, 3, 40 if depth < 2 else 1])
        return tuple(any_value(rng, kinds[0], name, depth) for _ in range(count))
    return tuple(
        any_value(rng, kind, known, depth)
        for kind, known in zip(kinds, _PAIRS.get(len(kinds), ("",) * len(kinds)), strict=True)
    )


#: Pairs are attempts, mostly.
_PAIRS = {2: ("choice_id", "epoch")}


def any_message(rng: random.Random, kind: type, depth: int = 0) -> Any:
    """Return a message, or a part of one; raises `ValueError` where the values do not go together."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
    return kind(**{name: any_value(rng, hints[name], name, depth) for name in names})
