"""Requests that were closed before their submission reached the scheduler.

Law: a submission that arrives after its attempt, or a later one, was closed is refused.
At most `CAPACITY` requests are remembered, each for `LIFETIME_S`; the scheduler's confirmations (`confirmation.py`) find
submissions that are later still.
"""

from __future__ import annotations

from collections import OrderedDict

CAPACITY = 4096
LIFETIME_S = 60.0


class Tombstones:
    """Closed requests, by id."""

    def __init__(self) -> None:
        self._closed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._closed)

    def add(self, choice_id: str, epoch: int, now: float) -> None:
        """Note that all attempts of a request up to `epoch` are over."""
        known_epoch, _ = self._closed.pop(choice_id, (0, 0.0))
        self._closed[choice_id] = max(known_epoch, epoch), now
        self._forget(now)

    def cover(self, choice_id: str, epoch: int, now: float) -> bool:
        """Tell whether an attempt was closed before it arrived."""
        self._forget(now)
        closed = self._closed.get(choice_id)
        return closed is not None and epoch <= closed[0]

    def _forget(self, now: float) -> None:
        while self._closed:
            _, closed_s = next(iter(self._closed.values()))
            if len(self._closed) <= CAPACITY and now - closed_s <= LIFETIME_S:
                return
            self._closed.popitem(last=False)
