"""The scheduler's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge


class SchedulerMetrics:
    """The scheduler's series, in a registry: whether it acts, and how often it has begun to."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._active = Gauge(
            "spotwise_scheduler_active", "1 while this scheduler acts, 0 while it stands by.", registry=registry
        )
        self._term = Gauge(
            "spotwise_scheduler_term", "Term that this scheduler holds; 0 while it stands by.", registry=registry
        )
        self._takeovers = Counter(
            "spotwise_scheduler_takeovers_total", "Terms that this scheduler has begun.", registry=registry
        )
        self._class_workers = Gauge(
            "spotwise_class_workers",
            "Workers of a numerics class that take requests.",
            ("numerics_class",),
            registry=registry,
        )
        self._classes: dict[str, int] = {}
        self._held = 0

    def show_classes(self, workers: Mapping[str, int]) -> None:
        """Show how many workers of each numerics class take requests; a class without any has no series."""
        for name in self._classes.keys() - workers.keys():
            self._class_workers.remove(name)
        for name, count in workers.items():
            self._class_workers.labels(name).set(count)
        self._classes = dict(workers)

    def holds(self, term: int) -> None:
        """Note that it acts in a term."""
        if term != self._held:
            self._held = term
            self._takeovers.inc()
            self._active.set(1)
            self._term.set(term)

    def stands_by(self) -> None:
        """Note that it does not act."""
        self._held = 0
        self._active.set(0)
        self._term.set(0)
