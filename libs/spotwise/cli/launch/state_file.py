"""The supervisor's record of its mesh on disk, which may be full or gone without any harm to the mesh.

Law: before the mesh is up a record that cannot be written is an error, because other commands find the mesh by it. Afterwards
it is said once, and tried again every few seconds.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_state import RunState, write_state
from spotwise.cli.report import Report

_TRY_AGAIN_S = 2.0


class StateFile:
    """Where one supervisor writes its record."""

    def __init__(self, path: Path, report: Report) -> None:
        self._path = path
        self._report = report
        self._failed_s: float | None = None
        self._was_ready = False

    @property
    def is_behind(self) -> bool:
        """Whether the last record could not be written, and it is time to try again."""
        return self._failed_s is not None and time.monotonic() - self._failed_s >= _TRY_AGAIN_S

    def write(self, state: RunState) -> None:
        """Write the record.

        Raises:
            CommandError: it cannot be written, and never was while the mesh was up.
        """
        try:
            write_state(self._path, state)
        except OSError as error:
            if not self._was_ready:
                raise CommandError(f"{self._path} cannot be written: {error.strerror}; free some space") from error
            if self._failed_s is None:
                self._report.say(
                    f"{self._path} cannot be written ({error.strerror}): the mesh goes on, other commands see it as it was "
                    "before; free some space",
                    style="yellow",
                )
            self._failed_s = time.monotonic()
            return
        if self._failed_s is not None:
            self._report.say(f"{self._path} is written again", style="green")
            self._failed_s = None
        self._was_ready = self._was_ready or state.ready

    def remove(self) -> None:
        """Take the record away; what cannot be removed names processes that are gone, and misleads nobody."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
