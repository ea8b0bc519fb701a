"""The planner's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from spotwise.core.messages.mesh import Message
from spotwise.core.messages.worker import GiveBackRequest, MoveEnded
from spotwise.core.planner.commands import ReportReshape


class PlannerMetrics:
    """The planner's series."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.term = Gauge(
            "spotwise_planner_term", "Term that this planner holds; 0 while it stands by.", registry=self.registry
        )
        self._moves = Counter(
            "spotwise_planner_moves_total", "Moves of running requests, ended.", ("outcome",), registry=self.registry
        )
        self._moved_tokens = Counter(
            "spotwise_planner_moved_tokens_total", "Tokens whose KV was moved.", registry=self.registry
        )
        self._given_back = Counter(
            "spotwise_planner_given_back_total",
            "Requests given back, to be computed again elsewhere.",
            registry=self.registry,
        )
        self.changes = Counter(
            "spotwise_planner_changes_total", "Changes of the fleet.", ("outcome",), registry=self.registry
        )
        self._messages = Counter(
            "spotwise_planner_messages_total",
            "Messages of the planner, received and sent.",
            ("direction", "type"),
            registry=self.registry,
        )
        self._of_type: dict[tuple[str, type], Counter] = {}
        self._reshapes = Counter(
            "spotwise_planner_reshapes_total", "Re-shapes of the mesh, ended.", ("outcome",), registry=self.registry
        )
        self._reshape_s = Gauge(
            "spotwise_planner_last_reshape_seconds", "Seconds of the last re-shape that ended.", registry=self.registry
        )

    def _count(self, direction: str, message: Message) -> None:
        key = direction, type(message)
        series = self._of_type.get(key)
        if series is None:  # finding it by its labels takes as long as all else of a heartbeat
            series = self._of_type[key] = self._messages.labels(direction, type(message).__name__)
        series.inc()

    def received(self, message: Message) -> None:
        """Count a message to the planner, its own heartbeats among them."""
        self._count("received", message)
        if isinstance(message, MoveEnded):
            self._moves.labels(message.outcome.value).inc()
            self._moved_tokens.inc(message.tokens)

    def sent(self, message: Message) -> None:
        """Count a survey or an order."""
        self._count("sent", message)
        if isinstance(message, GiveBackRequest):
            self._given_back.inc()

    def reshaped(self, report: ReportReshape) -> None:
        """Count the end of a re-shape."""
        if report.stage.is_over:
            self._reshapes.labels(report.stage.value).inc()
            self._reshape_s.set(report.seconds)
