"""How often a service looks for cycles of garbage."""

from __future__ import annotations

import gc

#: Objects more than were freed until the youngest are looked through; Python's own 700 is every few messages.
_COLLECT_AFTER = 20_000


def collect_rarely() -> None:
    """Look for cycles seldom: there are hardly any, and each look holds up whatever the event loop is at.

    A look through all objects takes tens of milliseconds in a scheduler that knows a thousand workers.
    """
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])


def leave_to_the_system() -> None:
    """Look through nothing that is held now any more: the process is about to end, and its memory goes with it.

    The interpreter looks through everything several times as it ends: a second of computing for a worker, which holds torch
    and transformers, and several where it shares its cores.
    """
    gc.freeze()
