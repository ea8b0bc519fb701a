"""The gateway's side of every request: attempts, ordered tokens, recovery.

Law: the gateway owns a request. It numbers attempts (epochs) and delivers each token exactly once, in order.
When a worker is lost or gives an attempt back, the next attempt starts from the committed tokens; the client sees a pause.
The client sees an error only if recovery fails for `recovery_s`, attempts are fruitless (`attempt_history.py`), or the first
attempt is rejected. Messages of earlier attempts change nothing.
A request that another gateway takes over is over here; its attempts continue there, from the tokens that were saved.
A request whose client does not take its tokens is parked: its attempt ends, and it holds neither KV nor a place in a batch;
when the client has read, the next attempt starts from the committed tokens.
A scheduler that takes over knows no queue: what has no workers is submitted to it anew (`active_scheduler.py`).
A request ends at its client's deadline, in whatever attempt it is then; no attempt begins after it.
Source: stateful inference recovery at token granularity, SpotServe, section 4; the stateless sampler (`sampling.py`) makes the
committed tokens sufficient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwise.core import messages as m
from spotwise.core.gateway import commands as g
from spotwise.core.gateway.active_scheduler import ActiveScheduler
from spotwise.core.gateway.attempt_history import MAX_FRUITLESS
from spotwise.core.gateway.limits import RecoveryLimits
from spotwise.core.gateway.load_meter import LATE_S, LoadMeter
from spotwise.core.gateway.open_request import OpenRequest
from spotwise.core.gateway.received_batches import ReceivedBatches
from spotwise.core.membership import MemberJoined, MemberLost, Membership
from spotwise.core.request import FINISH_EVENT, FinishReason, RequestEvent, advance, is_terminal

#: What no further attempt would change.
_FINAL_REJECTIONS = (m.RejectCode.NEVER_FITS, m.RejectCode.DEADLINE_EXCEEDED)


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
        self._requests: dict[str, OpenRequest] = {}
        self._attempts: dict[int, OpenRequest] = {}
        self._next_attempt_id = 1
        self._commands: list[g.GatewayCommand] = []
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
        request = self._current(choice_id, epoch)
        return request is not None and request.retry_at_s is None

    def model_digest(self, choice_id: str) -> str | None:
        """Return the digest of the weights that an open request's tokens were drawn with; `None` where it is not known."""
        request = self._requests.get(choice_id)
        return None if request is None else request.model_digest

    def handle(self, event: g.GatewayEvent, now: float) -> list[g.GatewayCommand]:
        """Process one event at Unix time `now` (seconds) and return the commands, in order."""
        self._handlers[type(event)](event, now)
        commands, self._commands = self._commands, []
        return commands

    def _received(self, event: g.RequestReceived, now: float) -> None:
        request = OpenRequest(event.choice_id, event.prompt_tokens, now, event.deadline_unix_s, progress_s=now)
        self._requests[event.choice_id] = request
        if self._load is not None:
            self._load.arrived(event.prompt_tokens, now)
        self._submit(request, now)

    def _resumed(self, event: g.RequestResumed, now: float) -> None:
        """Begin the attempt after another gateway's: its higher epoch ends those, wherever they are held."""
        request = OpenRequest(
            event.choice_id,
            event.prompt_tokens,
            now,
            event.deadline_unix_s,
            progress_s=now,
            epoch=event.epoch,
            model_digest=event.model_digest,
        )
        request.token_ids.extend(event.token_ids)
        self._requests[event.choice_id] = request
        self._submit(request, now)

    def _taken(self, event: g.RequestTaken, now: float) -> None:
        """End this gateway's attempts; the other one's are of later epochs."""
        if (request := self._requests.get(event.choice_id)) is not None:
            self._fail(request, g.FAIL_TAKEN, g.TAKEN, None, now)

    def _submit(self, request: OpenRequest, now: float) -> None:
        if self._end_overdue(request, now):
            return
        self._attempts.pop(request.attempt_id, None)
        request.begin_attempt(self._next_attempt_id, now)
        self._next_attempt_id = self._next_attempt_id % 0xFFFFFFFF + 1
        self._attempts[request.attempt_id] = request
        ids = request.choice_id, request.epoch, request.attempt_id
        token_ids, avoid = tuple(request.token_ids), request.history.avoid
        self._commands.append(g.SubmitAttempt(*ids, token_ids, request.model_digest, avoid))

    def _current(self, choice_id: str, epoch: int) -> OpenRequest | None:
        request = self._requests.get(choice_id)
        is_current = request is not None and request.epoch == epoch and not request.is_parked
        return request if is_current else None

    def _queued(self, event: m.RequestAccepted, now: float) -> None:
        if (request := self._current(event.choice_id, event.epoch)) is not None:
            request.queued = True
            request.accepted()

    def _assigned(self, event: m.RequestAssigned, now: float) -> None:
        request = self._current(event.choice_id, event.epoch)
        if request is None:
            return
        request.assign(event.prompt_worker, event.token_worker)
        if not request.announced and request.first_token_s is None:
            request.announced = True
            self._commands.append(g.Accept(request.choice_id))
        for worker_id in request.workers:
            if self.membership.lost_lately(worker_id, now):
                self._attempt_lost(request, f"worker {worker_id} was lost", now)
                return

    def _rejected(self, event: m.RequestRejected, now: float) -> None:
        request = self._current(event.choice_id, event.epoch)
        if request is None:
            return
        if request.is_first_attempt or event.code in _FINAL_REJECTIONS:
            self._fail(request, event.code.value, event.message, event.retry_after_s, now)
        else:
            self._attempt_lost(request, event.message, now)

    def _submit_failed(self, event: g.SubmitFailed, now: float) -> None:
        request = self._current(event.choice_id, event.epoch)
        if request is None:
            return
        if request.queued or request.workers:
            return  # the answer came late, and by itself
        if not request.is_first_attempt:
            self._attempt_lost(request, event.reason, now)
        elif event.store_is_away:
            self._fail(request, g.FAIL_STORE, event.reason, 1.0, now)
        elif now - request.received_s < self.limits.submit_s:
            request.retry_at_s = now + self.limits.retry_pause_s
        else:
            self._fail(request, g.FAIL_NO_SCHEDULER, event.reason, 1.0, now)

    def _scheduler_took_over(self, member: m.Member, now: float, *, is_first: bool) -> None:
        """Submit what waits for a scheduler to the one that acts now; the first that is heard of may have accepted some."""
        reason = f"{member.kind.value} {member.id} has taken over"
        for request in list(self._requests.values()):
            waits_for_suspect = request.retry_at_s is not None and request.history.is_suspect
            if request.workers or request.is_parked or waits_for_suspect or (is_first and request.queued):
                continue
            self._record(request, "attempt_lost", now, reason=reason, tokens=len(request.token_ids))
            self._submit(request, now)

    def _bus_reconnected(self, event: g.BusReconnected, now: float) -> None:
        """Restart attempts without known workers: the scheduler's message may be lost. Lost tokens leave gaps."""
        for request in list(self._requests.values()):
            if not request.workers:
                self._attempt_lost(request, "the broker was away", now)

    def _attempt_lost(
        self, request: OpenRequest, reason: str, now: float, suspects: m.Suspects = (), felled: m.Member | None = None
    ) -> None:
        """Retry, or fail the request when recovery is too long or fruitless; `felled`: the worker that ended with it."""
        if request.retry_at_s is not None:
            return  # lost already, and the next attempt is scheduled
        self._record(request, "attempt_lost", now, reason=reason, tokens=len(request.token_ids))
        if suspects:
            request.history.given_back(suspects)
        if felled is not None:
            request.history.felled(felled.id, felled.incarnation)
        if request.history.has_felled_too_many:
            self._fail(request, g.FAIL_FELLS_WORKERS, g.FELLS_WORKERS, None, now)
            return
        if request.history.is_fruitless:
            message = f"the request made no progress in {MAX_FRUITLESS} attempts: {reason}"
            self._fail(request, g.FAIL_NOT_RECOVERED, message, 1.0, now)
            return
        is_first = request.lost_since_s is None
        request.lost_since_s = now if request.lost_since_s is None else request.lost_since_s
        if now - request.lost_since_s >= self.limits.recovery_s:
            message = f"the request could not be recovered within {self.limits.recovery_s:g} s: {reason}"
            self._fail(request, g.FAIL_NOT_RECOVERED, message, 1.0, now)
            return
        self._attempts.pop(request.attempt_id, None)
        request.retry_at_s = now + self.limits.retry_pause_s
        if is_first and not request.history.is_suspect:
            self._submit(request, now)

    def _token_batch(self, batch: m.TokenBatch, now: float) -> None:
        if self._batches.received(batch, now):
            self._tokens_missing(batch.worker_id, now)
        for delta in batch.deltas:
            request = self._attempts.get(delta.attempt_id)
            if request is None or not request.counts(batch, delta):
                continue
            if request.has_left(batch, delta):
                self._commands.append(m.Send(batch.worker_id, request.holder()))
            self._counted(request, batch.worker_id, delta, now)

    def _counted(self, request: OpenRequest, worker_id: str, delta: m.TokenDelta, now: float) -> None:
        if request.model_digest is None and (worker := self.membership.get(worker_id)) is not None:
            request.model_digest = worker.model_digest
        if self._token(request, delta, now):
            request.doubted_s.pop(worker_id, None)

    def _moved(self, report: m.RequestMoved, now: float) -> None:
        """Take the attempt's tokens from the worker that it moved to, and let all that hold it know."""
        if not self.is_open(report.choice_id, report.epoch):
            ended = m.AttemptsConfirmed(((report.choice_id, report.epoch),))
            self._commands.append(m.Send(report.worker_id, ended))
            return
        request = self._requests[report.choice_id]
        holders = (report.worker_id, report.source_id, *request.workers)
        waiting = request.move(report)
        for worker_id in dict.fromkeys((*holders, *request.workers)):
            self._commands.append(m.Send(worker_id, request.holder()))
        for worker_id, delta in waiting:
            if request.choice_id in self._requests and request.epoch == report.epoch:
                self._counted(request, worker_id, delta, now)

    def _tokens_missing(self, worker_id: str, since_s: float) -> None:
        """Record a worker's lost tokens, of an unknown request: later tokens of each attempt decide."""
        for request in self._requests.values():
            request.doubt(worker_id, since_s)

    def _token(self, request: OpenRequest, delta: m.TokenDelta, now: float) -> bool:
        """Process a worker's message on an attempt; tell whether it was the next token, or the end."""
        if delta.finish_reason is FinishReason.ERROR:
            if delta.retryable:
                self._attempt_lost(request, delta.error, now, suspects=delta.suspects)
            else:
                self._fail(request, g.FAIL_ENGINE, delta.error, None, now)
            return True
        expected = len(request.token_ids)
        if delta.token_index > expected and (missed := request.missed_before(delta)):
            for each in missed:
                self._token(request, each, now)
            return self._token(request, delta, now)
        if delta.token_index > expected:
            request.early[delta.token_index] = delta  # the prompt worker's token is still under way
            request.gap_since_s = now if request.gap_since_s is None else request.gap_since_s
            return False
        if delta.token_index < expected or delta.token_id is None:
            return False
        ready = request.commit(delta, now)
        finish_reason = ready[-1].finish_reason
        self._commands.append(g.Deliver(request.choice_id, tuple(ready), finish_reason))
        if finish_reason is not None:
            if finish_reason is not FinishReason.ABORT:
                self._finished_in_order(request)
            self._end(request, FINISH_EVENT[finish_reason], now, finished=True)
        return True

    def _closed(self, event: g.RequestClosed, now: float) -> None:
        if (request := self._requests.get(event.choice_id)) is not None:
            if event.text_ended:
                self._finished_in_order(request)
            self._end(request, RequestEvent.ABORTED, now, finished=False)

    def _reader_stalled(self, event: g.ReaderStalled, now: float) -> None:
        request = self._requests.get(event.choice_id)
        if request is None or request.is_parked or not request.token_ids:
            return
        request.park()
        self._attempts.pop(request.attempt_id, None)
        self._commands.append(g.ParkAttempts(m.CloseRequest(request.choice_id, request.epoch, finished=False)))
        self._record(request, "parked", now, tokens=len(request.token_ids))

    def _reader_caught_up(self, event: g.ReaderCaughtUp, now: float) -> None:
        request = self._requests.get(event.choice_id)
        if request is not None and request.is_parked:
            request.retry_at_s = now
            self._record(request, "unparked", now)

    def _finished_in_order(self, request: OpenRequest) -> None:
        if self._load is not None:
            self._load.finished(len(request.token_ids))

    def _end_overdue(self, request: OpenRequest, now: float) -> bool:
        if not request.is_overdue(now):
            return False
        code = m.RejectCode.DEADLINE_EXCEEDED.value
        self._fail(request, code, f"the deadline came after {len(request.token_ids)} tokens", None, now)
        return True

    def _fail(self, request: OpenRequest, code: str, message: str, retry_after_s: float | None, now: float) -> None:
        self._commands.append(g.Fail(request.choice_id, code, message, retry_after_s))
        self._end(request, RequestEvent.FAILED, now, finished=False)

    def _end(self, request: OpenRequest, event: RequestEvent, now: float, *, finished: bool) -> None:
        request.state = advance(request.state, event)
        assert is_terminal(request.state)
        del self._requests[request.choice_id]
        self._attempts.pop(request.attempt_id, None)
        self._commands.append(g.CloseAttempts(m.CloseRequest(request.choice_id, request.epoch, finished)))
        self._record(request, "completed", now, **request.facts(now))

    def _record(self, request: OpenRequest, stage: str, now: float, **facts: str | int | float) -> None:
        entry = m.LedgerEntry(request.choice_id, request.epoch, stage, self.gateway_id, now, tuple(facts.items()))
        self._commands.append(m.RecordLedger(entry))

    def _confirm(self, question: m.ConfirmAttempts, now: float) -> None:
        """Tell a holder which attempts are over: the message that ended them may have been lost."""
        ended = []
        for choice_id, epoch in question.attempts:
            if not self.is_open(choice_id, epoch):
                ended.append((choice_id, epoch))
            elif not question.assigned:
                self._requests[choice_id].held_s = now
        self._commands.append(m.Send(question.holder_id, m.AttemptsConfirmed(tuple(ended))))

    def _heartbeat(self, member: m.Member, now: float) -> None:
        self._batches.reported(member, self.incarnation, now)
        is_first = self._scheduler.term is None
        if self._scheduler.reported(member):
            self._scheduler_took_over(member, now, is_first=is_first)
        for event in self.membership.observe(member, now):
            if isinstance(event, MemberLost):
                self._member_lost(event, now)
            elif isinstance(event, MemberJoined):
                for request in self._requests.values():
                    request.history.has_returned(member.id, member.incarnation)

    def _member_lost(self, event: MemberLost, now: float) -> None:
        """Recover what a lost member had: a worker's assigned requests, a scheduler's queued ones."""
        member = event.member
        is_scheduler = self._scheduler.may_be(member)
        felled = None if event.is_expected else member
        for request in list(self._requests.values()):
            if event.drained:
                request.prompt_worker_left(member.id)
            waits = is_scheduler and request.queued and not request.workers and request.retry_at_s is None
            if waits or member.id in request.workers:
                reason = f"{member.kind.value} {member.id} {event.reason}"
                self._attempt_lost(request, reason, now, felled=None if waits else felled)

    def _was_away(self, seconds: float) -> None:
        self.membership.was_away(seconds)
        self._batches.was_away(seconds)
        for request in self._requests.values():
            request.was_away(seconds)

    def _tick(self, event: m.Tick, now: float) -> None:
        if event.away_s:
            self._was_away(event.away_s)
        if self._load is not None and self._load.is_due(now):
            late = sum(not each.token_ids and now - each.received_s > LATE_S for each in self._requests.values())
            self._commands += map(g.PublishLoad, self._load.reports(late, now))
        for worker_id, since_s in self._batches.overdue(now):
            self._tokens_missing(worker_id, since_s)
        for change in self.membership.expire(now):
            if isinstance(change, MemberLost):
                self._member_lost(change, now)
        tries_a_suspect: bool | None = None  # not known yet
        for request in list(self._requests.values()):
            if self._end_overdue(request, now):
                continue
            if request.retry_at_s is not None:
                if request.retry_at_s > now:
                    continue
                if request.history.is_suspect:
                    if tries_a_suspect is None:
                        tries_a_suspect = any(
                            each.history.is_suspect and each.retry_at_s is None for each in self._requests.values()
                        )
                    if tries_a_suspect:
                        self._wait_for_suspect(request, now)
                        continue
                    tries_a_suspect = True
                self._submit(request, now)
            elif request.lacks_tokens(now, self.limits.gap_s):
                self._attempt_lost(request, "tokens were lost on their way", now)
            elif (
                self.limits.unheld_s is not None
                and now - max(request.held_s, request.progress_s) > self.limits.unheld_s
            ):
                self._attempt_lost(request, "neither a scheduler nor a worker holds it", now)
            elif now - max(request.progress_s, request.submitted_s) > self.limits.stall_s:
                self._attempt_lost(request, f"nothing came for {self.limits.stall_s:g} s", now)

    def _wait_for_suspect(self, request: OpenRequest, now: float) -> None:
        """Retry later; the time limit of its recovery does not run meanwhile."""
        assert request.retry_at_s is not None and request.lost_since_s is not None
        retry_at_s = now + self.limits.retry_pause_s
        request.lost_since_s += retry_at_s - request.retry_at_s
        request.retry_at_s = retry_at_s
