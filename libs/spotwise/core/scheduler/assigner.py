"""Assigns queued requests to workers: the exchange of messages that reserves KV and starts prefill.

Law: two workers: reserve KV on the token worker, then start prefill on the prompt worker and notify the gateway.
One worker for both phases: start prefill there; once it accepts, notify the gateway.
Requests are assigned in queue order; `passing.py` decides which may pass an earlier one that no worker can take.
A refused reservation, or one without reply, returns the request to its place in the queue.
A reply to an order that was given up cancels what the worker holds for it.

A worker without reply that was to serve both phases may be computing, so that attempt ends and its gateway submits the next
one, whose epoch fences the first.

Source: joint assignment of both machines, Splitwise, section 4.2; admission before prefill is ours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import is_crossing
from spotwise.core.requests.prefixes import span_ends
from spotwise.core.requests.record import KvTarget
from spotwise.core.requests.request import FinishReason
from spotwise.core.scheduler.answer_times import AnswerTimes
from spotwise.core.scheduler.classes import ClassPlacer
from spotwise.core.scheduler.passing import Passing
from spotwise.core.scheduler.placement import Placer
from spotwise.core.scheduler.placements import PlacedBy, Placement, RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.quarantine import Quarantine
from spotwise.core.scheduler.repurposing import Repurposing
from spotwise.core.scheduler.requests import AcceptedRequest, Requests
from spotwise.core.scheduler.views import Assignment, WorkerView

#: Where spans end, in tokens; a prompt of as many would have 2^35.
_ENDS = tuple(islice(span_ends(), 200))
#: Workers remembered of one span, and named for one prompt at most.
HOLDERS = 4


class PrefixMemory:
    """Remembers which worker was sent which prompt prefix, by its spans; a `capacity` of 0 remembers none.

    Law: the memory holds what was ordered, not what is cached: a worker may have evicted the blocks since. A wrong answer costs
    computation and never a token, since the worker looks up its own cache. At most `capacity` spans are kept, the least
    recently used go first; of each span at most `HOLDERS` workers, the latest. Only a worker's current incarnation is named.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._holders: OrderedDict[int, tuple[tuple[str, int], ...]] = OrderedDict()

    def sent(self, spans: tuple[int, ...], worker_id: str, incarnation: int) -> None:
        """Note that a worker was sent a prompt of these spans."""
        if not self._capacity:
            return
        holder = (worker_id, incarnation)
        holders = self._holders
        for span in spans:
            known = holders.get(span)
            if known is None:
                holders[span] = (holder,)
                continue
            holders.move_to_end(span)
            if known[-1] != holder:
                others = [other for other in known if other[0] != worker_id]
                holders[span] = (*others[-(HOLDERS - 1) :], holder)
        while len(holders) > self._capacity:
            holders.popitem(last=False)

    def held(self, spans: tuple[int, ...], incarnation_of: Callable[[str], int | None]) -> dict[str, int]:
        """Return by worker how many of a prompt's first tokens it was sent before, the most first.

        `incarnation_of` gives a worker's current one, `None` where it is gone.
        """
        found: dict[str, int] = {}
        for index in range(min(len(spans), len(_ENDS)) - 1, -1, -1):
            span, end = spans[index], _ENDS[index]
            for worker_id, incarnation in self._holders.get(span, ()):
                if worker_id not in found and incarnation_of(worker_id) == incarnation:
                    found[worker_id] = end
            if len(found) >= HOLDERS:
                break
        return found


class Assigner:
    """Assigns one scheduler's requests; orders are numbered from `first_assignment`, `emit` takes each command."""

    def __init__(
        self,
        scheduler_id: str,
        pools: Pools,
        requests: Requests,
        policy: PoolPolicy,
        lease_s: float,
        first_assignment: int,
        emit: Callable[[m.Send | m.RecordLedger], None],
    ) -> None:
        self.term = 0  #: of the scheduler's orders
        self.repurposing = Repurposing(policy)
        self._scheduler_id = scheduler_id
        self._pools = pools
        self._requests = requests
        self.quarantine = Quarantine()
        self.answer_times = AnswerTimes(policy.token_s)
        self.classes = ClassPlacer(pools, Placer(pools, policy, self.answer_times), self.quarantine, policy)
        self._prefixes = PrefixMemory(policy.prefix_spans)
        self._lease_s = lease_s
        self._assignments = first_assignment - 1
        self._passing = Passing(pools, policy.max_passes)
        self._emit = emit

    def assign_waiting(self, now: float) -> None:
        """Assign from the head of the queue; of requests behind one that no worker can take, those that may pass it."""
        passing = self._passing
        passing.begin()
        self.classes.begin()
        index, may_be_full = 0, False
        while (entry := self._requests.waiting_at(index)) is not None:
            order = entry.order
            if not self.classes.could_ever_hold(order):
                index += 1  # until a worker as large, and of its class, is ready
                continue
            demand = RequestDemand(
                order.prompt_tokens,
                order.max_new_tokens,
                without=passing.without(entry),
                below_kv_tokens=passing.below_kv_tokens(entry),
            )
            # A cheap check before the whole placement.
            is_full = may_be_full and not self._pools.have_capacity(demand.need)
            placement = None if is_full else self._place(entry, demand, now)
            may_be_full = True
            if placement is not None:
                passing.placed(placement)
                self._send(entry, demand, placement, now)
            elif self.classes.is_bound(order) or passing.blocked(entry):
                index += 1
            else:
                break

    def _place(self, entry: AcceptedRequest, demand: RequestDemand, now: float) -> Placement | None:
        demand.held = self._prefixes.held(entry.order.prefix_spans, self._incarnation_of)
        placement = self.classes.place(entry.order, demand, now)
        if placement is not None:
            self.repurposing.placed(placement.short)
        return placement

    def capacity_reported(self, worker_id: str, now: float) -> None:
        """Assign queued requests after a worker's report: those that no worker could take can go to that worker only."""
        entry = self._requests.head()
        if entry is None:
            return
        view, least = self._pools[worker_id], self._passing.least_demand
        is_blocked = entry is self._passing.head and least is not None and self.classes.could_ever_hold(entry.order)
        if not is_blocked or least is None or (view.is_ready and view.has_capacity(*least)):
            self.assign_waiting(now)

    def _incarnation_of(self, worker_id: str) -> int | None:
        return self._pools[worker_id].member.incarnation if worker_id in self._pools else None

    def _send(self, entry: AcceptedRequest, demand: RequestDemand, placement: Placement, now: float) -> None:
        prompt_worker, token_worker = placement.prompt_worker, placement.token_worker
        entry.prompt_worker, entry.token_worker = prompt_worker.id, token_worker.id
        entry.prompt_queued, entry.placed_by = demand.uncomputed(prompt_worker), placement.by
        entry.by_life, entry.numerics_class = placement.by_life, token_worker.numerics_class
        self._assignments += 1
        self._requests.send(entry, self._assignments, now)
        if prompt_worker is token_worker:
            self._count(entry, token_worker, entry.prompt_queued, now)
            target = KvTarget(
                token_worker.id, token_worker.member.incarnation, token_worker.member.transfer_address, ()
            )
            self._start_prefill(entry, self._assignments, target)
        else:
            self.quarantine.tried((prompt_worker.id, token_worker.id), now)
            self._pools.intend(prompt_worker.id, entry.choice_id, entry.prompt_queued)
            self._count(entry, token_worker, 0, now)
            self._reserve(entry, self._assignments, token_worker.id)

    def _count(self, entry: AcceptedRequest, worker: WorkerView, prompt_tokens: int, now: float) -> None:
        order = entry.order
        kv_blocks = worker.blocks_to_reserve(order.prompt_tokens, order.max_new_tokens)
        self._pools.assign(
            worker.id, Assignment(self._assignments, now, prompt_tokens, order.max_new_tokens, kv_blocks)
        )

    def _reserve(self, entry: AcceptedRequest, assignment: int, token_id: str) -> None:
        order = entry.order
        reservation = m.ReserveKv(
            choice_id=order.choice_id,
            epoch=order.epoch,
            stream=order.stream,
            scheduler_id=self._scheduler_id,
            assignment=assignment,
            kv_tokens=order.prompt_tokens + order.max_new_tokens,
            max_new_tokens=order.max_new_tokens,
            lease_s=self._lease_s,
            term=self.term,
            priority=order.priority,
            tenant=order.tenant,
            numerics_class=entry.numerics_class,
        )
        self._emit(m.Send(token_id, reservation))

    def _start_prefill(self, entry: AcceptedRequest, assignment: int, target: KvTarget) -> None:
        order = entry.order
        assert entry.prompt_worker is not None
        start = m.StartPrefill(
            choice_id=order.choice_id,
            epoch=order.epoch,
            stream=order.stream,
            scheduler_id=self._scheduler_id,
            assignment=assignment,
            prompt_tokens=order.prompt_tokens,
            target=target,
            lease_s=self._lease_s,
            max_new_tokens=order.max_new_tokens,
            term=self.term,
        )
        self._emit(m.Send(entry.prompt_worker, start))

    def _answered_entry(self, choice_id: str, epoch: int, worker_id: str, assignment: int) -> AcceptedRequest | None:
        """Return the entry whose current order a worker answers.

        A cancellation sent now would end a second order at the same worker: then a late answer to the first is ignored.
        """
        entry = self._requests.get(choice_id)
        if entry is None or entry.order.epoch != epoch or entry.token_worker != worker_id:
            self.cancel(worker_id, choice_id, epoch)
            return None
        is_current = self._requests.is_unanswered(entry) and entry.assignment == assignment
        return entry if is_current else None

    def kv_reserved(self, report: m.KvReserved, now: float) -> None:
        """Start the prefill on the prompt worker."""
        target = report.target
        entry = self._answered_entry(report.choice_id, report.epoch, target.worker_id, report.assignment)
        if entry is None or entry.prompt_worker is None:
            return
        self._assignments += 1
        starting = Assignment(self._assignments, now, prompt_tokens=entry.prompt_queued)
        self._pools.order_intended(entry.prompt_worker, entry.choice_id, starting)
        self._start_prefill(entry, self._assignments, target)
        self._assigned(entry, entry.prompt_worker, target.worker_id, now)

    def prefill_accepted(self, report: m.PrefillAccepted, now: float) -> None:
        """Both phases are on one worker, which has queued the request."""
        worker_id = report.worker_id
        entry = self._answered_entry(report.choice_id, report.epoch, worker_id, report.assignment)
        if entry is not None:
            self._assigned(entry, worker_id, worker_id, now)

    def _assigned(self, entry: AcceptedRequest, prompt_id: str, token_id: str, now: float) -> None:
        order = entry.order
        self._requests.assigned(entry)
        self._emit(m.to_gateway(order.stream, m.RequestAssigned(order.choice_id, order.epoch, prompt_id, token_id)))
        for worker_id in dict.fromkeys((token_id, prompt_id)):
            self._prefixes.sent(order.prefix_spans, worker_id, self._pools[worker_id].member.incarnation)
        facts: list[tuple[str, str | int | float]] = [("prompt_worker", prompt_id), ("token_worker", token_id)]
        if entry.placed_by not in (None, PlacedBy.HOME_POOL):
            facts.append(("placed_by", entry.placed_by.value))
        if entry.by_life:
            facts.append(("by_life", 1))
        if is_crossing(order.numerics_class, entry.numerics_class):
            facts += [("from_class", order.numerics_class), ("to_class", entry.numerics_class)]
        facts.append(("queue_s", now - entry.accepted_s))
        ledger = m.LedgerEntry(order.choice_id, order.epoch, "assigned", self._scheduler_id, now, tuple(facts))
        self._emit(m.RecordLedger(ledger))

    def kv_refused(self, report: m.KvRefused, now: float) -> None:
        """Requeue the request; the worker's next heartbeat reports its actual free blocks."""
        entry = self._answered_entry(report.choice_id, report.epoch, report.worker_id, report.assignment)
        if entry is not None:
            self._requeue(entry)

    def give_back(self, is_affected: Callable[[AcceptedRequest], bool]) -> None:
        """Give up orders to a worker that is gone or silent, and cancel them: a silent one still has the order in its inbox."""
        for entry in [entry for entry in self._requests.unanswered if is_affected(entry)]:
            if entry.is_in_place:
                self.drop(entry, cancel=True)
                self.report_dropped(entry.order.stream, f"worker {entry.token_worker} did not answer the scheduler")
            else:
                assert entry.token_worker is not None
                self.cancel(entry.token_worker, entry.choice_id, entry.order.epoch)
                self._requeue(entry)

    def report_dropped(self, stream: m.StreamRef, error: str) -> None:
        """Make a gateway submit another attempt, instead of waiting for tokens that no worker may compute."""
        delta = m.TokenDelta(stream.attempt_id, 0, None, FinishReason.ERROR, error, retryable=True)
        self._emit(m.to_gateway(stream, m.TokenBatch(self._scheduler_id, (delta,))))

    def _requeue(self, entry: AcceptedRequest) -> None:
        self._forget_intent(entry)
        self._requests.requeue(entry)

    def drop(self, entry: AcceptedRequest, *, cancel: bool) -> None:
        """Forget a request; with `cancel` its workers are notified."""
        self._forget_intent(entry)
        self._requests.drop(entry)
        if cancel:
            for worker_id in entry.workers:
                self.cancel(worker_id, entry.choice_id, entry.order.epoch)

    def _forget_intent(self, entry: AcceptedRequest) -> None:
        if entry.prompt_worker is not None:
            self._pools.drop_intended(entry.prompt_worker, entry.choice_id)

    def cancel(self, worker_id: str, choice_id: str, epoch: int) -> None:
        """Make a worker drop what it has of a request up to that attempt."""
        self._emit(m.Send(worker_id, m.CancelRequest(choice_id, epoch, self.term)))
