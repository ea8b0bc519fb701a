"""The watcher's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


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
        self.instances = Gauge(
            "spotwise_fleet_instances",
            "Instances of the fleet, those that went lately included.",
            ("type", "market", "state"),
            registry=self.registry,
        )
        self.spent = Gauge("spotwise_fleet_spent_dollars", "Dollars for all instances so far.", registry=self.registry)
        self.failed_starts = Gauge(
            "spotwise_fleet_failed_starts",
            "Instances in a row that did not become ready, by type; 0 once one does.",
            ("type",),
            registry=self.registry,
        )
        self.purchases = Counter(
            "spotwise_fleet_purchases_total", "Answers to purchases.", ("outcome",), registry=self.registry
        )


def outcome(problem: str | None) -> str:
    """Return the outcome's label."""
    return "answered" if problem is None else "failed"
