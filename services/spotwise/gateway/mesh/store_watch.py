"""Looks how full the store is: for the metrics, and for a warning where it has no more memory."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from spotwise.core.access.store_budget import FULL_FOR_S, Kind, RoomUse
from spotwise.gateway.generate.metrics import GatewayMetrics

_log = structlog.get_logger(__name__)

LOOK_EVERY_S = 5.0


class _Store(Protocol):
    async def room_use(self) -> Mapping[Kind, RoomUse]:
        """Return how full the room of each kind is."""


class StoreWatch:
    """The store as one gateway sees it.

    Args:
        store: has the sums of all gateways.
        metrics: this gateway's.
        now_unix_s: a clock.
    """

    def __init__(self, store: _Store, metrics: GatewayMetrics, now_unix_s: Callable[[], float] = time.time) -> None:
        self._store = store
        self._metrics = metrics
        self._now_unix_s = now_unix_s
        self._warned_unix_s = 0.0

    def begin(self, every: Callable[[float, Callable[[], Awaitable[None]], str], None]) -> None:
        """Look from now on."""
        every(LOOK_EVERY_S, self.look, "store_room")

    async def look(self) -> None:
        """Look once; raises `MeshError` where the store does not answer."""
        uses, now_unix_s = await self._store.room_use(), self._now_unix_s()
        full = [kind.value for kind, use in uses.items() if use.is_full(now_unix_s)]
        self._metrics.observe_store(uses, is_full=bool(full))
        if full and now_unix_s - self._warned_unix_s >= FULL_FOR_S:
            self._warned_unix_s = now_unix_s
            message = "the store has no more memory; what is kept makes room for itself, or is not kept"
            _log.warning("store_full", detail=message, kinds=full)
