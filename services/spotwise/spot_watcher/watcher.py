"""Feeds the spot watcher's role, and performs its commands."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import structlog

from spotwise.cloud.dialogue import Cloud
from spotwise.cloud.http_client import HttpClient
from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import DrainReply
from spotwise.core.messages.worker import Drain
from spotwise.core.spot import commands as c
from spotwise.core.spot.role import SpotWatcherRole
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.role_loop import RoleLoop
from spotwise.spot_watcher.announcing import Announcer
from spotwise.spot_watcher.metrics import WatcherMetrics, outcome
from spotwise.spot_watcher.processes import LocalProcesses
from spotwise.spot_watcher.settings import SpotWatcherSettings
from spotwise.wire import subjects
from spotwise.wire.codec import encode

_log = structlog.get_logger(__name__)


class SpotWatcher:
    """One machine's watcher."""

    def __init__(self, host: ServiceHost, settings: SpotWatcherSettings, metrics: WatcherMetrics) -> None:
        self._host = host
        self._poll_s = settings.cloud_poll_s
        self._tick_s = settings.member_timeout_s / 2
        self._metrics = metrics
        self._here: tuple[Cloud, HttpClient] | None = None
        self._due_s: asyncio.Queue[float] = asyncio.Queue()
        self._replies: list[DrainReply] = []
        announcer = Announcer(host, metrics)
        role, journal = host.make_role(SpotWatcherRole, host.id, settings.policy(host.member.host))
        self._loop = RoleLoop(
            role,
            host.clock,
            {
                c.AskCloud: lambda command: self._due_s.put_nowait(command.at_s),
                c.PublishNotice: announcer.publish_notice,
                c.PublishReport: announcer.publish_report,
                c.AnnounceLoss: self._announce_loss,
                c.AcknowledgeEvent: lambda command: host.spawn(self._acknowledge(command.event_id), "acknowledge"),
                c.AnswerOperator: lambda command: self._replies.append(command.reply),
                c.ReportProblem: self._report_problem,
            },
            journal,
            host.count_failure,
        )
        metrics.registry.register(host.metrics)

        self._processes = LocalProcesses(
            host.member.host, host.id, lambda member: self._loop.feed(c.ProcessEnded(member))
        )

    async def start(self) -> None:
        """Subscribe to heartbeats and operators, and start the ticks."""
        await self._host.listen(subjects.HEARTBEATS, self._on_heartbeat)
        await self._host.listen(subjects.DRAIN, self._drain, subjects.WATCHERS, expects=(Drain,))
        self._host.keep_time(self._tick_s, self._loop.feed)

    async def watch(self, cloud: AbstractAsyncContextManager[tuple[Cloud, HttpClient] | None]) -> None:
        """Query the machine's cloud when the role commands it; returns at once where there is none. Raises `MeshError` where
        the cloud's certificates cannot be read, or the role stopped querying.
        """
        async with cloud as here:
            if here is None:
                return
            self._here = here
            metadata, client = here
            _log.info("watching", cloud=metadata.name)
            self._loop.feed(c.WatchStarted(metadata.name, self._poll_s or metadata.poll_s))
            while not self._due_s.empty():
                await asyncio.sleep(max(0.0, self._due_s.get_nowait() - self._host.clock.now()))
                answer = await client.converse(metadata.query(self._host.clock.now()))
                self._metrics.questions.labels(metadata.name, outcome(answer.problem)).inc()
                self._loop.feed(answer)
        raise MeshError("the watcher stopped querying its cloud; see the log above")

    def close(self) -> None:
        """Stop watching the machine's processes."""
        self._processes.close()

    async def _on_heartbeat(self, member: Member, raw: BusMessage) -> None:
        self._processes.observe(member)
        self._loop.feed(member)

    async def _drain(self, order: Drain, raw: BusMessage) -> None:
        self._loop.feed(order)
        replies, self._replies = self._replies, []
        for reply in replies:
            if raw.respond is not None:
                await raw.respond(encode(reply))

    def _announce_loss(self, command: c.AnnounceLoss) -> None:
        member = command.member
        self._host.post(subjects.heartbeat(member.kind, member.id), member)
        _log.info("process_ended", member=member.id, kind=member.kind.value, pid=member.pid)

    async def _acknowledge(self, event_id: str) -> None:
        if self._here is None:
            return
        metadata, client = self._here
        problem = await client.converse(metadata.acknowledge(event_id))
        self._metrics.acknowledgements.labels(outcome(problem)).inc()
        if problem is None:
            _log.info("acknowledged", event_id=event_id)
        else:
            _log.warning("acknowledgement_failed", event_id=event_id, problem=problem)
        self._loop.feed(c.AcknowledgementAnswered(event_id, problem))

    def _report_problem(self, command: c.ReportProblem) -> None:
        if command.problem is None:
            _log.info("metadata_readable")
        else:
            _log.warning("metadata_unreadable", problem=command.problem)
