"""A file that a process touches while its event loop goes round: a sign of life that needs no broker, no store, and no turn of
a loop that is busy with thousands of streams. `spotwise up` reads it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

#: Age up to which a touch shows life; a loop with much to do takes a second for an iteration.
FRESH_S = 4.0


class Pulse:
    """One process's file; the folder must exist.

    Args:
        path: `None`: nobody looks.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def beat(self) -> None:
        """Touch the file; what keeps it from being written costs a sign of life and nothing else."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            try:
                os.utime(self._path)
            except FileNotFoundError:
                self._path.touch(mode=0o600)


def has_pulse(path: Path) -> bool:
    """Whether a process has touched its file lately."""
    try:
        touched_s = path.stat().st_mtime
    except OSError:
        return False
    return abs(time.time() - touched_s) < FRESH_S
