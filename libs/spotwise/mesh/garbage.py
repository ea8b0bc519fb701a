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
