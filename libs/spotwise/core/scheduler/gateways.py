"""Finds gateways that are gone and that workers still send tokens to.

Law: a gateway's incarnation is gone once a later one was seen, or after `patience_s` of listening without a heartbeat of it.
Each worker that reports a gone gateway is ordered to forget it, again with every report until it has.
Thus a gateway's requests end with it, whichever message was lost.
"""

from __future__ import annotations

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
