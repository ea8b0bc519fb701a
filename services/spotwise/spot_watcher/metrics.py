"""The watcher's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from prometheus_client import CollectorRegistry, Counter, start_http_server

from spotwise.mesh.ports import MeshError
from spotwise.spot_watcher.settings import SpotWatcherSettings

_log = structlog.get_logger(__name__)


class WatcherMetrics:
    """The watcher's series."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.questions = Counter(
            "spotwise_spot_questions_total",
            "Queries of the metadata service.",
            ("cloud", "outcome"),
            registry=self.registry,
        )
        self.notices = Counter("spotwise_spot_notices_total", "Notices to workers.", registry=self.registry)
        self.reports = Counter(
            "spotwise_spot_reports_total", "Interruption reports.", ("kind",), registry=self.registry
        )
        self.acknowledgements = Counter(
            "spotwise_spot_acknowledgements_total",
            "Acknowledgements of events to the cloud.",
            ("outcome",),
            registry=self.registry,
        )

    @contextmanager
    def served(self, settings: SpotWatcherSettings) -> Iterator[None]:
        """Serve the series for the block where the settings name a port; raises `MeshError` where the port is taken."""
        if settings.metrics_port is None:
            yield
            return
        try:
            server, thread = start_http_server(settings.metrics_port, settings.bind_host, self.registry)
        except OSError as error:
            raise MeshError(
                f"cannot listen on {settings.bind_host}:{settings.metrics_port} (SPOTWISE_METRICS_PORT): {error}"
            ) from error
        _log.info("metrics", port=server.server_port)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def outcome(problem: str | None) -> str:
    """Return the outcome's label."""
    return "answered" if problem is None else "failed"
