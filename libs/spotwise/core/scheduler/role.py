"""The cluster scheduler's state machine: every request gets its workers, or a rejection.

Law: an accepted request is assigned, rejected, or closed by its gateway; a higher epoch replaces a lower one.
Requests for which no worker has free KV blocks wait here, by priority and then arrival; `scheduler/admission.py` bounds them.
A request that is over is cancelled at the workers that have it, as far as this scheduler or else its gateway knows them.
Of several schedulers the one with the lease acts (`membership/term.py`); its orders carry its term. A scheduler that loses
the lease drops its state: assigned requests continue, and gateways submit queued ones to the new leader.

A request whose worker is gone, with all as large, waits for another and holds up none: its gateway gives it up.
Workers report what they hold: a restarted scheduler knows after one heartbeat of each, and gateways resubmit queued requests.
The watcher's report of the fleet tells how soon each worker may end (`scheduler/lives.py`); without it nothing is assumed.
`placement.py` chooses the workers of a request, `assigner.py` carries it out, `repurposing.py` changes home pools.

Source: cluster-level scheduling, Splitwise, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spotwise.core.membership.confirmation import Confirmations
from spotwise.core.membership.membership import MemberJoined, MemberLost, Membership
from spotwise.core.membership.term import Activity
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberKind
from spotwise.core.scheduler.admission import Admission, Refusal, is_overdue
from spotwise.core.scheduler.assigner import Assigner
from spotwise.core.scheduler.gone import GoneGateways, Tombstones
from spotwise.core.scheduler.lives import Lives
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.requests import AcceptedRequest, Requests


@dataclass(frozen=True, slots=True)
class SchedulerActivated:
    """The lease is this scheduler's until Unix time `until_s`, in this term."""

    term: int
    until_s: float


@dataclass(frozen=True, slots=True)
class SchedulerDeactivated:
    """Another scheduler has the lease, or may have it."""


SchedulerEvent = (
    m.SubmitRequest
    | m.CloseRequest
    | m.AttemptsConfirmed
    | m.KvReserved
    | m.PrefillAccepted
    | m.KvRefused
    | m.RequestMoved
    | m.Member
    | m.FleetReported
    | m.Tick
    | SchedulerActivated
    | SchedulerDeactivated
)
SchedulerCommand = m.Send | m.RecordLedger

_OF_TERM = (SchedulerActivated, SchedulerDeactivated)
#: What a standby hears.
_HEARD_BY_ALL = (m.Member, m.FleetReported, m.Tick)
_WORKERS = (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER)
#: Seconds after a deadline in which the gateway closes the request; by itself, so that a slow one is not asked first.
CLOSED_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of waiting.

    Attributes:
        max_queued: one new request more is rejected; recovering ones are queued all the same.
        max_queue_s: how long a new request waits for free capacity; a recovering one waits without bound.
        max_unready_s: how long requests wait for a worker while none is ready, in the midst of a change of the fleet; 0 rejects
            them at once.
        reservation_timeout_s: after which an unanswered reservation, or order for both phases, is given up.
        lease_s: length of a reservation's lease.
        member_timeout_s: silence after which a member counts as lost.
        gateway_timeout_s: the same for a gateway; longer, since dropped requests of a slow one are computed again.
        confirm_every_s: seconds between two confirmations with gateways; `None` where these do not answer.
    """

    max_queued: int = 1024
    max_queue_s: float = 60.0
    max_unready_s: float = 0.0
    reservation_timeout_s: float = 2.0
    lease_s: float = 3.0
    member_timeout_s: float = 2.0
    gateway_timeout_s: float = 10.0
    confirm_every_s: float | None = None


class SchedulerRole:
    """The scheduler's state machine: `handle(event, now) -> commands`.

    `first_assignment` is above all assignment numbers of earlier incarnations, because workers echo the last one. `stands_by`:
    it acts only between `SchedulerActivated` and `SchedulerDeactivated`.
    """

    def __init__(
        self,
        scheduler_id: str,
        limits: SchedulerLimits | None = None,
        first_assignment: int = 1,
        policy: PoolPolicy | None = None,
        stands_by: bool = False,
    ) -> None:
        self.scheduler_id = scheduler_id
        self._activity = Activity(stands_by=stands_by)
        self.limits = limits or SchedulerLimits()
        gateway_timeout_s = max(self.limits.gateway_timeout_s, self.limits.member_timeout_s)
        self.membership = Membership(self.limits.member_timeout_s, {MemberKind.GATEWAY: gateway_timeout_s})
        self._gone_gateways = GoneGateways(self.membership, gateway_timeout_s)
        policy = policy or PoolPolicy()
        self.pools = Pools(policy.decode_queue)
        self._lives = Lives(self.pools)
        self._weighs_lives = policy.interruption_s > 0
        self._requests = Requests()
        self._tombstones = Tombstones()
        self._confirmations = Confirmations(scheduler_id, self.limits.confirm_every_s)
        self._commands: list[SchedulerCommand] = []
        self._assigner = Assigner(
            scheduler_id,
            self.pools,
            self._requests,
            policy,
            self.limits.lease_s,
            first_assignment,
            lambda command: self._commands.append(command),
        )
        self._admission = Admission(
            self.pools,
            self._assigner.classes,
            max_queued=self.limits.max_queued,
            max_queue_s=self.limits.max_queue_s,
            max_unready_s=self.limits.max_unready_s,
        )
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            m.SubmitRequest: self._submit,
            m.CloseRequest: self._close,
            m.AttemptsConfirmed: self._attempts_confirmed,
            m.KvReserved: self._assigner.kv_reserved,
            m.PrefillAccepted: self._assigner.prefill_accepted,
            m.KvRefused: self._assigner.kv_refused,
            m.RequestMoved: self._moved,
            m.Member: self._heartbeat,
            m.FleetReported: self._fleet_reported,
            m.Tick: self._tick,
            SchedulerActivated: self._activated,
            SchedulerDeactivated: self._deactivated,
        }

    @property
    def queued(self) -> int:
        """Requests that wait to be assigned."""
        return self._requests.num_queued

    @property
    def live(self) -> int:
        """Requests accepted and not closed."""
        return len(self._requests)

    def quarantined(self, now: float) -> tuple[m.QuarantinedPair, ...]:
        """Return the pairs of workers that get no hand-offs at Unix time `now` (seconds)."""
        return self._assigner.quarantine.shown(now)

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerCommand]:
        """Handle one event at Unix time `now` (seconds); return the commands that follow, in order."""
        if self._activity.is_alone:
            self._handlers[type(event)](event, now)
        elif not isinstance(event, _OF_TERM) and self._activity.awaits_answer(now):
            self._activity.postpone(event)
        elif isinstance(event, _HEARD_BY_ALL) or self._activity.acts(now) or isinstance(event, _OF_TERM):
            self._handlers[type(event)](event, now)
        if not self._commands:
            return []
        commands, self._commands = self._commands, []
        return commands if self._activity.acts(now) else []

    @property
    def term(self) -> int:
        """The term that it has; 0 while it stands by, or is none of several."""
        return self._activity.term

    def _activated(self, event: SchedulerActivated, now: float) -> None:
        if self._activity.held(event.term, event.until_s):
            self._forget_requests()
            self._assigner.term = event.term
            self._handle_postponed(_HEARD_BY_ALL, now)
        elif self._activity.acts(now):
            self._handle_postponed(tuple(self._handlers), now)

    def _deactivated(self, event: SchedulerDeactivated, now: float) -> None:
        self._activity.lost()
        self._forget_requests()
        self._handle_postponed(_HEARD_BY_ALL, now)

    def _handle_postponed(self, types: tuple[type, ...], now: float) -> None:
        for event in self._activity.take_postponed():
            if isinstance(event, types):
                self._handlers[type(event)](event, now)

    def _forget_requests(self) -> None:
        """Forget them without a message: their workers serve on, and their gateways submit again what has none."""
        for entry in list(self._requests):
            self._assigner.drop(entry, cancel=False)

    def _submit(self, order: m.SubmitRequest, now: float) -> None:
        if self.membership.is_gone(order.stream.gateway_id, order.stream.incarnation):
            return  # sent before that gateway was replaced
        if self._tombstones.cover(order.choice_id, order.epoch, now):
            return  # its closing came first
        known = self._requests.get(order.choice_id)
        if known is not None:
            if known.order.epoch >= order.epoch:
                return  # delivered twice, or overtaken by a newer attempt
            self._assigner.drop(known, cancel=True)
        self._note_failures(order, known.order.avoid if known is not None else (), now)
        if refusal := self._admission.of_submission(order, self.queued, now):
            self._reject(order, refusal)
            return
        self._watch_readiness(now)
        accepted = m.RequestAccepted(order.choice_id, order.epoch)
        self._commands.append(m.to_gateway(order.stream, accepted))
        self._requests.accept(order, now)
        self._assigner.assign_waiting(now)

    def _note_failures(self, order: m.SubmitRequest, before: tuple[m.Suspects, ...], now: float) -> None:
        for suspects in order.avoid:
            if suspects not in before and len(suspects) > 1 and all(id_ in self.pools for id_ in suspects):
                self._assigner.quarantine.failed((suspects[0], suspects[1]), now)

    def _watch_readiness(self, now: float) -> None:
        """Note since when no worker is ready; once one is, reject what waited for it and fits no worker, if it is new."""
        if self._admission.watch_readiness(now):
            for entry in self._requests.queued:
                if misfit := self._admission.of_misfit(entry.order):
                    self._give_up(entry, misfit)

    def _give_up(self, entry: AcceptedRequest, refusal: Refusal) -> None:
        self._assigner.drop(entry, cancel=True)
        self._reject(entry.order, refusal)

    def _reject(self, order: m.SubmitRequest, refusal: Refusal) -> None:
        reason = refusal.code, refusal.message, refusal.retry_after_s
        self._commands.append(m.to_gateway(order.stream, m.RequestRejected(order.choice_id, order.epoch, *reason)))

    def _close(self, order: m.CloseRequest, now: float) -> None:
        entry = self._requests.get(order.choice_id)
        if not order.finished and (entry is None or entry.order.epoch < order.epoch):
            self._tombstones.add(order.choice_id, order.epoch, now)
        if entry is not None and entry.order.epoch <= order.epoch:
            if order.finished:
                self._note_success(entry, now)
            self._assigner.drop(entry, cancel=not order.finished)
            self._assigner.assign_waiting(now)
        elif entry is None and not order.finished:
            # accepted by an earlier scheduler: a worker that its gateway does not know either drops it when it confirms it
            for worker_id in order.workers:
                if worker_id in self.pools:
                    self._assigner.cancel(worker_id, order.choice_id, order.epoch)

    def _moved(self, report: m.RequestMoved, now: float) -> None:
        """Note where a sequence decodes now: that worker is sent its cancellation."""
        entry = self._requests.get(report.choice_id)
        if entry is not None and entry.order.epoch == report.epoch and not self._requests.is_unanswered(entry):
            entry.moved_to(report.worker_id, report.hop)

    def _note_success(self, entry: AcceptedRequest, now: float) -> None:
        if entry.sent_s is not None:
            self._assigner.answer_times.ended(entry.order.max_new_tokens, now - entry.sent_s)
        prompt_worker, token_worker, sent_s = entry.prompt_worker, entry.token_worker, entry.sent_s
        if prompt_worker and token_worker and sent_s is not None and entry.order.max_new_tokens > 1:
            self._assigner.quarantine.succeeded((prompt_worker, token_worker), sent_s)

    def _attempts_confirmed(self, answer: m.AttemptsConfirmed, now: float) -> None:
        for choice_id, epoch in answer.ended:
            entry = self._requests.get(choice_id)
            if entry is not None and entry.order.epoch <= epoch:
                self._assigner.drop(entry, cancel=True)
        self._assigner.assign_waiting(now)

    def _heartbeat(self, member: m.Member, now: float) -> None:
        for event in self.membership.observe(member, now):
            self._member_changed(event, now)
        is_present = self.membership.get(member.id) is member  # and no late heartbeat of an earlier incarnation
        if is_present and member.kind is MemberKind.DEVICE:
            self._lives.device_reported(member, now)
        is_worker = is_present and member.id in self.pools
        if is_worker:
            self.pools.reported(member, self.scheduler_id, now)
        self._watch_readiness(now)
        if is_worker:
            self._assigner.capacity_reported(member.id, now)
            for order in self._gone_gateways.among(member, now):
                self._commands.append(m.Send(member.id, replace(order, term=self.term)))

    def _fleet_reported(self, report: m.FleetReported, now: float) -> None:
        if self._weighs_lives:
            self._lives.reported(report, now)

    def _member_changed(self, event: MemberJoined | MemberLost, now: float) -> None:
        member = event.member
        if isinstance(event, MemberJoined):
            if member.kind in _WORKERS:
                self.pools.join(member)
                self._lives.worker_joined(member.id, now)
        elif member.kind in _WORKERS:
            self.pools.lose(member.id)
            self._assigner.quarantine.forget(member.id)
            self._assigner.give_back(lambda entry: member.id in (entry.prompt_worker, entry.token_worker))
        elif member.kind is MemberKind.DEVICE:
            self._lives.device_lost(member.id, now)
        elif member.kind is MemberKind.GATEWAY:
            for entry in [entry for entry in self._requests if entry.order.stream.gateway_id == member.id]:
                self._assigner.drop(entry, cancel=True)
                if self.membership.get(member.id) is None:  # else it has restarted, with other streams
                    error = f"the scheduler gave the gateway up: {event.reason}"
                    self._assigner.report_dropped(entry.order.stream, error)

    def _tick(self, event: m.Tick, now: float) -> None:
        if event.away_s:
            self.membership.was_away(event.away_s)
            self._gone_gateways.was_away(event.away_s)
            self._requests.was_away(event.away_s)
            self._admission.was_away(event.away_s)
        self._gone_gateways.forget_old(now)
        for change in self.membership.expire(now):
            self._member_changed(change, now)
        self._lives.expire(now)
        self._drop_orphans(now)
        self._drop_overdue(now)
        self._assigner.quarantine.expire(now)
        if self._confirmations.is_due(now):
            for assigned in (False, True):
                held = (
                    (entry.order.stream, (entry.choice_id, entry.order.epoch), entry.accepted_s)
                    for entry in self._requests
                    if self._requests.is_assigned(entry) is assigned
                )
                self._commands += self._confirmations.messages(held, now, assigned=assigned)
        silent_since = now - self.limits.reservation_timeout_s
        self._assigner.give_back(lambda entry: (entry.sent_s or now) <= silent_since)
        self._watch_readiness(now)
        for entry in self._requests.queued:
            if refusal := self._admission.of_waiting(entry, now):
                self._give_up(entry, refusal)
        self._assigner.assign_waiting(now)
        if order := self._assigner.repurposing.observe(self.pools, now):
            self._commands.append(m.Send(order.worker_id, replace(order, term=self.term)))

    def _drop_overdue(self, now: float) -> None:
        """Reject queued requests at their deadline; forget those that workers have where their gateway does not close them."""
        for entry in self._requests.queued:
            if overdue := self._admission.of_overdue(entry.order, now):
                self._give_up(entry, overdue)
        for entry in [entry for entry in self._requests.timed if is_overdue(entry.order, now - CLOSED_WITHIN_S)]:
            self._assigner.drop(entry, cancel=True)

    def _drop_orphans(self, now: float) -> None:
        """Drop requests whose gateway never sent a heartbeat, or was replaced before its loss was noticed."""
        gone = [gateway for gateway in self._requests.gateways if self._gone_gateways.is_gone(*gateway, now)]
        for entry in list(self._requests) if gone else ():
            stream = entry.order.stream
            if (stream.gateway_id, stream.incarnation) in gone:
                self._assigner.drop(entry, cancel=True)
