"""Devices that have refused their part of a group, and how long each is left alone.

A pause doubles with every refusal in a row, up to `LONGEST_PAUSE_S`; it is of one incarnation: a process that was started
again is asked at once. A refused request may succeed later, since memory is freed and files are mended, so no process is left
out for good.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    incarnation: int
    in_a_row: int
    until_s: float


class DeviceRefusals:
    """The refusals of one leader's devices, or of the leader itself. Times are in seconds of any clock that only grows."""

    def __init__(self) -> None:
        self._refusals: dict[str, _Refusal] = {}

    def refused(self, name: str, incarnation: int, now: float) -> None:
        """Note that a device refuses its part."""
        in_a_row = self.in_a_row(name, incarnation)
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**in_a_row)
        self._refusals[name] = _Refusal(incarnation, in_a_row + 1, now + pause_s)

    def joined(self, name: str) -> None:
        """Note that a device has its part: what it refused before does not count any more."""
        self._refusals.pop(name, None)

    def in_a_row(self, name: str, incarnation: int) -> int:
        """Return how often this incarnation has refused since it was in a group."""
        known = self._refusals.get(name)
        return 0 if known is None or known.incarnation != incarnation else known.in_a_row

    def is_paused(self, name: str, incarnation: int, now: float) -> bool:
        """Tell whether a device is left alone now."""
        known = self._refusals.get(name)
        return known is not None and known.incarnation == incarnation and now < known.until_s
