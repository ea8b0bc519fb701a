"""Load of the planner's process: processor time, and messages by direction and type."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from spotwise.benchmarks.process_usage import ProcessUsage
from spotwise.cli.client.gateway_client import request_failures

_PLANNER = "planner-0"
_SERIES = "spotwise_planner_messages_total"


@dataclass(frozen=True, slots=True)
class PlannerLoad:
    """From the planner's start, or between two samples (`since`).

    Attributes:
        seconds: wall-clock time; `cpu_s`: processor time.
        received, sent: messages, by type.
    """

    seconds: float
    cpu_s: float
    received: Counter[str]
    sent: Counter[str]

    @classmethod
    async def now(cls, mesh: str, metrics_url: str) -> Self:
        """Sample the planner of a mesh, whose metrics are at a URL; raises `CommandError` where they are not."""
        with request_failures(metrics_url):
            async with httpx.AsyncClient(trust_env=False) as client:
                text = (await client.get(metrics_url)).raise_for_status().text
        return cls(time.perf_counter(), ProcessUsage.of_mesh(mesh).cpu_s[_PLANNER], *counts_of(text))

    def since(self, earlier: PlannerLoad) -> PlannerLoad:
        """Return what came after an earlier sample."""
        return PlannerLoad(
            self.seconds - earlier.seconds,
            self.cpu_s - earlier.cpu_s,
            self.received - earlier.received,
            self.sent - earlier.sent,
        )

    @property
    def cores(self) -> float:
        """Processors that it kept busy."""
        return self.cpu_s / self.seconds

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        counts = {"received": dict(self.received), "sent": dict(self.sent)}
        return {"seconds": self.seconds, "cpu_s": self.cpu_s, **counts}


def counts_of(metrics: str) -> tuple[Counter[str], Counter[str]]:
    """Read the planner's metrics: messages that it received and sent, by type."""
    counts: dict[str, Counter[str]] = {"received": Counter(), "sent": Counter()}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == _SERIES:
                counts[sample.labels["direction"]][sample.labels["type"]] += int(sample.value)
    return counts["received"], counts["sent"]
