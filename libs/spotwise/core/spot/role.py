"""The spot watcher: turns signs of a machine's interruption into notices, with an absolute deadline, to each worker on it, and
to each device of groups, whose leaders may be elsewhere.

Law (SpotServe, section 4, and each cloud's documentation): notices repeat as `notices.py` has it, and reports to planners as
`notices.py` has it.
A hint has no deadline: it is reported to the planner only. A withdrawn sign is reported; a draining worker keeps draining.
An event is acknowledged once every notified member has left in order and no other worker or device is on the machine; a silent
one has not left, since it may still be handing KV off.
The loss of a worker or device is reported by one watcher, the first by id; a watcher that does not receive its own heartbeats
reports none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spotwise.core.membership.membership import MemberLost, Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Member, MemberKind
from spotwise.core.spot import commands as c
from spotwise.core.spot.notices import RepeatedReports, SentNotices
from spotwise.core.spot.signs import ActiveSigns, MetadataAnswered, Sign

#: Beyond so many failures the pause is at its longest for any sensible pair of `poll_s` and `backoff_s`.
_MOST_DOUBLINGS = 16
#: What computes: workers, and the devices of those that are groups.
COMPUTING = (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER, MemberKind.DEVICE)


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """A watcher's configuration: the intervals at which a cloud's metadata is queried, and the workers and devices that it is
    queried for. `workers` are the ids of this machine's: where empty, `host` decides.

    Law: a cloud that answers is queried every `poll_s`, counted from the last query, or at once after a longer answer (a
    hanging GET). One that does not answer is queried with exponential backoff, at most `backoff_s` apart: that much of a notice
    may be missed, so it must be a part of the shortest notice.

    Attributes:
        backoff_s: longest pause between queries that fail.
        member_timeout_s: silence after which a member counts as lost.
        acknowledge: let the cloud know when the machine has been drained.
    """

    host: str
    workers: tuple[str, ...] = ()
    backoff_s: float = 10.0
    member_timeout_s: float = 2.0
    acknowledge: bool = True

    def __post_init__(self) -> None:
        if not (self.backoff_s > 0 and self.member_timeout_s > 0):
            raise ValueError("backoff_s and member_timeout_s must be above 0")

    def is_beside(self, member: Member) -> bool:
        """Tell whether a member is a worker or a device of this machine."""
        if member.kind not in COMPUTING:
            return False
        return member.id in self.workers if self.workers else member.host == self.host

    def next_query_s(self, queried_s: float, now: float, poll_s: float, failures: int) -> float:
        """Return when to query again after a query at `queried_s`, with so many failures in a row."""
        if not failures:
            return max(now, queried_s + poll_s)
        longest_s = max(self.backoff_s, poll_s)
        return now + min(poll_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), longest_s)


class SpotWatcherRole:
    """One machine's watcher."""

    def __init__(self, watcher_id: str, policy: WatchPolicy) -> None:
        self.watcher_id = watcher_id
        self._policy = policy
        self._membership = Membership(policy.member_timeout_s)
        self._signs = ActiveSigns()
        self._reports = RepeatedReports()
        self._notified = SentNotices()
        self._acknowledged: list[str] = []
        self._queried_s = 0.0
        self._poll_s = 0.0
        self._failures = 0
        self._problem: str | None = None
        self._own_heartbeat_s: float | None = None
        self._commands: list[c.SpotWatcherCommand] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            m.Member: self._member,
            m.Drain: self._drain,
            m.Tick: self._tick,
            c.WatchStarted: self._start,
            MetadataAnswered: self._read,
            c.AcknowledgementAnswered: self._acknowledgement_answered,
            c.ProcessEnded: self._process_ended,
        }

    def handle(self, event: c.SpotWatcherEvent, now: float) -> list[c.SpotWatcherCommand]:
        """Process an event and return the commands."""
        self._commands = []
        self._handlers[type(event)](event, now)
        return self._commands

    def _member(self, member: m.Member, now: float) -> None:
        if member.id == self.watcher_id:
            self._own_heartbeat_s = now
        for change in self._membership.observe(member, now):
            was_replaced = change.member.incarnation < member.incarnation
            if isinstance(change, MemberLost) and (was_replaced or member.state is m.MemberState.LOST):
                self._report_lost(change, now)
        if member.state is m.MemberState.LEFT:
            self._notified.left(member)
            self._acknowledge()
            return
        if self._membership.get(member.id) is member and self._policy.is_beside(member) and self._notify(member, now):
            deadline_s, sign = self._signs.notice() or (now, None)
            if sign is not None:
                self._report(sign, m.InterruptionKind.NOTICE, deadline_s, (member.id,), now)

    def _tick(self, event: m.Tick, now: float) -> None:
        self._membership.was_away(event.away_s)
        for change in self._membership.expire(now):
            if isinstance(change, MemberLost):
                self._report_lost(change, now)
        beside = tuple(member.id for member in self._beside())
        self._commands += [c.PublishReport(report, again=True) for report in self._reports.due(beside, now)]

    def _process_ended(self, event: c.ProcessEnded, now: float) -> None:
        known = self._membership.get(event.member.id)
        if known is not None and known.incarnation == event.member.incarnation:
            self._commands.append(c.AnnounceLoss(replace(event.member, state=m.MemberState.LOST, load=None)))

    def _report_lost(self, lost: MemberLost, now: float) -> None:
        member = lost.member
        if member.kind in COMPUTING and self._speaks_for_all(now):
            event_id = f"lost-{member.id}-{member.incarnation}"
            self._report(Sign(event_id, f"lost: {lost.reason}"), m.InterruptionKind.LOST, now, (member.id,), now)

    def _speaks_for_all(self, now: float) -> bool:
        seen_s = self._own_heartbeat_s
        if seen_s is None or now - seen_s > self._policy.member_timeout_s / 2:
            return False
        others = (member.id for member in self._membership.all(m.MemberKind.SPOT_WATCHER))
        return self.watcher_id <= min(others, default=self.watcher_id)

    def _drain(self, order: m.Drain, now: float) -> None:
        known = [member.id for member in self._membership.all(*COMPUTING)]
        if order.worker_id in known:
            self._commands.append(c.PublishNotice(order))
            self._commands.append(c.AnswerOperator(m.DrainReply(True, "")))
        else:
            detail = f"no worker or device {order.worker_id}; there are: {', '.join(known) or 'none'}"
            self._commands.append(c.AnswerOperator(m.DrainReply(False, detail)))

    def _start(self, event: c.WatchStarted, now: float) -> None:
        self._poll_s = event.poll_s
        self._query(now)

    def _query(self, at_s: float) -> None:
        self._queried_s = at_s
        self._commands.append(c.AskCloud(at_s))

    def _read(self, answer: MetadataAnswered, now: float) -> None:
        self._failures = 0 if answer.problem is None else self._failures + 1
        if answer.problem != self._problem:
            self._problem = answer.problem
            self._commands.append(c.ReportProblem(answer.problem))
        changes = self._signs.observe(answer, now)
        beside = self._beside()
        worker_ids = tuple(member.id for member in beside)
        for gone in changes.gone:
            self._withdraw(gone.sign, worker_ids, now)
        for seen in changes.seen:
            kind = m.InterruptionKind.HINT if seen.deadline_s is None else m.InterruptionKind.NOTICE
            self._report(seen.sign, kind, seen.deadline_s, worker_ids, now)
        for member in beside:
            self._notify(member, now)
        self._acknowledge()
        self._query(self._policy.next_query_s(self._queried_s, now, self._poll_s, self._failures))

    def _beside(self) -> list[m.Member]:
        """The workers and devices of this machine, in order of id."""
        return [member for member in self._membership.all(*COMPUTING) if self._policy.is_beside(member)]

    def _withdraw(self, sign: Sign, worker_ids: tuple[str, ...], now: float) -> None:
        self._report(sign, m.InterruptionKind.WITHDRAWN, None, worker_ids, now)
        if sign.event_id in self._acknowledged:
            self._acknowledged.remove(sign.event_id)
        if self._signs.notice() is None:
            self._notified.clear()

    def _notify(self, member: m.Member, now: float) -> bool:
        """Send a worker or device the notice that it lacks; returns whether it is new to this incarnation. Of a worker that
        is a group only the devices of this machine leave: they have notices of their own.
        """
        notice = self._signs.notice()
        if notice is None:
            return False
        deadline_s, sign = notice
        is_new = not self._notified.knows(member)
        sent = self._notified.notify(member, deadline_s, sign.reason, now)
        if sent is not None:
            self._commands.append(sent)
        return is_new and sent is not None

    def _report(
        self, sign: Sign, kind: m.InterruptionKind, deadline_s: float | None, worker_ids: tuple[str, ...], now: float
    ) -> None:
        report = m.InterruptionReported(self.watcher_id, sign.event_id, kind, worker_ids, deadline_s, sign.reason)
        self._reports.remember(report, now)
        self._commands.append(c.PublishReport(report))

    def _acknowledge(self) -> None:
        if not self._policy.acknowledge or not self._notified.all_left():
            return
        if self._beside():
            return
        for event_id in self._signs.acknowledgeable():
            if event_id not in self._acknowledged:
                self._acknowledged.append(event_id)
                self._commands.append(c.AcknowledgeEvent(event_id))

    def _acknowledgement_answered(self, event: c.AcknowledgementAnswered, now: float) -> None:
        # Acknowledged again with the next answer that still has the event.
        if event.problem is not None and event.event_id in self._acknowledged:
            self._acknowledged.remove(event.event_id)
