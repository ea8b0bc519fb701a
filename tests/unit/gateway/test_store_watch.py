"""How full the store is, as a gateway shows it."""

from __future__ import annotations

from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from spotwise.core.access.store_budget import FULL_FOR_S, Kind, RoomUse
from spotwise.gateway.generate.metrics import GatewayMetrics, StoreWatch

NOW_S = 1_700_000_000.0


class FakeStore:
    """Its sums are set by the test."""

    def __init__(self) -> None:
        self.uses = dict.fromkeys(Kind, RoomUse(5, 10))

    async def room_use(self) -> dict[Kind, RoomUse]:
        return self.uses


async def test_a_full_store_is_in_the_metrics_and_once_a_minute_in_the_log() -> None:
    store, now_s = FakeStore(), [NOW_S]
    metrics = GatewayMetrics(CollectorRegistry(), "m")
    watch = StoreWatch(store, metrics, lambda: now_s[0])

    def shown(name: str, **labels: str) -> Any:
        return metrics.registry.get_sample_value(name, {"model_name": "m", **labels})

    with structlog.testing.capture_logs() as logs:
        await watch.look()
        assert (shown("spotwise_store_bytes", of="ledgers"), shown("spotwise_store_max_bytes", of="ledgers")) == (5, 10)
        assert (shown("spotwise_store_full"), logs) == (0, [])
        store.uses[Kind.LEDGERS] = RoomUse(5, 10, NOW_S)
        for _ in range(3):
            now_s[0] += 10
            await watch.look()
        assert shown("spotwise_store_full") == 1
        assert [(line["event"], line["log_level"], line["kinds"]) for line in logs] == [
            ("store_full", "warning", ["ledgers"])
        ]
        now_s[0] = NOW_S + FULL_FOR_S
        await watch.look()
        assert shown("spotwise_store_full") == 0
        assert len(logs) == 1
