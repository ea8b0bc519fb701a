"""How long a prompt may hold up those that decode.

Law: an iteration in which sequences decode takes about `max_stall_s` at most: prompts beside them are cut to what can be
computed in that time, as learned from the iterations before (stall-free batching: Sarathi-Serve, Agrawal et al., OSDI 2024,
section 4, which has its number of tokens set by hand). A fast device so takes long parts and a slow one short parts, without
a setting; where nobody decodes, prompts run whole.

Invariants: a prompt always goes on, by `MIN_TOKENS` at least; the answer depends on nothing but what was ordered, when that
was, and when it ended.
"""

from __future__ import annotations

from collections import deque

#: However slow the device and however many decode; an iteration with fewer prompt tokens says little of what these cost.
MIN_TOKENS = 16
#: Before anything is known of a device.
_FIRST_TOKENS = 64
#: Weight of the newest iteration in what is known.
_NEWEST = 0.25


class Pace:
    """Learns what a prompt token costs, and says how many may join an iteration.

    Args:
        max_stall_s: seconds that an iteration with decodes should take at most; `None` lets it take what it takes.
    """

    def __init__(self, max_stall_s: float | None) -> None:
        self._max_stall_s = max_stall_s
        self._seconds_per_token: float | None = None
        self._in_flight: deque[tuple[int, float]] = deque()
        self._last_end_s = 0.0

    def prompt_tokens(self, decodes: int) -> int | None:
        """Return how many prompt tokens may be computed beside `decodes` sequences; `None` for as many as there are."""
        if self._max_stall_s is None or decodes == 0:
            return None
        if self._seconds_per_token is None:
            return _FIRST_TOKENS
        return max(MIN_TOKENS, int(self._max_stall_s / self._seconds_per_token) - decodes)

    def ordered(self, tokens: int, prompt_tokens: int, now: float) -> None:
        """Note an iteration of `tokens` in all, `prompt_tokens` of them no decodes."""
        self._in_flight.append((tokens if prompt_tokens >= MIN_TOKENS else 0, now))

    def ended(self, now: float) -> None:
        """Note that the oldest iteration in flight has ended; it began when the one before it had, or when it was ordered."""
        tokens, ordered_s = self._in_flight.popleft()
        seconds = now - max(ordered_s, self._last_end_s)
        self._last_end_s = now
        if tokens == 0 or seconds <= 0.0:  # a clock that was set back
            return
        known, new = self._seconds_per_token, seconds / tokens
        self._seconds_per_token = new if known is None else known + _NEWEST * (new - known)
