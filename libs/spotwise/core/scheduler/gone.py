"""Tracks gone gateways that workers still send tokens to, and requests that were closed before their submission arrived.

Law: a gateway's incarnation is gone once a later one was seen, or after `patience_s` of listening without a heartbeat of it.
Each worker that reports a gone gateway is ordered to forget it, again with every report until it has.
Thus a gateway's requests end with it, whichever message was lost.

Law: a submission that arrives after its attempt, or a later one, was closed is refused.
At most `CAPACITY` requests are remembered, each for `LIFETIME_S`; the scheduler's confirmations (`confirmation.py`) find
submissions that are later still.
"""

from __future__ import annotations

from collections import OrderedDict

from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m


class GoneGateways:
    """Compares what workers report with the gateways present; a scheduler that has just started knows none of these."""

    def __init__(self, membership: Membership, patience_s: float) -> None:
        self._membership = membership
        self._patience_s = patience_s
        self._absent_s: dict[tuple[str, int], float] = {}

    def was_away(self, seconds: float) -> None:
        """Extend the patience by a time in which the scheduler was cut off."""
        self._absent_s = {gateway: since_s + seconds for gateway, since_s in self._absent_s.items()}

    def among(self, worker: m.Member, now: float) -> list[m.ForgetGateway]:
        """Return the gateways that a worker is to forget, of those in its heartbeat."""
        streams = worker.load.gateways if worker.load is not None else ()
        return [
            m.ForgetGateway(each.gateway_id, each.incarnation)
            for each in streams
            if self.is_gone(each.gateway_id, each.incarnation, now)
        ]

    def forget_old(self, now: float) -> None:
        """Drop gateways that no worker has named for long."""
        keep_s = 10 * self._patience_s
        self._absent_s = {gateway: since for gateway, since in self._absent_s.items() if now - since < keep_s}

    def is_gone(self, gateway_id: str, incarnation: int, now: float) -> bool:
        """Tell whether that incarnation waits for nothing any more."""
        if self._membership.is_gone(gateway_id, incarnation):
            return True
        key = gateway_id, incarnation
        if self._membership.get(gateway_id) is not None:
            self._absent_s.pop(key, None)
            return False
        return now - self._absent_s.setdefault(key, now) > self._patience_s


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
