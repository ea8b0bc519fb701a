"""The cluster scheduler: every request gets both its workers, or a clear no.

Law: requests are assigned in order of arrival. An assignment is a conversation: reserve KV on the token worker; once that
stands, start the prefill and tell the gateway. A refusal, a lost worker or silence sends the request back to the head of the
queue. What finds no room waits here, upstream of the workers, in a queue of bounded length and bounded time.

Source: cluster-level scheduling, Splitwise section 4.2; admission before prefill against what breaks elsewhere.

Invariants: a request is queued, reserving or assigned, never two of them; every accepted request is assigned, rejected, or
closed by its gateway; a higher epoch replaces a lower one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spotwise.core import messages as m
from spotwise.core.cluster import (
    Assignment,
    WorkerView,
    choose_workers,
    could_ever_serve,
)
from spotwise.core.membership import MemberJoined, MemberLost, Membership
from spotwise.core.messages import MemberKind, RejectCode
from spotwise.core.request import FinishReason

SchedulerEvent = m.SubmitRequest | m.CloseRequest | m.KvReserved | m.KvRefused | m.Member | m.Tick
SchedulerCommand = m.Send | m.RecordLedger


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of waiting.

    Attributes:
        max_queued: requests that wait for room at most; one more is told that the mesh is full.
        max_queue_s: seconds that one waits at most.
        reservation_timeout_s: a reservation that has not been answered by then is given up and asked for anew.
        lease_s: length of a reservation's lease.
        member_timeout_s: silence after which a member counts as lost.
    """

    max_queued: int = 1024
    max_queue_s: float = 60.0
    reservation_timeout_s: float = 2.0
    lease_s: float = 3.0
    member_timeout_s: float = 2.0


@dataclass(slots=True)
class _Entry:
    """A request that was accepted and not closed."""

    order: m.SubmitRequest
    number: int  #: of arrival
    accepted_s: float
    prompt_worker: str | None = None
    token_worker: str | None = None
    reserving_since_s: float | None = None
    reservation: int | None = None


class SchedulerRole:
    """The scheduler's state machine: `handle(event, now) -> commands`.

    Args:
        scheduler_id: this member's id.
        limits: bounds of waiting.
        first_assignment: assignments are numbered from here; above all that an earlier incarnation gave, because workers
            echo the last number they saw.
    """

    def __init__(self, scheduler_id: str, limits: SchedulerLimits | None = None, first_assignment: int = 1) -> None:
        self.scheduler_id = scheduler_id
        self.limits = limits or SchedulerLimits()
        self.membership = Membership(self.limits.member_timeout_s)
        self._workers: dict[str, WorkerView] = {}
        self._entries: dict[str, _Entry] = {}
        self._queue: OrderedDict[str, None] = OrderedDict()
        self._reserving: dict[str, None] = {}
        self._arrivals = 0
        self._assignments = first_assignment - 1
        self._commands: list[SchedulerCommand] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            m.SubmitRequest: self._submit,
            m.CloseRequest: self._close,
            m.KvReserved: self._kv_reserved,
            m.KvRefused: self._kv_refused,
            m.Member: self._heartbeat,
            m.Tick: self._tick,
        }

    @property
    def queued(self) -> int:
        """Requests that wait for room."""
        return len(self._queue)

    @property
    def live(self) -> int:
        """Requests accepted and not closed."""
        return len(self._entries)

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerCommand]:
        """Take in one event at Unix time `now` (seconds) and return what to do about it, in order."""
        self._handlers[type(event)](event, now)
        commands, self._commands = self._commands, []
        return commands

    # --- the gateway's side -------------------------------------------------------------------------------------------

    def _submit(self, order: m.SubmitRequest, now: float) -> None:
        known = self._entries.get(order.request_id)
        if known is not None:
            if known.order.epoch >= order.epoch:
                return  # delivered twice, or overtaken by a newer attempt
            self._drop(known, cancel=True)
        if refusal := self._refusal(order):
            self._reject(order, *refusal)
            return
        accepted = m.RequestAccepted(order.request_id, order.epoch)
        self._commands.append(m.Send(order.stream.gateway_id, accepted))
        self._arrivals += 1
        self._entries[order.request_id] = _Entry(order, self._arrivals, now)
        self._queue[order.request_id] = None
        self._assign_waiting(now)

    def _refusal(self, order: m.SubmitRequest) -> tuple[RejectCode, str, float | None] | None:
        ready = [worker for worker in self._workers.values() if worker.is_ready]
        kv_tokens = order.prompt_tokens + order.max_new_tokens
        if not ready:
            return RejectCode.NO_WORKERS, "no worker is ready to serve", 5.0
        if not could_ever_serve(ready, order.prompt_tokens, kv_tokens):
            largest = max(worker.load.kv_blocks_total * worker.load.kv_block_size for worker in ready)
            return (
                RejectCode.NEVER_FITS,
                f"prompt and max_tokens need {kv_tokens} tokens of KV cache; no worker holds more than {largest}",
                None,
            )
        if len(self._queue) >= self.limits.max_queued:
            return RejectCode.MESH_FULL, f"all workers are full and {len(self._queue)} requests wait", 1.0
        return None

    def _reject(self, order: m.SubmitRequest, code: RejectCode, message: str, retry_after_s: float | None) -> None:
        rejection = m.RequestRejected(order.request_id, order.epoch, code, message, retry_after_s)
        self._commands.append(m.Send(order.stream.gateway_id, rejection))

    def _close(self, order: m.CloseRequest, now: float) -> None:
        entry = self._entries.get(order.request_id)
        if entry is not None and entry.order.epoch <= order.epoch:
            self._drop(entry, cancel=not order.finished)
            self._assign_waiting(now)
        elif entry is None and not order.finished:
            # accepted by a scheduler that is no more: whoever holds it must hear of it
            for worker_id in self._workers:
                self._cancel(worker_id, order.request_id, order.epoch)

    def _drop(self, entry: _Entry, *, cancel: bool) -> None:
        order = entry.order
        del self._entries[order.request_id]
        self._queue.pop(order.request_id, None)
        self._reserving.pop(order.request_id, None)
        if cancel:
            for worker_id in dict.fromkeys((entry.prompt_worker, entry.token_worker)):
                if worker_id is not None:
                    self._cancel(worker_id, order.request_id, order.epoch)

    def _cancel(self, worker_id: str, request_id: str, epoch: int) -> None:
        self._commands.append(m.Send(worker_id, m.CancelRequest(request_id, epoch)))

    # --- assignment ---------------------------------------------------------------------------------------------------

    def _assign_waiting(self, now: float) -> None:
        """Assign from the head of the queue until one finds no room; later ones do not pass it."""
        while self._queue:
            entry = self._entries[next(iter(self._queue))]
            if not self._reserve(entry, now):
                return

    def _reserve(self, entry: _Entry, now: float) -> bool:
        order = entry.order
        kv_tokens = order.prompt_tokens + order.max_new_tokens
        views = [self._workers[worker_id] for worker_id in sorted(self._workers)]
        chosen = choose_workers(views, order.prompt_tokens, order.max_new_tokens, self._intended_prompt_tokens)
        if chosen is None:
            return False
        prompt_worker, token_worker = chosen
        entry.prompt_worker, entry.token_worker = prompt_worker.member.id, token_worker.member.id
        entry.reserving_since_s = now
        del self._queue[order.request_id]
        self._reserving[order.request_id] = None
        kv_blocks = token_worker.blocks_to_reserve(order.prompt_tokens, order.max_new_tokens)
        entry.reservation = self._next_assignment(
            token_worker, now, owed_tokens=order.max_new_tokens, kv_blocks=kv_blocks
        )
        reservation = m.ReserveKv(
            request_id=order.request_id,
            epoch=order.epoch,
            stream=order.stream,
            scheduler_id=self.scheduler_id,
            assignment=entry.reservation,
            kv_tokens=kv_tokens,
            owed_tokens=order.max_new_tokens,
            lease_s=self.limits.lease_s,
        )
        self._commands.append(m.Send(token_worker.member.id, reservation))
        return True

    def _intended_prompt_tokens(self, worker: WorkerView) -> int:
        """Prompt tokens that will go to a worker once their reservations stand."""
        reserving = (self._entries[request_id] for request_id in self._reserving)
        return sum(entry.order.prompt_tokens for entry in reserving if entry.prompt_worker == worker.member.id)

    def _next_assignment(
        self, worker: WorkerView, now: float, prompt_tokens: int = 0, owed_tokens: int = 0, kv_blocks: int = 0
    ) -> int:
        self._assignments += 1
        worker.unseen.append(Assignment(self._assignments, now, prompt_tokens, owed_tokens, kv_blocks))
        return self._assignments

    def _answered_entry(self, request_id: str, epoch: int, worker_id: str, assignment: int) -> _Entry | None:
        """Return the entry whose current order a token worker answers.

        An answer to an order that was given up is ignored where the same worker was asked again: the cancellation that
        gave it up was sent between the two orders, and one sent now would end the second.
        """
        entry = self._entries.get(request_id)
        if entry is None or entry.order.epoch != epoch or entry.token_worker != worker_id:
            self._cancel(worker_id, request_id, epoch)
            return None
        is_current = request_id in self._reserving and entry.reservation == assignment
        return entry if is_current else None

    def _kv_reserved(self, report: m.KvReserved, now: float) -> None:
        target = report.target
        entry = self._answered_entry(report.request_id, report.epoch, target.worker_id, report.assignment)
        if entry is None or entry.prompt_worker is None:
            return
        prompt_worker = self._workers[entry.prompt_worker]
        order = entry.order
        del self._reserving[order.request_id]
        start = m.StartPrefill(
            request_id=order.request_id,
            epoch=order.epoch,
            stream=order.stream,
            scheduler_id=self.scheduler_id,
            assignment=self._next_assignment(prompt_worker, now, prompt_tokens=order.prompt_tokens),
            prompt_tokens=order.prompt_tokens,
            target=report.target,
            lease_s=self.limits.lease_s,
        )
        prompt_id, token_id = prompt_worker.member.id, report.target.worker_id
        self._commands.append(m.Send(prompt_id, start))
        assigned = m.RequestAssigned(order.request_id, order.epoch, prompt_id, token_id)
        self._commands.append(m.Send(order.stream.gateway_id, assigned))
        facts = (("prompt_worker", prompt_id), ("token_worker", token_id), ("queue_s", now - entry.accepted_s))
        ledger = m.LedgerEntry(order.request_id, order.epoch, "assigned", self.scheduler_id, now, facts)
        self._commands.append(m.RecordLedger(ledger))

    def _kv_refused(self, report: m.KvRefused, now: float) -> None:
        """Back to the head of the queue; the worker's next heartbeat says what room it really has."""
        entry = self._answered_entry(report.request_id, report.epoch, report.worker_id, report.assignment)
        if entry is not None:
            self._requeue(entry)

    def _requeue(self, entry: _Entry) -> None:
        request_id = entry.order.request_id
        del self._reserving[request_id]
        entry.prompt_worker = entry.token_worker = None
        # of several that come back, whichever arrived first goes first, in whatever order they come
        ids = sorted((request_id, *self._queue), key=lambda queued: self._entries[queued].number)
        self._queue = OrderedDict.fromkeys(ids)

    # --- members and time ---------------------------------------------------------------------------------------------

    def _heartbeat(self, member: m.Member, now: float) -> None:
        for event in self.membership.observe(member, now):
            self._member_changed(event)
        is_present = self.membership.get(member.id) is member  # and no late word of an earlier incarnation
        if is_present and member.id in self._workers:
            self._workers[member.id].heard(member, self.scheduler_id, now)
            self._assign_waiting(now)

    def _member_changed(self, event: MemberJoined | MemberLost) -> None:
        member = event.member
        is_worker = member.kind in (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER)
        if isinstance(event, MemberJoined):
            if is_worker:
                self._workers[member.id] = WorkerView(member)
        elif is_worker:
            del self._workers[member.id]
            self._give_back(lambda entry: member.id in (entry.prompt_worker, entry.token_worker))
        elif member.kind is MemberKind.GATEWAY:
            for entry in [e for e in self._entries.values() if e.order.stream.gateway_id == member.id]:
                self._drop(entry, cancel=True)
                if self.membership.get(member.id) is None:  # else it has restarted, and its streams are others
                    self._tell_dropped(entry.order.stream, event.reason)

    def _tell_dropped(self, stream: m.StreamRef, reason: str) -> None:
        """Ask a gateway that was only silent for another attempt; it would else wait for tokens that nobody computes."""
        error = f"the scheduler gave the gateway up: {reason}"
        delta = m.TokenDelta(stream.stream_id, 0, None, FinishReason.ERROR, error, retryable=True)
        self._commands.append(m.Send(stream.gateway_id, m.TokenBatch(self.scheduler_id, (delta,))))

    def _give_back(self, is_affected: Callable[[_Entry], bool]) -> None:
        """Queue what was about to be assigned to a worker that is gone; its gateway recovers what was assigned.

        The cancellation goes to a lost worker too: one that was only silent still has the order in its inbox.
        """
        reserving = [self._entries[request_id] for request_id in self._reserving]
        for entry in [entry for entry in reserving if is_affected(entry)]:
            if entry.token_worker is not None:
                self._cancel(entry.token_worker, entry.order.request_id, entry.order.epoch)
            self._requeue(entry)

    def _tick(self, event: m.Tick, now: float) -> None:
        for change in self.membership.expire(now):
            self._member_changed(change)
        silent_since = now - self.limits.reservation_timeout_s
        self._give_back(lambda entry: (entry.reserving_since_s or now) <= silent_since)
        for request_id in list(self._queue):
            entry = self._entries[request_id]
            if now - entry.accepted_s > self.limits.max_queue_s:
                self._drop(entry, cancel=True)
                message = f"no room came free within {self.limits.max_queue_s:g} s"
                self._reject(entry.order, RejectCode.QUEUE_TIMEOUT, message, 5.0)
        self._assign_waiting(now)
