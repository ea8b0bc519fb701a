"""A service's own Prometheus metrics, and what every member counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum

import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spotwise.mesh.ports.ports import MeshError

_log = structlog.get_logger(__name__)


@contextmanager
def served_metrics(registry: CollectorRegistry, host: str, port: int | None, setting: str) -> Iterator[None]:
    """Serve `registry` for the block, unless `port` is `None`; raises `MeshError`, naming the setting, where it is taken."""
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise MeshError(f"cannot listen on {host}:{port} ({setting}): {error}") from error
    _log.info("metrics", port=server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Dropped(StrEnum):
    """Why a received message has no effect."""

    MALFORMED = "malformed"  #: no message of this version
    UNEXPECTED = "unexpected"  #: a message that the receiver does not take on that subject
    #: a heartbeat of another member than the subject names, or what the role in an inbox's subject may not send
    WRONG_SENDER = "wrong_sender"
    FAILED = "failed"  #: a bug: its handling raised


class HostMetrics(Collector):
    """One member's series, collected when they are read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._dropped: Counter[Dropped] = Counter()
        self._deadlines = self._foreign_kv = 0
        self._entries: dict[str, Callable[[], int]] = {}
        self.registry.register(self)

    def dropped(self, reason: Dropped) -> int:
        """Count a dropped message; return how many were dropped for that reason."""
        self._dropped[reason] += 1
        return self._dropped[reason]

    def deadline_passed(self) -> None:
        """Count a sequence that is dropped here because its client's deadline has come."""
        self._deadlines += 1

    def foreign_kv_arrived(self) -> None:
        """Count a hand-off whose KV is of another numerics class than this worker's."""
        self._foreign_kv += 1

    def watch(self, of: str, entries: Callable[[], int]) -> None:
        """Show how many entries there are of something that is bounded; `entries` is called from another thread."""
        self._entries[of] = entries

    def collect(self) -> Iterable[Metric]:
        """Return the series as they are now."""
        dropped = CounterMetricFamily(
            "spotwise_messages_dropped", "Received messages without effect.", labels=("reason",)
        )
        for reason in Dropped:
            dropped.add_metric((reason.value,), self._dropped[reason])
        entries = GaugeMetricFamily("spotwise_entries", "Entries of lists that are bounded.", labels=("of",))
        for of, count in list(self._entries.items()):
            entries.add_metric((of,), count())
        deadlines = CounterMetricFamily("spotwise_deadlines_passed", "Sequences dropped at their client's deadline.")
        deadlines.add_metric((), self._deadlines)
        foreign = CounterMetricFamily("spotwise_foreign_kv", "Hand-offs with KV of another numerics class.")
        foreign.add_metric((), self._foreign_kv)
        return [dropped, entries, deadlines, foreign]
