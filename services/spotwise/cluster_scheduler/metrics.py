"""The scheduler's Prometheus metrics."""

from __future__ import annotations

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
        self._held = 0

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
