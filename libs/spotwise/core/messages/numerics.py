"""Numerics classes: processes of one class compute the same tokens, bit for bit, from the same weights and tokens.

Law: two workers are of one class if and only if their `Numerics` are equal; a class goes by its `name`, which tells equal ones.
A token, or KV, that a request gets in another class than that of its tokens so far is a *crossing*: no undisturbed run might
have had it. The empty name is of processes that compute nothing (simulated ones), which belong to every class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from functools import cache

from spotwise.core.values import value

#: Hexadecimal digits of what a name says beside format and order.
_DIGITS = 8


class Crossing(StrEnum):
    """What happens where a request's class has no room, and another has."""

    COUNT = "count"  #: it goes on there, and that is counted
    REFUSE = "refuse"  #: it waits for its class


class CrossingKind(StrEnum):
    """How a request came into another numerics class."""

    RECOVERY = "recovery"  #: with its next attempt
    HAND_OFF = "hand_off"  #: from its prompt worker to its token worker
    MOVE = "move"


@value
class Numerics:
    """What the bits of a token depend on, beside weights and tokens.

    Attributes:
        dtype: `float32`, `bfloat16` or `float16`.
        order: in which products are added: `fma`, `dot` or `amx` of the native kernels, `torch` where they do not compute.
        kernels: fingerprint of the native kernels' sources; empty without them.
        quantisation: the format in which weights are stored, e.g. `gguf:Q4_1`; empty where they are numbers of a dtype.
        backend: version of torch; also the name of the GPU, and torch's CPU capability where torch computes layers.
    """

    dtype: str
    order: str
    kernels: str = ""
    quantisation: str = ""
    backend: str = ""

    @property
    def name(self) -> str:
        """Number format, order and a hash of all else: `bfloat16/dot/3fa94c21`."""
        return _name(self)


@cache
def _name(numerics: Numerics) -> str:
    rest = "\0".join((numerics.kernels, numerics.quantisation, numerics.backend))
    return f"{numerics.dtype}/{numerics.order}/{hashlib.sha256(rest.encode()).hexdigest()[:_DIGITS]}"


def dtype_of(numerics_class: str) -> str:
    """Return the number format of a class, which its KV has, too."""
    return numerics_class.partition("/")[0]


def is_crossing(before: str, here: str) -> bool:
    """Tell whether tokens or KV of the class `before` go on in another one."""
    return bool(before and here) and before != here


def with_class(classes: Sequence[str], latest: str) -> tuple[str, ...]:
    """Return the classes of a request's tokens, each once, after one of the class `latest`, which comes last."""
    if not latest or classes[-1:] == (latest,):
        return tuple(classes)
    return (*(each for each in classes if each != latest), latest)


def refusal_of_classes(crossing: Crossing, classes: Sequence[str], here: str) -> str | None:
    """Return why a worker of the class `here` may not go on with tokens of these classes; `None` where it may."""
    if crossing is Crossing.COUNT or not classes or not is_crossing(classes[-1], here):
        return None
    return (
        f"its tokens are of the numerics class {classes[-1]}, and this worker is of {here} (SPOTWISE_CROSSING=refuse)"
    )
