"""Which reports of interruptions are repeated, so that a planner that starts later, or lost a message, learns of each.

Law: an active sign is reported again every `REPEAT_S`, with the machine's workers of that moment, for as long as it is active.
A withdrawal and a loss are repeated for `KEPT_S`; a report of the same event replaces the earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spotwise.core.messages.mesh import InterruptionKind, InterruptionReported

#: Seconds between two reports of one event: a part of the shortest notice (30 s), and no load for a bus.
REPEAT_S = 2.0
#: Seconds for which a withdrawal or a loss is repeated: longer than a planner's successor takes to start.
KEPT_S = 60.0
_OF_THE_MACHINE = (InterruptionKind.HINT, InterruptionKind.NOTICE)


@dataclass(slots=True)
class _Reported:
    report: InterruptionReported
    since_s: float
    sent_s: float


class RepeatedReports:
    """The last report of each event."""

    def __init__(self) -> None:
        self._reported: dict[str, _Reported] = {}

    def remember(self, report: InterruptionReported, now: float) -> None:
        """Note a report that is published now."""
        self._reported[report.event_id] = _Reported(report, now, now)

    def due(self, worker_ids: tuple[str, ...], now: float) -> list[InterruptionReported]:
        """Return the reports to publish again; `worker_ids` are the machine's workers now."""
        due = []
        for event_id, reported in list(self._reported.items()):
            is_active = reported.report.kind in _OF_THE_MACHINE
            if not is_active and now - reported.since_s > KEPT_S:
                del self._reported[event_id]
            elif now - reported.sent_s >= REPEAT_S:
                reported.sent_s = now
                due.append(replace(reported.report, worker_ids=worker_ids) if is_active else reported.report)
        return due
