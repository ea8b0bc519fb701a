"""How long a member could hear nobody: its process stood still, or the broker did."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A tick that is later than this found the process asleep, or its loop blocked.
LATE_TICK_S = 0.5
#: Heartbeats of its own that a member misses before it takes the broker for away.
MISSED_BEATS = 3


class Attention:
    """Measures it by the member's own heartbeats, which come back over the broker, and by how late its ticks are.

    Args:
        heartbeat_s: seconds from one heartbeat to the next.
        tick_s: seconds from one tick to the next.
        monotonic: a clock that nobody sets, in seconds.
    """

    def __init__(self, heartbeat_s: float, tick_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._deaf_after_s = MISSED_BEATS * heartbeat_s
        self._late_after_s = tick_s + LATE_TICK_S
        self._monotonic = monotonic
        self._heard_s = self._looked_s = monotonic()

    def heard_itself(self) -> None:
        """Note that a heartbeat of this member came back."""
        self._heard_s = self._monotonic()

    def away_s(self) -> float:
        """Return how much of the time since the last tick counts as away, in seconds; ask once a tick."""
        now = self._monotonic()
        elapsed_s, self._looked_s = now - self._looked_s, now
        is_deaf = now - self._heard_s > self._deaf_after_s
        return elapsed_s if is_deaf or elapsed_s > self._late_after_s else 0.0
