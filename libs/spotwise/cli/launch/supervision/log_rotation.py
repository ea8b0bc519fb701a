"""Bounds the logs of a mesh's processes, which write to files that they inherited and never open again.

A log that has grown over its size is copied to `NAME.log.1` and cut to nothing; the earlier copies are renamed. Every process
appends, so that it continues at the new end. Lines that come between the copy's end and the cut are lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

#: Files of each log: the one that is written, and earlier ones.
LOG_FILES = 3
#: Interval between two looks at the sizes.
_LOOK_S = 1.0


class LogRotation:
    """Keeps each log at `max_bytes` a file, `LOG_FILES` files at most."""

    def __init__(self, log_paths: Sequence[Path], max_bytes: int) -> None:
        self._log_paths = tuple(log_paths)
        self._max_bytes = max_bytes
        self._looked_s: float | None = None

    def rotate_when_due(self, now_s: float) -> None:
        """Look at the sizes once a second, and rotate; without space for a copy the earlier ones are given up."""
        if self._looked_s is not None and now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for path in self._log_paths:
            try:
                if path.stat().st_size > self._max_bytes:
                    _rotate(path)
            except OSError:
                continue  # it is not there, or cannot be written; the next look tries again


def _rotate(path: Path) -> None:
    copies = [path.with_name(f"{path.name}.{number}") for number in range(1, LOG_FILES)]
    copies[-1].unlink(missing_ok=True)
    for older, newer in zip(reversed(copies[1:]), reversed(copies[:-1]), strict=True):
        if newer.exists():
            newer.rename(older)
    with path.open("r+b") as log:
        try:
            with open(copies[0], "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as copy:
                shutil.copyfileobj(log, copy)
        except OSError:
            # A full disk: the log must not keep it full.
            for each in copies:
                each.unlink(missing_ok=True)
        log.truncate(0)
