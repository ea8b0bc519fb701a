"""The supervisor's record of its mesh on disk.

A failed write is an error before the mesh is up, because other commands find the mesh by the record. Later it is reported
once, and retried every few seconds: a full disk must not stop the mesh.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.supervision.run_state import RunState, write_state
from spotwise.cli.report import Report

_TRY_AGAIN_S = 2.0


class StateFile:
    """The file of one supervisor's record."""

    def __init__(self, path: Path, report: Report) -> None:
        self._path = path
        self._report = report
        self._failed_s: float | None = None
        self._was_ready = False

    @property
    def is_behind(self) -> bool:
        """Whether the last write failed and its retry is due."""
        return self._failed_s is not None and time.monotonic() - self._failed_s >= _TRY_AGAIN_S

    def write(self, state: RunState) -> None:
        """Write the record; raises `CommandError` where it cannot be written before the mesh was up."""
        try:
            write_state(self._path, state)
        except OSError as error:
            if not self._was_ready:
                raise CommandError(f"{self._path} cannot be written: {error.strerror}; free some space") from error
            if self._failed_s is None:
                self._report.say(
                    f"{self._path} cannot be written ({error.strerror}): the mesh keeps running, other commands see its "
                    "earlier state; free some space",
                    style="yellow",
                )
            self._failed_s = time.monotonic()
            return
        if self._failed_s is not None:
            self._report.say(f"{self._path} is written again", style="green")
            self._failed_s = None
        self._was_ready = self._was_ready or state.ready

    def remove(self) -> None:
        """Remove the record; one that cannot be removed names only ended processes."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
