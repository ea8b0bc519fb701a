"""Tunes Python's garbage collector for a service."""

from __future__ import annotations

import gc

#: Net allocations before a collection of generation 0; Python's default of 700 is every few messages.
_COLLECT_AFTER = 20_000


def collect_rarely() -> None:
    """Collect cycles rarely: there are hardly any, and a collection stops the event loop.

    A full one takes tens of milliseconds in a scheduler of a thousand workers.
    """
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])


def leave_to_the_system() -> None:
    """Exempt all objects from collection as the process is about to end.

    The interpreter collects several times as it ends: a second of computing for a worker, which holds torch and transformers.
    """
    gc.freeze()
