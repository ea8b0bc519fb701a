"""Counts connections that a port has refused, and logs them at a limited rate, so that a stranger cannot fill the log."""

from __future__ import annotations

import time
from collections import Counter

import structlog

_log = structlog.get_logger(__name__)

#: Between two lines about one reason.
LOG_EVERY_S = 10.0


class RefusedConnections:
    """The refusals of one port, by reason; `plane` names it in the log."""

    def __init__(self, plane: str) -> None:
        self._plane = plane
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}

    @property
    def by_reason(self) -> dict[str, int]:
        """How many were refused for each reason so far."""
        return dict(self._counts)

    @property
    def total(self) -> int:
        """How many were refused so far."""
        return self._counts.total()

    def count(self, reason: str, detail: str, peer_host: str | None = None) -> None:
        """Count one; `reason` is one of few, `detail` for a reader."""
        self._counts[reason] += 1
        now_s, count = time.monotonic(), self._counts[reason]
        logged_s, logged = self._logged.get(reason, (None, 0))
        if logged_s is None or now_s - logged_s >= LOG_EVERY_S:
            self._logged[reason] = (now_s, count)
            _log.warning(
                "connection_refused",
                plane=self._plane,
                reason=reason,
                detail=detail,
                peer=peer_host,
                times=count - logged,
            )
