"""Publishes notices to workers and devices, and reports to planners."""

from __future__ import annotations

import structlog

from spotwise.core.spot import commands as c
from spotwise.mesh.service.host import ServiceHost
from spotwise.spot_watcher.metrics import WatcherMetrics
from spotwise.wire import subjects

_log = structlog.get_logger(__name__)


class Announcer:
    """Performs the commands that announce interruptions."""

    def __init__(self, host: ServiceHost, metrics: WatcherMetrics) -> None:
        self._host = host
        self._metrics = metrics

    def publish_notice(self, command: c.PublishNotice) -> None:
        """Notify a worker or device."""
        notice = command.notice
        self._host.post(subjects.NOTICES, notice)
        self._metrics.notices.inc()
        _log.info(
            "notice",
            worker=notice.worker_id,
            deadline_s=notice.deadline_s,
            reason=notice.reason,
            **({"again": True} if command.again else {}),
        )

    def publish_report(self, command: c.PublishReport) -> None:
        """Report an interruption."""
        report = command.report
        self._host.post(subjects.INTERRUPTIONS, report)
        if command.again:
            return
        self._metrics.reports.labels(report.kind.value).inc()
        _log.info(
            "interruption",
            kind=report.kind.value,
            event_id=report.event_id,
            workers=",".join(report.worker_ids),
            deadline_s=report.deadline_s,
            reason=report.reason,
        )
