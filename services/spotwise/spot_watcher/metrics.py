"""The watcher's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


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


def outcome(problem: str | None) -> str:
    """Return the outcome's label."""
    return "answered" if problem is None else "failed"
