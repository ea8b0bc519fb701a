"""Requests to stop, noted instead of interrupting: an ordered stop must not itself be torn apart by a signal."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

_NOTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Notes SIGINT, SIGTERM and SIGHUP for the length of a `with` block. Main thread only.

    Attributes:
        stop_requested: whether one came.
        at_once: whether Ctrl-C came a second time: there is to be no grace.
    """

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
