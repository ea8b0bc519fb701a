"""The requests of a gateway that have not ended, and the attempts that are made of them.

Law: a request has one attempt at a time, or waits for the next one, or for its client to read (`park`). A lost attempt is
repeated from the committed tokens, at once the first time, then after a pause each; one that may fell workers waits until no
other such request runs. A request fails where its recovery takes `recovery_s`, or its attempts are fruitless; time in which a
scheduler or a worker held an attempt is no time of recovery, unless it stalled there.
"""

from __future__ import annotations

from collections.abc import Iterator

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.open_request import AttemptEvent, AttemptState, OpenRequest
from spotwise.core.gateway.recovery import MAX_FRUITLESS, RecoveryLimits
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import RequestEvent, advance, is_terminal


class OpenRequests:
    """The requests, by id, and their present attempts, by number.

    Args:
        gateway_id: names the gateway in the ledger.
        limits: bounds of recovery.
    """

    def __init__(self, gateway_id: str, limits: RecoveryLimits) -> None:
        #: What is to be done; its user takes them away.
        self.commands: list[g.GatewayCommand] = []
        self._gateway_id = gateway_id
        self._limits = limits
        self._requests: dict[str, OpenRequest] = {}
        self._attempts: dict[int, OpenRequest] = {}
        self._next_attempt_id = 1

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[OpenRequest]:
        """Yield the requests that are open now; any of them may end meanwhile."""
        return iter(list(self._requests.values()))

    def get(self, choice_id: str) -> OpenRequest | None:
        """Return a request, unless it has ended."""
        return self._requests.get(choice_id)

    def of_attempt(self, attempt_id: int) -> OpenRequest | None:
        """Return the request whose attempt has a number, unless that is over."""
        return self._attempts.get(attempt_id)

    def running(self, choice_id: str, epoch: int) -> OpenRequest | None:
        """Return the request where an attempt is its current one, and is not lost."""
        request = self.current(choice_id, epoch)
        return request if request is not None and not request.is_over else None

    def current(self, choice_id: str, epoch: int) -> OpenRequest | None:
        """Return the request where an attempt is its last one, lost or not."""
        request = self._requests.get(choice_id)
        is_current = request is not None and request.epoch == epoch and not request.is_parked
        return request if is_current else None

    def add(self, request: OpenRequest, now: float) -> None:
        """Begin a request's first attempt here."""
        self._requests[request.choice_id] = request
        self.submit(request, now)

    def submit(self, request: OpenRequest, now: float) -> None:
        """Begin the next attempt, from the committed tokens, unless the deadline has come."""
        if self.end_overdue(request, now):
            return
        self._attempts.pop(request.attempt_id, None)
        request.begin_attempt(self._next_attempt_id, now)
        self._next_attempt_id = self._next_attempt_id % 0xFFFFFFFF + 1
        self._attempts[request.attempt_id] = request
        ids = request.choice_id, request.epoch, request.attempt_id
        token_ids, avoid, recovering = tuple(request.token_ids), request.history.avoid, not request.is_first_attempt
        known = request.model_digest, request.numerics_classes
        self.commands.append(g.SubmitAttempt(*ids, token_ids, *known, avoid, recovering))

    def attempt_lost(
        self,
        request: OpenRequest,
        reason: str,
        now: float,
        suspects: m.Suspects = (),
        felled: m.Member | None = None,
        held_until_s: float | None = None,
        how: AttemptEvent = AttemptEvent.LOST,
    ) -> None:
        """Retry, or fail the request when recovery is too long or fruitless.

        `felled`: the worker that ended with it; `held_until_s`: until when it was held and not stalled, `None` for `now`;
        `how`: REJECTED where a scheduler has rejected it.
        """
        was_over = request.is_over
        if not was_over or how is AttemptEvent.REJECTED:
            request.note(how)
        if was_over:
            return  # the next attempt is scheduled
        request.was_held(now if held_until_s is None else held_until_s)
        self.record(request, "attempt_lost", now, reason=reason, tokens=len(request.token_ids))
        if suspects:
            request.history.given_back(suspects)
        if felled is not None:
            request.history.felled(felled.id, felled.incarnation)
        if request.history.has_felled_too_many:
            self.fail(request, g.FAIL_FELLS_WORKERS, g.FELLS_WORKERS, None, now, is_charged=True)
            return
        if request.history.is_fruitless:
            message = f"the request made no progress in {MAX_FRUITLESS} attempts: {reason}"
            self.fail(request, g.FAIL_NOT_RECOVERED, message, 1.0, now)
            return
        is_first = request.lost_since_s is None
        request.lost_since_s = now if request.lost_since_s is None else request.lost_since_s
        if now - request.lost_since_s >= self._limits.recovery_s:
            message = f"the request could not be recovered within {self._limits.recovery_s:g} s: {reason}"
            self.fail(request, g.FAIL_NOT_RECOVERED, message, 1.0, now)
            return
        self._attempts.pop(request.attempt_id, None)
        request.retry_at_s = now + self._limits.retry_pause_s
        if is_first and not request.history.is_suspect:
            self.submit(request, now)

    def park(self, request: OpenRequest, now: float) -> None:
        """End the attempt, and begin no other one, until `unpark`."""
        request.park()
        self._attempts.pop(request.attempt_id, None)
        self.commands.append(g.ParkAttempts(request.closing(finished=False)))
        self.record(request, "parked", now, tokens=len(request.token_ids))

    def unpark(self, request: OpenRequest, now: float) -> None:
        """Let the next attempt begin at the next tick."""
        request.note(AttemptEvent.UNPARKED)
        request.retry_at_s = now
        self.record(request, "unparked", now)

    def tick(self, now: float) -> None:
        """End what is overdue, begin the attempts whose time has come, and repeat those of which nothing is heard."""
        tries_a_suspect: bool | None = None  # not known yet
        for request in self:
            if self.end_overdue(request, now):
                continue
            if request.is_over:
                if request.is_parked or request.retry_at_s > now:
                    continue
                if request.history.is_suspect:
                    if tries_a_suspect is None:
                        tries_a_suspect = any(
                            each.history.is_suspect and not each.is_over for each in self._requests.values()
                        )
                    if tries_a_suspect:
                        self._wait_for_suspect(request, now)
                        continue
                    tries_a_suspect = True
                self.submit(request, now)
            elif request.lacks_tokens(now, self._limits.gap_s):
                self.attempt_lost(request, "tokens were lost on their way", now)
            elif request.is_unheld(now, self._limits.unheld_s):
                self.attempt_lost(
                    request, "neither a scheduler nor a worker holds it", now, held_until_s=request.held_s
                )
            elif now - max(request.progress_s, request.submitted_s) > self._limits.stall_s:
                reason = f"nothing came for {self._limits.stall_s:g} s"
                self.attempt_lost(request, reason, now, held_until_s=request.submitted_s)

    def end_overdue(self, request: OpenRequest, now: float) -> bool:
        """End a request whose deadline has come; tell whether that is so."""
        if not request.is_overdue(now):
            return False
        code = m.RejectCode.DEADLINE_EXCEEDED.value
        message = f"the deadline came after {len(request.token_ids)} tokens"
        self.fail(request, code, message, None, now, is_charged=request.assigned)
        return True

    def fail(
        self,
        request: OpenRequest,
        code: str,
        message: str,
        retry_after_s: float | None,
        now: float,
        *,
        is_charged: bool = False,
    ) -> None:
        """End a request with an error for its client; see `Fail`."""
        self.commands.append(g.Fail(request.choice_id, code, message, retry_after_s, is_charged))
        self.end(request, RequestEvent.FAILED, now, finished=False)

    def end(self, request: OpenRequest, event: RequestEvent, now: float, *, finished: bool) -> None:
        """End a request, and its attempt wherever it is; `finished`: as its client wanted it."""
        request.state = advance(request.state, event)
        assert is_terminal(request.state)
        del self._requests[request.choice_id]
        self._attempts.pop(request.attempt_id, None)
        if request.attempt is AttemptState.REJECTED:  # the scheduler has dropped it, and in an overload there are many
            self.commands.append(g.DeleteRecord(request.choice_id))
        else:
            self.commands.append(g.CloseAttempts(request.closing(finished=finished)))
        self.record(request, "completed", now, **request.facts(now))

    def record(self, request: OpenRequest, stage: str, now: float, **facts: str | int | float) -> None:
        """Enter a fact of a request in its ledger."""
        entry = m.LedgerEntry(request.choice_id, request.epoch, stage, self._gateway_id, now, tuple(facts.items()))
        self.commands.append(m.RecordLedger(entry))

    def _wait_for_suspect(self, request: OpenRequest, now: float) -> None:
        """Retry later; the time limit of its recovery, if it runs, does not run meanwhile."""
        retry_at_s = now + self._limits.retry_pause_s
        if request.lost_since_s is not None:
            request.lost_since_s += retry_at_s - request.retry_at_s
        request.retry_at_s = retry_at_s
