"""The spot watcher: every sign that a machine must go becomes a notice, with an absolute deadline, to each worker on it.

Decides who is told what and when, when the cloud is asked, and when it hears that it may take the machine.

Law, after SpotServe, section 4, and what each cloud documents:

- A worker is told once of a deadline, and again of an earlier one only; a worker that goes on as if it had heard nothing is
  told again, because the bus may lose a message. One that starts while a notice stands is told when it is ready to hear.
- A hint has no deadline: it is reported to whoever plans, and no worker acts on it.
- A sign that is withdrawn is reported. A worker that drains goes on doing so, for others count on that already.
- The cloud hears that an event may begin only when every worker that was told has said goodbye and no other is there. One that
  fell silent has not said it: its silence may be the bus's, and it may still be handing KV off.
- A worker that is lost without a word is reported with the time of that as its deadline, by one of the watchers: the first by
  id. Who hears nobody, itself included, is itself away and reports nobody.

Invariants: there is one question at a time; while notices stand, the deadlines that an incarnation of a worker is told fall,
and every worker beside the watcher that is ready has been told of the earliest deadline or of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spotwise.core.membership import MemberLost, Membership
from spotwise.core.messages import (
    Drain,
    DrainReply,
    InterruptionKind,
    InterruptionReported,
    Member,
    MemberKind,
    MemberState,
    Tick,
)
from spotwise.core.spot.commands import (
    AcknowledgeEvent,
    AcknowledgementAnswered,
    AnnounceLoss,
    AnswerOperator,
    AskCloud,
    ProcessEnded,
    PublishNotice,
    PublishReport,
    ReportProblem,
    SpotWatcherCommand,
    SpotWatcherEvent,
    WatchStarted,
)
from spotwise.core.spot.policy import WatchPolicy
from spotwise.core.spot.signs import ActiveSigns, MetadataAnswered, Sign

#: A worker that still says that it is ready so long after it was told has not heard it.
RETELL_S = 1.0


@dataclass(slots=True)
class _Reported:
    """What an incarnation of a worker was told, and whether it has said goodbye since."""

    incarnation: int
    deadline_s: float
    at_s: float
    left: bool = False


class SpotWatcherRole:
    """One machine's watcher."""

    def __init__(self, watcher_id: str, policy: WatchPolicy) -> None:
        self.watcher_id = watcher_id
        self._policy = policy
        self._membership = Membership(policy.member_timeout_s)
        self._signs = ActiveSigns()
        self._told: dict[str, _Reported] = {}
        self._acknowledged: list[str] = []
        self._asked_s = 0.0
        self._poll_s = 0.0
        self._failures = 0
        self._problem: str | None = None
        self._received_own_heartbeat_s: float | None = None
        self._commands: list[SpotWatcherCommand] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            Member: self._hear,
            Drain: self._drain,
            Tick: self._tick,
            WatchStarted: self._start,
            MetadataAnswered: self._read,
            AcknowledgementAnswered: self._acknowledgement_answered,
            ProcessEnded: self._process_ended,
        }

    def handle(self, event: SpotWatcherEvent, now: float) -> list[SpotWatcherCommand]:
        """Take in an event and return what to do."""
        self._commands = []
        self._handlers[type(event)](event, now)
        return self._commands

    # --- who is there -------------------------------------------------------------------------------------------------

    def _hear(self, member: Member, now: float) -> None:
        if member.id == self.watcher_id:
            self._received_own_heartbeat_s = now
        for change in self._membership.observe(member, now):
            was_replaced = change.member.incarnation < member.incarnation
            if isinstance(change, MemberLost) and (was_replaced or member.state is MemberState.LOST):
                self._report_lost(change, now)
        if member.state is MemberState.LEFT:
            told = self._told.get(member.id)
            if told is not None and member.incarnation >= told.incarnation:
                told.left = True
            self._acknowledge()
            return
        if self._membership.get(member.id) is member and self._policy.is_beside(member) and self._tell(member, now):
            deadline_s, sign = self._signs.notice() or (now, None)
            if sign is not None:
                self._report(sign, InterruptionKind.NOTICE, deadline_s, (member.id,))

    def _tick(self, event: Tick, now: float) -> None:
        self._membership.was_away(event.away_s)
        for change in self._membership.expire(now):
            if isinstance(change, MemberLost):
                self._report_lost(change, now)

    def _process_ended(self, event: ProcessEnded, now: float) -> None:
        """Announce the loss, unless the member has said goodbye or was replaced."""
        known = self._membership.get(event.member.id)
        if known is not None and known.incarnation == event.member.incarnation:
            self._commands.append(AnnounceLoss(replace(event.member, state=MemberState.LOST, load=None)))

    def _report_lost(self, lost: MemberLost, now: float) -> None:
        member = lost.member
        if member.kind in (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER) and self._speaks_for_all(now):
            event_id = f"lost-{member.id}-{member.incarnation}"
            self._commands.append(
                PublishReport(
                    InterruptionReported(
                        self.watcher_id, event_id, InterruptionKind.LOST, (member.id,), now, f"lost: {lost.reason}"
                    )
                )
            )

    def _speaks_for_all(self, now: float) -> bool:
        heard_s = self._received_own_heartbeat_s
        if heard_s is None or now - heard_s > self._policy.member_timeout_s / 2:
            return False
        others = (member.id for member in self._membership.all(MemberKind.SPOT_WATCHER))
        return self.watcher_id <= min(others, default=self.watcher_id)

    # --- what operators want ------------------------------------------------------------------------------------------

    def _drain(self, order: Drain, now: float) -> None:
        workers = [worker.id for worker in self._membership.workers()]
        if order.worker_id in workers:
            self._commands.append(PublishNotice(order))
            self._commands.append(AnswerOperator(DrainReply(True, "")))
        else:
            detail = f"no worker {order.worker_id}; there are: {', '.join(workers) or 'none'}"
            self._commands.append(AnswerOperator(DrainReply(False, detail)))

    # --- what the cloud says ------------------------------------------------------------------------------------------

    def _start(self, event: WatchStarted, now: float) -> None:
        self._poll_s = event.poll_s
        self._ask(now)

    def _ask(self, at_s: float) -> None:
        self._asked_s = at_s
        self._commands.append(AskCloud(at_s))

    def _read(self, answer: MetadataAnswered, now: float) -> None:
        self._failures = 0 if answer.problem is None else self._failures + 1
        if answer.problem != self._problem:
            self._problem = answer.problem
            self._commands.append(ReportProblem(answer.problem))
        changes = self._signs.observe(answer, now)
        beside = [worker for worker in self._membership.workers() if self._policy.is_beside(worker)]
        worker_ids = tuple(worker.id for worker in beside)
        for gone in changes.gone:
            self._withdraw(gone.sign, worker_ids)
        for seen in changes.seen:
            kind = InterruptionKind.HINT if seen.deadline_s is None else InterruptionKind.NOTICE
            self._report(seen.sign, kind, seen.deadline_s, worker_ids)
        for worker in beside:
            self._tell(worker, now)
        self._acknowledge()
        self._ask(self._policy.next_question_s(self._asked_s, now, self._poll_s, self._failures))

    def _withdraw(self, sign: Sign, worker_ids: tuple[str, ...]) -> None:
        self._report(sign, InterruptionKind.WITHDRAWN, None, worker_ids)
        if sign.event_id in self._acknowledged:
            self._acknowledged.remove(sign.event_id)
        if self._signs.notice() is None:
            self._told.clear()

    def _tell(self, worker: Member, now: float) -> bool:
        """Tell a worker what it does not know; returns whether it is new to this incarnation."""
        notice = self._signs.notice()
        if notice is None or worker.state is MemberState.STARTING:  # it does not hear yet
            return False
        deadline_s, sign = notice
        told = self._told.get(worker.id)
        is_new = told is None or told.incarnation < worker.incarnation
        if told is not None and not is_new and deadline_s >= told.deadline_s:
            if worker.state is MemberState.READY and now - told.at_s >= RETELL_S:
                told.at_s = now
                self._commands.append(PublishNotice(Drain(worker.id, told.deadline_s, sign.reason), again=True))
            return False
        self._told[worker.id] = _Reported(worker.incarnation, deadline_s, now)
        self._commands.append(PublishNotice(Drain(worker.id, deadline_s, sign.reason)))
        return is_new

    def _report(
        self, sign: Sign, kind: InterruptionKind, deadline_s: float | None, worker_ids: tuple[str, ...]
    ) -> None:
        self._commands.append(
            PublishReport(
                InterruptionReported(self.watcher_id, sign.event_id, kind, worker_ids, deadline_s, sign.reason)
            )
        )

    # --- the cloud's leave ---------------------------------------------------------------------------------------------

    def _acknowledge(self) -> None:
        if not self._policy.acknowledge or not self._told or not all(told.left for told in self._told.values()):
            return
        if any(self._policy.is_beside(worker) for worker in self._membership.workers()):
            return
        for event_id in self._signs.acknowledgeable():
            if event_id not in self._acknowledged:
                self._acknowledged.append(event_id)
                self._commands.append(AcknowledgeEvent(event_id))

    def _acknowledgement_answered(self, event: AcknowledgementAnswered, now: float) -> None:
        # Asked for again with the next answer that still holds the event.
        if event.problem is not None and event.event_id in self._acknowledged:
            self._acknowledged.remove(event.event_id)
