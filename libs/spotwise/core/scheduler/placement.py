"""Chooses the prompt worker and the token worker of a request (joint shortest queue), and avoids workers and pairs that failed.

Law: prompt queues count uncomputed prompt tokens, less a cached prefix; token queues count remaining tokens, among workers with
free blocks for the request's KV. Ties go to the smaller id. The first rule that finds workers decides:
home pools within their thresholds; for a side that is over, the mixed pool and workers with off-pool work; conversion of the
best of the opposite pool; home pools whatever their queues; any worker with free blocks.
KV flows only from the prompt pool to the token or the mixed pool; all else is served in place, so that no two workers wait for
each other. Where delays were measured, break-even chooses between a split and service in place.

Rules are preferences: a placement that delays the request less by more than a hand-off is taken instead (`least_delay.py`).

Of the workers that a rule finds for an answer, that of the least expected cost is chosen (`answer_times.py`): the first of
each class of life is compared, so that it costs at most twice the least where hazards are constant. A worker that stays, or of
whose life nothing is known, is chosen where its queue is the shortest.

Law: where a choice failed before, the request's workers are chosen again without the failed ones.
Avoided are workers and pairs on which earlier attempts of the request failed, and pairs in quarantine.
For a bad pair: another token worker for the prompt worker, else another prompt worker for the token worker, else both phases on
the token worker; the last also after `MAX_FAILED_HANDOFFS` failed hand-offs of the request.

Avoidance is a preference: a request is placed if and only if the rules above find workers for it, and where the others would
delay it by `AVOIDED_S` more, it goes to the workers on which it failed. Both phases are on the worker of the least delay, if
delays are compared, where nothing is handed off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter

from spotwise.core.messages.members import Pool
from spotwise.core.messages.mesh import Suspects
from spotwise.core.scheduler.answer_times import AnswerTimes, cheapest_worker
from spotwise.core.scheduler.delays import BATCH_SHARE, Delays
from spotwise.core.scheduler.least_delay import LeastDelay
from spotwise.core.scheduler.placements import PlacedBy, Placement, RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import (
    ALL_GROUPS,
    MIXED,
    PROMPT_OFF_POOL,
    PROMPT_ON_POOL,
    TOKEN_OFF_POOL,
    TOKEN_ON_POOL,
    Group,
    Pools,
    Queue,
)
from spotwise.core.scheduler.quarantine import FIRST_S, Pair, Quarantine
from spotwise.core.scheduler.ranking import Need
from spotwise.core.scheduler.views import WorkerView

_remaining_tokens = attrgetter("remaining_tokens")


class Placer:
    """Chooses workers for one request at a time, by the times that answers take."""

    def __init__(self, pools: Pools, policy: PoolPolicy, times: AnswerTimes | None = None) -> None:
        self._pools = pools
        self._policy = policy
        self._times = times or AnswerTimes(policy.token_s)
        self._by_life: set[str] = set()  #: workers chosen for this request in spite of a longer queue
        self._least_delay = LeastDelay(pools, policy, self._times)

    def place(self, demand: RequestDemand) -> Placement | None:
        """Return the workers of a request, or `None` where no worker has enough free blocks."""
        self._by_life.clear()
        placement = self._place(demand)
        if placement is None:
            return None
        if placement.token_worker.id in self._by_life:
            placement.by_life = True
        return self._least_delay.instead_of(placement, demand) if self._policy.break_even else placement

    def is_longer_by(self, seconds: float, other: Placement, plan: Placement, demand: RequestDemand) -> bool:
        """Tell whether a placement delays the request by so much more than another; never where delays are not compared."""
        return self._policy.break_even and self._least_delay.delay_s(other, demand, plan) > seconds

    def worker_for_both(self, plan: Placement, demand: RequestDemand) -> WorkerView:
        """Return the worker for both phases of a request that cannot be handed off as planned."""
        return self._least_delay.in_place(plan, demand) if self._policy.break_even else plan.token_worker

    def _place(self, demand: RequestDemand) -> Placement | None:
        token_worker = self._token_worker(demand, TOKEN_ON_POOL)
        prompt_worker = self._prompt_worker(demand, PROMPT_ON_POOL) if token_worker is not None else None
        if prompt_worker is not None and token_worker is not None:
            return self._split(demand, prompt_worker, token_worker, PlacedBy.HOME_POOL)
        # The head of a blocked queue is placed anew with every request that arrives or ends: fail fast.
        if not self._pools.have_capacity(demand.need):
            return None
        if not self._pools.ready_at(Pool.PROMPT, numerics_class=demand.numerics_class):
            return self._without_prompt_pool(demand)
        if not self._pools.ready_at(Pool.TOKEN, Pool.MIXED, numerics_class=demand.numerics_class):
            return self._in_place(demand, (PROMPT_ON_POOL, PROMPT_OFF_POOL), PlacedBy.HOME_POOL) or self._all_over(
                demand
            )
        if token_worker is None:
            prompt_worker = self._prompt_worker(demand, PROMPT_ON_POOL)
        if prompt_worker is not None:
            return self._spill_tokens(demand, prompt_worker)
        return self._spill_prompt(demand, token_worker)

    def _without_prompt_pool(self, demand: RequestDemand) -> Placement | None:
        return (
            self._in_place(demand, (MIXED,), PlacedBy.HOME_POOL)
            or self._in_place(demand, (TOKEN_ON_POOL, TOKEN_OFF_POOL), PlacedBy.HOME_POOL)
            or self._all_over(demand)
        )

    def _spill_tokens(self, demand: RequestDemand, prompt_worker: WorkerView) -> Placement | None:
        off_pool = self._token_worker(demand, TOKEN_OFF_POOL)
        short = () if off_pool is not None else (Pool.TOKEN,)
        partners = [view for view in (off_pool, self._token_worker(demand, MIXED)) if view is not None]
        here = self._in_place(demand, (PROMPT_OFF_POOL,), PlacedBy.MIXED_POOL, short)
        chosen = self._cheapest(demand, partners if here is None else [*partners, here.token_worker], _remaining_tokens)
        if here is not None and here.token_worker is chosen:
            return here
        if chosen is not None:
            return self._split(demand, prompt_worker, chosen, PlacedBy.MIXED_POOL, short)
        converted = self._in_place(demand, (PROMPT_ON_POOL,), PlacedBy.CONVERSION, short)
        return converted or self._all_over(demand, short)

    def _spill_prompt(self, demand: RequestDemand, token_worker: WorkerView | None) -> Placement | None:
        off_pool = self._prompt_worker(demand, PROMPT_OFF_POOL)
        short = [] if off_pool is not None else [Pool.PROMPT]
        if token_worker is None:
            token_worker = self._token_worker(demand, TOKEN_OFF_POOL)
            short += [] if token_worker is not None else [Pool.TOKEN]
            token_worker = token_worker or self._token_worker(demand, MIXED)
        plans = []
        if off_pool is not None and token_worker is not None:
            plans.append(self._split(demand, off_pool, token_worker, PlacedBy.MIXED_POOL, short))
        groups = (TOKEN_OFF_POOL, MIXED) if token_worker is not None else (PROMPT_OFF_POOL, TOKEN_OFF_POOL, MIXED)
        if here := self._in_place(demand, groups, PlacedBy.MIXED_POOL, short):
            plans.append(here)
        if plans:
            return min(plans, key=lambda plan: (self._prompt_queue(demand, plan.prompt_worker), plan.prompt_worker.id))
        converted = self._in_place(demand, (TOKEN_ON_POOL,), PlacedBy.CONVERSION, short)
        return converted or self._all_over(demand, short)

    def _all_over(self, demand: RequestDemand, short: Iterable[Pool] = ()) -> Placement | None:
        prompt_workers = [
            self._prompt_worker(demand, group, bounded=False) for group in (PROMPT_ON_POOL, PROMPT_OFF_POOL)
        ]
        prompt_worker = self._shortest(demand, prompt_workers)
        token_workers = [self._token_worker(demand, group, bounded=False) for group in (TOKEN_ON_POOL, TOKEN_OFF_POOL)]
        found = [view for view in token_workers if view is not None]
        token_worker = self._cheapest(demand, found, _remaining_tokens)
        token_worker = token_worker or self._token_worker(demand, MIXED, bounded=False)
        if prompt_worker is not None and token_worker is not None:
            return Placement(prompt_worker, token_worker, PlacedBy.ALL_OVER, tuple(short))
        return self._in_place(demand, ALL_GROUPS, PlacedBy.ALL_OVER, short, bounded=False)

    def _split(
        self,
        demand: RequestDemand,
        prompt_worker: WorkerView,
        token_worker: WorkerView,
        by: PlacedBy,
        short: Iterable[Pool] = (),
    ) -> Placement:
        """Return both workers, or the token worker alone where that costs less delay in all."""
        if self._policy.break_even and self._costs_more_than_in_place(demand, prompt_worker, token_worker):
            return Placement(token_worker, token_worker, PlacedBy.BREAK_EVEN, tuple(short))
        return Placement(prompt_worker, token_worker, by, tuple(short))

    def _costs_more_than_in_place(
        self, demand: RequestDemand, prompt_worker: WorkerView, token_worker: WorkerView
    ) -> bool:
        if prompt_worker.load.kv_push_token_s is None or prompt_worker.load.prompt_token_s is None:
            return False
        uncomputed = demand.uncomputed(token_worker)
        if token_worker.tokens_to_wait_behind > max(0, self._policy.max_pending_prompt_tokens - uncomputed):
            return False
        delays = Delays(self._policy, self._times, demand, (prompt_worker, token_worker))
        return delays.in_place_s(token_worker) < delays.split_s(prompt_worker, token_worker)

    def _in_place(
        self,
        demand: RequestDemand,
        groups: tuple[Group, ...],
        by: PlacedBy,
        short: Iterable[Pool] = (),
        *,
        bounded: bool = True,
    ) -> Placement | None:
        found = self._first(Queue.BOTH, demand, groups, reserves=True, bounded=bounded)
        length, queue = self._pools.decode_length, self._prompt_queue
        worker = self._cheapest(demand, found, lambda view: queue(demand, view) + length(view))
        return None if worker is None else Placement(worker, worker, by, tuple(short))

    def _cheapest(
        self, demand: RequestDemand, workers: list[WorkerView], queue: Callable[[WorkerView], int]
    ) -> WorkerView | None:
        """Return the worker of the least expected cost: what its queue adds to the answer, and an interruption's chance."""
        if len(workers) < 2:
            return workers[0] if workers else None
        # Their numbers, since one worker may be among them twice, and views have no order.
        in_order = sorted([(queue(view), view.id, number) for number, view in enumerate(workers)])
        shortest = workers[in_order[0][2]]
        if shortest.life is None:
            return shortest
        # One rate for all, so that loads compare as queues do.
        measured = [token_s for view in workers if (token_s := view.load.prompt_token_s) is not None]
        token_s = max(measured, default=self._policy.token_s * BATCH_SHARE)
        by_load = [(length * token_s, workers[number]) for length, _, number in in_order]
        lengths = self._times.lengths(demand.max_new_tokens)
        best = cheapest_worker(by_load, lengths, self._policy.interruption_s)
        if best is not shortest:
            self._by_life.add(best.id)
        return best

    def _prompt_queue(self, demand: RequestDemand, worker: WorkerView) -> int:
        """Tokens to compute there until this prompt is done."""
        return worker.pending_prompt_tokens + demand.uncomputed(worker)

    def _prompt_worker(self, demand: RequestDemand, group: Group, *, bounded: bool = True) -> WorkerView | None:
        return self._shortest(demand, self._first(Queue.HOME_POOL, demand, (group,), reserves=False, bounded=bounded))

    def _shortest(self, demand: RequestDemand, workers: Iterable[WorkerView | None]) -> WorkerView | None:
        found = [view for view in workers if view is not None]
        if len(found) < 2:
            return found[0] if found else None
        return min(found, key=lambda view: (self._prompt_queue(demand, view), view.id))

    def _token_worker(self, demand: RequestDemand, group: Group, *, bounded: bool = True) -> WorkerView | None:
        max_remaining = self._policy.max_remaining_tokens
        spare = max_remaining - demand.max_new_tokens if bounded and max_remaining is not None else None
        need = demand.need
        need.max_remaining = spare
        return self._cheapest(demand, self._pools.first_of(Queue.HOME_POOL, (group,), need), _remaining_tokens)

    def _first(
        self, queue: Queue, demand: RequestDemand, groups: tuple[Group, ...], *, reserves: bool, bounded: bool
    ) -> list[WorkerView]:
        """Return the candidates for the shortest queue: the first of each group, and the holders of a prefix."""
        max_remaining = self._policy.max_remaining_tokens if bounded and reserves else None
        need = Need(
            demand.prompt_tokens,
            demand.max_new_tokens,
            reserves,
            self._policy.max_pending_prompt_tokens - demand.prompt_tokens if bounded else None,
            max_remaining - demand.max_new_tokens if max_remaining is not None else None,
            demand.without,
            demand.below_kv_tokens if reserves else None,
            demand.numerics_class,
        )
        found = self._pools.first_of(queue, groups, need)
        for worker_id in demand.held:
            if self._pools.group_of(worker_id) in groups:
                view = self._pools[worker_id]
                if bounded:
                    need.max_pending = self._policy.max_pending_prompt_tokens - demand.uncomputed(view)
                if need.is_met_by(view):
                    found.append(view)
        return found


#: A request whose hand-off failed between so many pairs is handed off no more.
MAX_FAILED_HANDOFFS = 2
#: Seconds that a request waits at most for others than the workers that failed it: a pair's first quarantine.
AVOIDED_S = FIRST_S


class AvoidingPlacer:
    """Chooses workers for one request at a time."""

    def __init__(self, placer: Placer, quarantine: Quarantine) -> None:
        self._placer = placer
        self._quarantine = quarantine

    def place(self, demand: RequestDemand, avoid: tuple[Suspects, ...], now: float) -> Placement | None:
        """Return the workers of a request whose earlier attempts failed on `avoid`; `None` where free blocks lack."""
        plan = self._placer.place(demand)
        if plan is None or not (avoid or self._quarantine):
            return plan
        workers = frozenset(suspects[0] for suspects in avoid if len(suspects) == 1)
        if workers:
            without = replace(demand, without=demand.without | workers)
            other = self._placer.place(without)
            if other is not None and not self._placer.is_longer_by(AVOIDED_S, other, plan, demand):
                demand, plan = without, other
        if plan.prompt_worker is plan.token_worker:
            return plan
        failed = [(suspects[0], suspects[1]) for suspects in avoid if len(suspects) > 1]
        other = None
        if len(failed) < MAX_FAILED_HANDOFFS:
            pairs = self._quarantine.avoided(now).union(failed)
            other = plan if _pair(plan) not in pairs else self._another_pair(demand, plan, pairs)
        if other is not None:
            return other
        worker = self._placer.worker_for_both(plan, demand)
        return Placement(worker, worker, PlacedBy.BAD_PAIR, plan.short)

    def _another_pair(self, demand: RequestDemand, plan: Placement, pairs: Iterable[Pair]) -> Placement | None:
        prompt_id, token_id = _pair(plan)
        for without in (
            frozenset(token for prompt, token in pairs if prompt == prompt_id),
            frozenset(prompt for prompt, token in pairs if token == token_id),
        ):
            other = self._placer.place(replace(demand, without=demand.without | without))
            if other is not None and other.prompt_worker is not other.token_worker and _pair(other) not in pairs:
                return other
        return None


def _pair(plan: Placement) -> Pair:
    return plan.prompt_worker.id, plan.token_worker.id
