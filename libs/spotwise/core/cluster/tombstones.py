"""Requests that were closed before the scheduler had heard of them.

Law: gateways send submissions and closings on one subject, in order, but a submission may wait in its gateway or on its way.
One that comes after the closing of its attempt, or of a later one, is refused. What is remembered is bounded in number and in
time: a submission that is later still is found by the scheduler's questions (`confirmation.py`).

Invariants: at most `CAPACITY` requests, each for `LIFETIME_S` at most.
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
        """Tell whether an attempt was closed before it came."""
        self._forget(now)
        closed = self._closed.get(choice_id)
        return closed is not None and epoch <= closed[0]

    def _forget(self, now: float) -> None:
        while self._closed:
            _, closed_s = next(iter(self._closed.values()))
            if len(self._closed) <= CAPACITY and now - closed_s <= LIFETIME_S:
                return
            self._closed.popitem(last=False)
