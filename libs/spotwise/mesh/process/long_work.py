"""Work that takes seconds, however short its input: it announces itself, and is begun only where it may be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_allowed: ContextVar[bool] = ContextVar("long_work_is_allowed", default=True)


class LongWorkError(Exception):
    """Such work would begin on an event loop, or in a thread of short work: all of it is to be begun again elsewhere."""


@contextmanager
def no_long_work() -> Iterator[None]:
    """Let no long work begin within."""
    before = _is_allowed.set(False)
    try:
        yield
    finally:
        _is_allowed.reset(before)


def begin_long_work() -> None:
    """Return where long work may begin; else raise `LongWorkError`."""
    if not _is_allowed.get() or _is_on_loop():
        raise LongWorkError


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
