"""Feeds the planner's role, and performs its commands."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import structlog

from spotwise.core.latest import LatestDict
from spotwise.core.membership.term import TermLease
from spotwise.core.messages.fleet import FleetReported, LoadReported, ShowFleet
from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import InterruptionReported, Message, Send
from spotwise.core.messages.reshape import DeviceSurveyed, GroupFormed, ReshapeMesh
from spotwise.core.messages.worker import MoveEnded, WorkerSurveyed
from spotwise.core.planner import commands as c
from spotwise.core.planner.plan import Plan
from spotwise.core.planner.role import PlannerRole
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.mesh.process.logs import LoggedErrors
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.role_loop import RoleLoop
from spotwise.mesh.service.term_holder import TermHolder
from spotwise.migration_planner.metrics import PlannerMetrics
from spotwise.migration_planner.settings import PlannerSettings
from spotwise.wire import subjects
from spotwise.wire.codec import encode

_log = structlog.get_logger(__name__)

#: Interval of the role's decisions: a copy starts this much late at most.
TICK_S = 0.1
#: Operators that still wait for an answer; of more the oldest get none.
_MOST_WAITING = 16
_REMEMBERED = 256
#: What its inbox takes.
_TO_INBOX = frozenset((WorkerSurveyed, DeviceSurveyed, GroupFormed, MoveEnded))


class Planner:
    """One planner; of several, the one with the lease acts."""

    def __init__(self, host: ServiceHost, settings: PlannerSettings, metrics: PlannerMetrics) -> None:
        self._host = host
        self._metrics = metrics
        lease = TermLease(settings.planner_lease_s, needs_store=True)
        self._terms = TermHolder(host, subjects.PLANNER, lease, self._term_held, self._term_lost, self._read_plan)
        self._plan_read: Plan | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[bytes], Awaitable[None]]] = {}
        self._bought = LatestDict[str, None](_REMEMBERED)  # what the log has, since orders are repeated
        self._given_back = LatestDict[str, None](_REMEMBERED)
        role, journal = host.make_role(
            PlannerRole, host.id, settings.policy, settings.fleet_types, settings.fleet_policy
        )
        self._loop = RoleLoop(
            role,
            host.clock,
            {
                Send: self._send,
                c.StorePlan: lambda command: host.spawn(self._store(command), "store_plan"),
                c.ReportChange: self._report,
                c.ReportReshape: self._report_reshape,
                c.AnswerReshape: lambda command: host.spawn(self._answer(command), "answer_operator"),
                c.PublishDrain: self._publish_drain,
                c.PublishFleetOrder: self._publish_fleet_order,
                c.AnswerFleet: lambda command: host.spawn(
                    self._respond(command.number, command.view), "answer_operator"
                ),
            },
            journal,
            host.count_failure,
        )
        host.metrics.watch("waiting_operators", lambda: len(self._waiting))
        metrics.registry.register(host.metrics)

    async def start(self) -> None:
        """Subscribe to heartbeats, reports, answers and operators' orders, start the ticks, and compete for the lease."""
        self._host.describe_with(self._describe)
        await self._host.listen(subjects.HEARTBEATS, self._on_heartbeat)
        await self._host.listen(subjects.INTERRUPTIONS, self._on_message, expects=(InterruptionReported,))
        await self._host.listen(subjects.inbox(self._host.id), self._on_message, expects=_TO_INBOX)
        await self._host.listen(subjects.LOAD, self._on_message, expects=(LoadReported,))
        await self._host.listen(subjects.FLEET, self._on_message, expects=(FleetReported,))
        await self._host.listen(subjects.RESHAPE, self._reshape, expects=(ReshapeMesh,))
        await self._host.listen(subjects.SHOW_FLEET, self._show_fleet, expects=(ShowFleet,))
        self._host.keep_time(TICK_S, self._loop.feed)
        await self._terms.start()

    async def close(self) -> None:
        """Give the lease back, so that another planner need not wait for its end."""
        await self._terms.close()

    def _describe(self, member: Member) -> Member:
        return replace(member, term=self._terms.term)

    async def _on_heartbeat(self, member: Member, raw: BusMessage) -> None:
        await self._on_message(member, raw)
        if member.kind is self._host.member.kind:
            self._terms.member_reported(member)

    async def _on_message(self, message: Any, raw: BusMessage) -> None:
        self._metrics.received(message)
        self._loop.feed(message)

    async def _reshape(self, order: ReshapeMesh, raw: BusMessage) -> None:
        self._metrics.received(order)
        self._loop.feed(c.ReshapeRequested(self._wait(raw), order))

    async def _show_fleet(self, question: ShowFleet, raw: BusMessage) -> None:
        self._metrics.received(question)
        self._loop.feed(c.FleetAsked(self._wait(raw)))

    def _wait(self, raw: BusMessage) -> int:
        """Return the number under which an operator is answered."""
        number = next(self._numbers)
        if raw.respond is not None:
            self._waiting[number] = raw.respond
        while len(self._waiting) > _MOST_WAITING:  # without the lease none is answered
            del self._waiting[next(iter(self._waiting))]
        return number

    async def _answer(self, command: c.AnswerReshape) -> None:
        _log.info("reshape_answered", accepted=command.reply.accepted, detail=command.reply.detail)
        await self._respond(command.number, command.reply)

    async def _respond(self, number: int, message: Message) -> None:
        respond = self._waiting.pop(number, None)
        if respond is not None:
            with LoggedErrors("answer_operator"):
                await respond(encode(message))

    async def _read_plan(self, term: int) -> None:
        """Read what the last planner had planned, before this one's term begins."""
        self._plan_read = await self._host.store.get_plan()

    def _term_held(self, term: int, until_s: float) -> None:
        plan, self._plan_read = self._plan_read, None
        self._metrics.term.set(term)
        self._loop.feed(c.TermHeld(term, until_s, plan))

    def _term_lost(self) -> None:
        self._metrics.term.set(0)
        self._loop.feed(c.TermLost())

    async def _store(self, command: c.StorePlan) -> None:
        try:
            is_stored = await self._host.store.put_plan(self._terms.holder, command.plan)
        except MeshError as error:
            _log.warning("plan_not_stored", error=str(error))
            is_stored = False
        self._loop.feed(c.PlanStored(command.plan.version, is_stored))

    def _send(self, command: Send) -> None:
        self._metrics.sent(command.message)
        self._host.send(command.recipient_id, command.message, command.incarnation)

    def _report(self, command: c.ReportChange) -> None:
        self._metrics.changes.labels(command.outcome).inc()
        _log.info("change", number=command.change, workers=",".join(command.workers), outcome=command.outcome)

    def _publish_drain(self, command: c.PublishDrain) -> None:
        drain = command.drain
        self._metrics.sent(drain)
        self._host.post(subjects.NOTICES, drain)
        _log.info("drain", worker=drain.worker_id, deadline_s=drain.deadline_s, reason=drain.reason)

    def _publish_fleet_order(self, command: c.PublishFleetOrder) -> None:
        order = command.order
        self._metrics.sent(order)
        self._host.post(subjects.FLEET_ORDERS, order)
        for bought in order.purchases:
            if bought.token not in self._bought:
                self._bought[bought.token] = None
                _log.info(
                    "purchase",
                    token=bought.token,
                    types=",".join(bought.type_names),
                    market=bought.market.value,
                    count=bought.count,
                )
        for given_back in order.releases:
            if given_back.instance_id not in self._given_back:
                self._given_back[given_back.instance_id] = None
                _log.info("release", instance=given_back.instance_id, reason=given_back.reason)

    def _report_reshape(self, command: c.ReportReshape) -> None:
        self._metrics.reshaped(command)
        _log.info(
            "reshape",
            change=command.change,
            config=command.config,
            stage=command.stage.value,
            seconds=round(command.seconds, 3),
            **({"reason": command.reason} if command.reason else {}),
        )
