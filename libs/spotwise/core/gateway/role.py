"""The gateway's side of every request: attempts, ordered tokens, recovery.

Law: the gateway owns a request. It numbers attempts (epochs) and delivers each token exactly once, in order.
When a worker is lost or gives an attempt back, the next attempt starts from the committed tokens; the client sees a pause.
The client sees an error only if recovery fails for `recovery_s`, attempts are fruitless (`recovery.py`), or the first
attempt is rejected. Messages of earlier attempts change nothing.
A request ends at its client's deadline, in whatever attempt it is then; no attempt begins after it.

A request that another gateway takes over is over here; its attempts continue there, from the tokens that were saved.
A request whose client does not take its tokens is parked: its attempt ends, and it holds neither KV nor a place in a batch;
when the client has read, the next attempt starts from the committed tokens.
A scheduler that takes over knows no queue: requests without workers are submitted to it again (`heartbeats.py`).

Source: stateful inference recovery at token granularity, SpotServe, section 4; the stateless sampler (`sampling.py`) makes the
committed tokens sufficient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.heartbeats import ActiveScheduler, ReceivedBatches
from spotwise.core.gateway.load_meter import LATE_S, LoadMeter
from spotwise.core.gateway.open_request import AttemptEvent, AttemptState, Crossed, OpenRequest, ReceivedToken
from spotwise.core.gateway.open_requests import OpenRequests
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.membership.membership import MemberJoined, MemberLost, Membership
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FINISH_EVENT, FinishReason, RequestEvent
from spotwise.core.requests.sampling import GRAMMAR_FAILS, TOO_LARGE


class GatewayRole:
    """The gateway's state machine: `handle(event, now) -> commands`."""

    def __init__(
        self,
        gateway_id: str,
        limits: RecoveryLimits | None = None,
        incarnation: int = 0,
        load_report_s: float | None = None,
    ) -> None:
        """`load_report_s`: seconds between two reports of the load; `None` for no reports."""
        self.gateway_id = gateway_id
        self.incarnation = incarnation
        self.limits = limits or RecoveryLimits()
        self.membership = Membership(
            self.limits.member_timeout_s, {m.MemberKind.CLUSTER_SCHEDULER: self.limits.scheduler_timeout_s}
        )
        self._scheduler = ActiveScheduler()
        self._batches = ReceivedBatches(gateway_id, self.limits.gap_s)
        self._load = None if load_report_s is None else LoadMeter(gateway_id, incarnation, load_report_s)
        self._requests = OpenRequests(gateway_id, self.limits)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            g.RequestReceived: self._received,
            g.RequestResumed: self._resumed,
            g.RequestTaken: self._taken,
            g.RequestClosed: self._closed,
            g.ReaderStalled: self._reader_stalled,
            g.ReaderCaughtUp: self._reader_caught_up,
            g.SubmitFailed: self._submit_failed,
            g.BusReconnected: self._bus_reconnected,
            m.RequestAccepted: self._queued,
            m.RequestAssigned: self._assigned,
            m.RequestRejected: self._rejected,
            m.TokenBatch: self._token_batch,
            m.RequestMoved: self._moved,
            m.ConfirmAttempts: self._confirm,
            m.Member: self._heartbeat,
            m.Tick: self._tick,
        }

    @property
    def open_requests(self) -> int:
        """Number of requests that have not ended."""
        return len(self._requests)

    def is_open(self, choice_id: str, epoch: int) -> bool:
        """Tell whether an attempt is the current one of an open request, and is not lost."""
        return self._requests.running(choice_id, epoch) is not None

    def origin(self, choice_id: str) -> tuple[str | None, tuple[str, ...]]:
        """Return the digest of the weights that an open request's tokens were drawn with, and their numerics classes, the
        latest last; `None` and none where it is not known.
        """
        request = self._requests.get(choice_id)
        return (None, ()) if request is None else (request.model_digest, request.numerics_classes)

    def handle(self, event: g.GatewayEvent, now: float) -> list[g.GatewayCommand]:
        """Process one event at Unix time `now` (seconds) and return the commands, in order."""
        self._handlers[type(event)](event, now)
        commands, self._requests.commands = self._requests.commands, []
        return commands

    def _received(self, event: g.RequestReceived, now: float) -> None:
        request = OpenRequest(event.choice_id, event.prompt_tokens, now, event.deadline_unix_s, progress_s=now)
        if self._load is not None:
            self._load.arrived(event.prompt_tokens, now)
        self._requests.add(request, now)

    def _resumed(self, event: g.RequestResumed, now: float) -> None:
        """Begin the attempt after another gateway's: its higher epoch ends those, wherever they are held. A scheduler that
        rejects it rejects no new request: it is retried like one that has lost a worker.
        """
        request = OpenRequest(
            event.choice_id,
            event.prompt_tokens,
            now,
            event.deadline_unix_s,
            progress_s=now,
            epoch=event.epoch,
            first_accepted=event.epoch or None,
            model_digest=event.model_digest,
            numerics_classes=event.numerics_classes,
        )
        request.token_ids.extend(event.token_ids)
        self._requests.add(request, now)

    def _taken(self, event: g.RequestTaken, now: float) -> None:
        """End this gateway's attempts; the other one's are of later epochs."""
        if (request := self._requests.get(event.choice_id)) is not None:
            self._requests.fail(request, g.FAIL_TAKEN, g.TAKEN, None, now, is_charged=request.assigned)

    def _queued(self, event: m.RequestAccepted, now: float) -> None:
        if (request := self._requests.current(event.choice_id, event.epoch)) is not None:
            request.note(AttemptEvent.ACCEPTED)
            request.accepted(now)

    def _assigned(self, event: m.RequestAssigned, now: float) -> None:
        request = self._requests.current(event.choice_id, event.epoch)
        if request is None:
            return
        request.assign(event.prompt_worker, event.token_worker, now)
        if not request.announced and request.first_token_s is None:
            request.announced = True
            self._requests.commands.append(g.Accept(request.choice_id))
        for worker_id in request.workers:
            if self.membership.lost_lately(worker_id, now):
                self._requests.attempt_lost(request, f"worker {worker_id} was lost", now)
                return

    def _rejected(self, event: m.RequestRejected, now: float) -> None:
        request = self._requests.current(event.choice_id, event.epoch)
        if request is None:
            return
        is_too_large = event.code is m.RejectCode.BOUND_TOO_LARGE  # the next one is sized by the workers of then
        is_final = request.is_first_attempt or event.code in (m.RejectCode.DEADLINE_EXCEEDED, m.RejectCode.NO_CLASS)
        if is_final and not is_too_large:
            request.note(AttemptEvent.REJECTED)
            self._requests.fail(request, event.code.value, event.message, event.retry_after_s, now)
        else:
            self._requests.attempt_lost(request, event.message, now, how=AttemptEvent.REJECTED)

    def _submit_failed(self, event: g.SubmitFailed, now: float) -> None:
        request = self._requests.current(event.choice_id, event.epoch)
        if request is None or request.attempt is not AttemptState.SUBMITTED:
            return  # the answer came late, and by itself
        if not request.is_first_attempt:
            self._requests.attempt_lost(request, event.reason, now)
        elif event.store_is_away:
            self._requests.fail(request, g.FAIL_STORE, event.reason, 1.0, now)
        elif now - request.received_s < self.limits.submit_s:
            request.note(AttemptEvent.LOST)
            request.retry_at_s = now + self.limits.retry_pause_s
        else:
            self._requests.fail(request, g.FAIL_NO_SCHEDULER, event.reason, 1.0, now)

    def _scheduler_took_over(self, member: m.Member, now: float, *, is_first: bool) -> None:
        """Submit what waits for a scheduler to the one that acts now; the first that is heard of may have accepted some."""
        reason = f"{member.kind.value} {member.id} has taken over"
        for request in self._requests:
            waits_for_suspect = request.is_over and request.history.is_suspect
            may_be_known = is_first and request.attempt is AttemptState.QUEUED
            if request.workers or request.is_parked or waits_for_suspect or may_be_known:
                continue
            self._requests.record(request, "attempt_lost", now, reason=reason, tokens=len(request.token_ids))
            request.was_held(now)
            self._requests.submit(request, now)

    def _bus_reconnected(self, event: g.BusReconnected, now: float) -> None:
        """Restart attempts without known workers: the scheduler's message may be lost. Lost tokens leave gaps."""
        for request in self._requests:
            if not request.workers:
                self._requests.attempt_lost(request, "the broker was away", now)

    def _token_batch(self, batch: m.TokenBatch, now: float) -> None:
        if self._batches.received(batch, now):
            self._tokens_missing(batch.worker_id, now)
        for delta in batch.deltas:
            request = self._requests.of_attempt(delta.attempt_id)
            if request is None or not request.counts(batch, delta):
                continue
            if request.has_left(batch, delta):
                self._requests.commands.append(m.Send(batch.worker_id, request.holder()))
            self._counted(request, ReceivedToken(batch.worker_id, batch.numerics_class, delta), now)

    def _counted(self, request: OpenRequest, token: ReceivedToken, now: float) -> None:
        if request.model_digest is None and (worker := self.membership.get(token.worker_id)) is not None:
            request.model_digest = worker.model_digest
        if self._token(request, token, now):
            request.doubted_s.pop(token.worker_id, None)

    def _moved(self, report: m.RequestMoved, now: float) -> None:
        """Take the attempt's tokens from the worker that it moved to, and let all that hold it know."""
        request = self._requests.running(report.choice_id, report.epoch)
        if request is None:
            ended = m.AttemptsConfirmed(((report.choice_id, report.epoch),))
            self._requests.commands.append(m.Send(report.worker_id, ended))
            return
        holders = (report.worker_id, report.source_id, *request.workers)
        waiting = request.move(report)
        for worker_id in dict.fromkeys((*holders, *request.workers)):
            self._requests.commands.append(m.Send(worker_id, request.holder()))
        for token in waiting:
            if self._requests.current(request.choice_id, report.epoch) is not None:
                self._counted(request, token, now)

    def _tokens_missing(self, worker_id: str, since_s: float) -> None:
        """Record a worker's lost tokens, of an unknown request: later tokens of each attempt decide."""
        for request in self._requests:
            request.doubt(worker_id, since_s)

    def _token(self, request: OpenRequest, token: ReceivedToken, now: float) -> bool:
        """Process a worker's message on an attempt; tell whether it was the next token, or the end."""
        delta = token.delta
        if delta.finish_reason is FinishReason.ERROR:
            if delta.retryable:
                self._requests.attempt_lost(request, delta.error, now, suspects=delta.suspects)
            else:
                code = _failure_code(delta.error)
                self._requests.fail(request, code, delta.error, None, now, is_charged=code != g.FAIL_ENGINE)
            return True
        expected = len(request.token_ids)
        if delta.token_index > expected and (missed := request.missed_before(delta)):
            for each in missed:
                self._token(request, each, now)
            return self._token(request, token, now)
        if delta.token_index > expected:
            request.early[delta.token_index] = token  # the prompt worker's token is still under way
            request.gap_since_s = now if request.gap_since_s is None else request.gap_since_s
            return False
        if delta.token_index < expected:
            return False
        if delta.token_id is None:
            request.prompt_logprobs += delta.prompt_logprobs or ()
            return False
        if (whole := request.with_all_logprobs(delta)) is None:
            self._requests.attempt_lost(request, "log-probabilities of its prompt were lost on their way", now)
            return True
        ready, crossed = request.commit(token._replace(delta=whole), now)
        for crossing in crossed:
            self._crossed(request, crossing, now)
        finish_reason = ready[-1].finish_reason
        self._requests.commands.append(g.Deliver(request.choice_id, tuple(ready), finish_reason))
        if finish_reason is not None:
            if finish_reason is not FinishReason.ABORT:
                self._finished_in_order(request)
            self._requests.end(request, FINISH_EVENT[finish_reason], now, finished=True)
        return True

    def _crossed(self, request: OpenRequest, crossing: Crossed, now: float) -> None:
        """Count a crossing, and enter it in the ledger."""
        kind, before, after, tokens = crossing
        self._requests.commands.append(g.CountCrossing(request.choice_id, kind))
        facts: dict[str, str | int | float] = {
            "by": kind.value,
            "from_class": before,
            "to_class": after,
            "tokens": tokens,
        }
        self._requests.record(request, "crossed", now, **facts)

    def _closed(self, event: g.RequestClosed, now: float) -> None:
        if (request := self._requests.get(event.choice_id)) is not None:
            if event.text_ended:
                self._finished_in_order(request)
            self._requests.end(request, RequestEvent.ABORTED, now, finished=False)

    def _reader_stalled(self, event: g.ReaderStalled, now: float) -> None:
        request = self._requests.get(event.choice_id)
        if request is None or request.is_parked or not request.token_ids:
            return
        self._requests.park(request, now)

    def _reader_caught_up(self, event: g.ReaderCaughtUp, now: float) -> None:
        request = self._requests.get(event.choice_id)
        if request is not None and request.is_parked:
            self._requests.unpark(request, now)

    def _finished_in_order(self, request: OpenRequest) -> None:
        if self._load is not None:
            self._load.finished(len(request.token_ids))

    def _confirm(self, question: m.ConfirmAttempts, now: float) -> None:
        """Tell a holder which attempts are over: the message that ended them may have been lost."""
        ended = []
        for choice_id, epoch in question.attempts:
            if (request := self._requests.running(choice_id, epoch)) is None:
                ended.append((choice_id, epoch))
            elif not question.assigned:
                request.held_s = now
        self._requests.commands.append(m.Send(question.holder_id, m.AttemptsConfirmed(tuple(ended))))

    def _heartbeat(self, member: m.Member, now: float) -> None:
        self._batches.reported(member, self.incarnation, now)
        is_first = self._scheduler.term is None
        if self._scheduler.reported(member):
            self._scheduler_took_over(member, now, is_first=is_first)
        for event in self.membership.observe(member, now):
            if isinstance(event, MemberLost):
                self._member_lost(event, now)
            elif isinstance(event, MemberJoined):
                for request in self._requests:
                    request.history.has_returned(member.id, member.incarnation)

    def _member_lost(self, event: MemberLost, now: float) -> None:
        """Recover what a lost member had: a worker's assigned requests, a scheduler's queued ones."""
        member = event.member
        is_scheduler = self._scheduler.may_be(member)
        felled = None if event.is_expected else member
        for request in self._requests:
            if event.drained:
                request.prompt_worker_left(member.id)
            waits = is_scheduler and request.attempt is AttemptState.QUEUED
            if waits or member.id in request.workers:
                reason = f"{member.kind.value} {member.id} {event.reason}"
                self._requests.attempt_lost(request, reason, now, felled=None if waits else felled)

    def _was_away(self, seconds: float) -> None:
        self.membership.was_away(seconds)
        self._batches.was_away(seconds)
        for request in self._requests:
            request.was_away(seconds)

    def _tick(self, event: m.Tick, now: float) -> None:
        if event.away_s:
            self._was_away(event.away_s)
        if self._load is not None and self._load.is_due(now):
            late = sum(not each.token_ids and now - each.received_s > LATE_S for each in self._requests)
            self._requests.commands += map(g.PublishLoad, self._load.reports(late, now))
        for worker_id, since_s in self._batches.overdue(now):
            self._tokens_missing(worker_id, since_s)
        for change in self.membership.expire(now):
            if isinstance(change, MemberLost):
                self._member_lost(change, now)
        self._requests.tick(now)


def _failure_code(error: str) -> str:
    """Return the code of an error that another attempt would meet too."""
    if error.startswith(GRAMMAR_FAILS):
        return g.FAIL_GRAMMAR
    return g.FAIL_TOO_LARGE if error.startswith(TOO_LARGE) else g.FAIL_ENGINE
