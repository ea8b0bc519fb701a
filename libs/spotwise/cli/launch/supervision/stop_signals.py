"""Requests to stop, recorded instead of raised: a signal must not interrupt an ordered stop."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

_NOTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Records SIGINT, SIGTERM and SIGHUP during a `with` block (main thread only); `at_once`: a second Ctrl-C, no grace."""

    def __init__(self) -> None:
        self.stop_requested = False
        self.at_once = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._note) for number in _NOTED}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.at_once = self.at_once or (self.stop_requested and number == signal.SIGINT)
        self.stop_requested = True
