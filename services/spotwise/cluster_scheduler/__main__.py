"""The cluster scheduler: assigns a prompt worker and a token worker to every request; of several, the active one does."""

import contextlib
import sys
from dataclasses import replace
from typing import get_args

import structlog

from spotwise.cluster_scheduler.metrics import SchedulerMetrics
from spotwise.cluster_scheduler.settings import SchedulerSettings
from spotwise.core.membership.term import TermLease
from spotwise.core.messages.fleet import FleetReported
from spotwise.core.messages.members import Member, MemberKind, QuarantinedPair
from spotwise.core.messages.mesh import (
    CloseRequest,
    RecordLedger,
    RequestAccepted,
    RequestRejected,
    Send,
    SubmitRequest,
    Tick,
)
from spotwise.core.scheduler.role import SchedulerActivated, SchedulerDeactivated, SchedulerEvent, SchedulerRole
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.role_loop import RoleLoop
from spotwise.mesh.service.run import run_service
from spotwise.mesh.service.term_holder import TermHolder
from spotwise.wire import subjects
from spotwise.wire.codec import encode

_log = structlog.get_logger(__name__)

#: What its inbox takes; requests come on a subject of their own.
_TO_INBOX = frozenset(get_args(SchedulerEvent)) - {SubmitRequest, CloseRequest, Member, FleetReported, Tick}
#: Interval of the role's deadline checks (lost members, unanswered orders, queue time-outs).
TICK_S = 0.2


class SchedulerService:
    """Feeds the role and performs its commands."""

    def __init__(self, host: ServiceHost, settings: SchedulerSettings, metrics: SchedulerMetrics) -> None:
        self._host = host
        self._metrics = metrics
        self._answers: list[RequestAccepted | RequestRejected] = []
        self._answering = False
        self._refused: dict[str, str | None] = {}
        self._role, journal = host.make_role(
            SchedulerRole, host.id, settings.limits, host.member.incarnation, settings.policy, stands_by=True
        )
        self._loop = RoleLoop(
            self._role,
            host.clock,
            {Send: self._send, RecordLedger: lambda command: host.record(command.entry)},
            journal,
            host.count_failure,
        )
        host.metrics.watch("open_requests", lambda: self._role.live)
        host.metrics.watch("queued_requests", lambda: self._role.queued)
        self._quarantined: tuple[QuarantinedPair, ...] = ()
        lease = TermLease(settings.scheduler_lease_s, needs_store=False)
        self._terms = TermHolder(host, subjects.SCHEDULER, lease, self._activate, self._deactivate)

    async def start(self) -> None:
        """Read the registrations, subscribe to gateways, workers, heartbeats and the fleet, start the ticks, and compete for
        the lease; raises `MeshError` where the store does not answer. Registrations, though some seconds old, give the first
        requests after a restart their workers; heartbeats correct them.
        """
        self._host.describe_with(self._describe)
        for member in await self._host.store.members():
            self._loop.feed(member)
        await self._host.listen(subjects.HEARTBEATS, self._on_heartbeat)
        await self._host.listen(subjects.FLEET, self._on_message, expects=(FleetReported,))
        await self._host.listen(subjects.inbox(self._host.id), self._on_message, expects=_TO_INBOX)
        await self._host.listen(subjects.REQUESTS, self._on_request, expects=(SubmitRequest, CloseRequest))
        self._host.keep_time(TICK_S, self._tick)
        await self._terms.start()

    async def close(self) -> None:
        """Give the lease back, so that a standby takes over at once."""
        await self._terms.close()

    def _activate(self, term: int, until_s: float) -> None:
        self._loop.feed(SchedulerActivated(term, until_s))
        self._metrics.holds(term)

    def _deactivate(self) -> None:
        self._loop.feed(SchedulerDeactivated())
        self._metrics.stands_by()

    async def _on_heartbeat(self, member: Member, raw: BusMessage) -> None:
        self._loop.feed(member)
        if member.load is not None:
            self._terms.saw(member.load.scheduler_term)
        elif member.kind is MemberKind.CLUSTER_SCHEDULER:
            self._terms.member_reported(member)

    async def _on_message(self, message: SchedulerEvent, raw: BusMessage) -> None:
        self._loop.feed(message)

    def _describe(self, member: Member) -> Member:
        quarantined = self._role.quarantined(self._host.clock.now())
        return replace(
            member,
            quarantined=quarantined,
            open_requests=self._role.live,
            queued_requests=self._role.queued,
            term=self._terms.term,
        )

    def _tick(self, tick: Tick) -> None:
        self._loop.feed(tick)
        self._introduce_model()
        self._log_quarantine()

    def _introduce_model(self) -> None:
        """Register the served weights, for `spotwise status` and for workers that join; log workers with other ones."""
        pools = self._role.pools
        self._host.introduce(model_digest=pools.served_model.digest)
        refused = {member.id: member.model_digest for member in pools.with_other_weights()}
        for worker_id, digest in refused.items():
            if self._refused.get(worker_id, "") != digest:
                _log.error("other_weights", worker=worker_id, weights=digest, served=pools.served_model.digest)
        self._refused = refused

    def _log_quarantine(self) -> None:
        logged = {(pair.prompt_worker, pair.token_worker, pair.until_s) for pair in self._quarantined}
        now = self._host.clock.now()
        self._quarantined = self._role.quarantined(now)
        for pair in self._quarantined:
            if (pair.prompt_worker, pair.token_worker, pair.until_s) not in logged:
                _log.warning(
                    "pair_quarantined",
                    prompt_worker=pair.prompt_worker,
                    token_worker=pair.token_worker,
                    failures=pair.failures,
                    for_s=round(pair.until_s - now, 1),
                )

    async def _on_request(self, order: SubmitRequest | CloseRequest, raw: BusMessage) -> None:
        """Feed a submission and send the verdict as its reply: a gateway learns at once when there is no scheduler. Of several
        schedulers each is sent it, and the active one replies.
        """
        self._answering = True
        self._loop.feed(order)
        self._answering = False
        answers, self._answers = self._answers, []
        for answer in answers:
            if raw.respond is not None:
                await raw.respond(encode(answer))

    def _send(self, command: Send) -> None:
        if self._answering and isinstance(command.message, RequestAccepted | RequestRejected):
            self._answers.append(command.message)
        else:
            self._host.send(command.recipient_id, command.message, command.incarnation)


async def serve(settings: SchedulerSettings) -> None:
    """Serve as the cluster scheduler."""
    async with contextlib.AsyncExitStack() as stack:
        host = await stack.enter_async_context(ServiceHost.open(settings, MemberKind.CLUSTER_SCHEDULER))
        scheduler = SchedulerService(host, settings, SchedulerMetrics(host.metrics.registry))
        stack.push_async_callback(scheduler.close)
        await scheduler.start()
        await host.run()


if __name__ == "__main__":
    sys.exit(run_service(SchedulerSettings, serve))
