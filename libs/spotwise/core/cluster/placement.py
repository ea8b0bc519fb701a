"""Which prompt worker and which token worker serve a request.

Law: both at the same time, so that KV can flow while the prompt is computed; each the shortest queue of its pool, counted in
pending tokens (Splitwise, section 4.2). A prompt queue counts the prompt tokens that are not computed yet, and those of this
prompt that the worker would have to compute: a worker that holds the prompt's beginning has a shorter one. A token queue
counts the tokens still owed, among workers with room for the request's KV.

1. *At home*: the best worker of the prompt pool and the best of the token pool, if both are within their thresholds.
2. *Mixed pool*: where a side is over, the best of the mixed pool for it: workers at home there, and those of either pool that
   hold off-pool work at this moment.
3. *Conversion*: where that is over too, the best of the opposite pool. It then holds off-pool work, and so is in the mixed pool
   until that work is done.
4. *All over*: the shortest queues of the home pools, whatever their length; and wherever there is room, else.

KV flows one way: from workers whose home is the prompt pool to workers whose home is the token or the mixed pool. All else is
served in place: nothing is reserved or transferred, and the prompt waits for its blocks where it is computed. Were two workers
to compute prompts for one another, each could fill up with reservations whose prompts wait for blocks on the other, for ever.

Room is asked of a worker in place too, though a prompt there could take the blocks of decodes: what a full mesh cannot take yet
waits in one queue, from which any worker may take it, and not in many that are first come, first served each. A prompt
that preempts is one whose room has gone since: to decodes that grew, or because the view of the worker was old.

Break-even: a split costs its request the push and the prompt worker's queue; in place, the prompt costs all that decode there
the time of its computing, and its request the queue there. Where both were measured, the smaller delay decides.

Invariants: ties go to the smaller id; no worker is chosen that is not READY; the token worker has room for the request's KV
now, and its whole cache could hold all of it; the prompt worker's cache could hold the prompt; a request is placed if and only
if any worker has room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from spotwise.core.cluster.policy import PoolPolicy
from spotwise.core.cluster.pools import (
    ALL_GROUPS,
    MIXED,
    PROMPT_AT_HOME,
    PROMPT_AWAY,
    TOKEN_AT_HOME,
    TOKEN_AWAY,
    Group,
    Pools,
    Queue,
)
from spotwise.core.cluster.ranking import Need
from spotwise.core.cluster.views import WorkerView
from spotwise.core.members import Pool


@dataclass(slots=True)
class RequestDemand:
    """What a request asks for; never changed.

    Attributes:
        prompt_tokens: at least 1.
        max_new_tokens: at least 1.
        held: of the prompt's first tokens, how many a worker may hold already, by worker id.
        without: workers that are not chosen.
    """

    prompt_tokens: int
    max_new_tokens: int
    held: Mapping[str, int] = field(default_factory=dict)
    without: frozenset[str] = frozenset()

    def uncomputed(self, worker: WorkerView) -> int:
        """Tokens of the prompt that the worker would have to compute: the last one always."""
        held = self.held.get(worker.id) if self.held else None
        return self.prompt_tokens if held is None else self.prompt_tokens - min(held, self.prompt_tokens - 1)


class PlacedBy(StrEnum):
    """Which of the rules chose the workers."""

    HOME = "home"
    MIXED_POOL = "mixed_pool"
    CONVERSION = "conversion"
    BREAK_EVEN = "break_even"
    ALL_OVER = "all_over"
    BAD_PAIR = "bad_pair"  #: `avoidance.py`


@dataclass(slots=True)
class Placement:
    """A request's workers; never changed.

    Attributes:
        prompt_worker, token_worker: the same where the request is served in place.
        by: the rule that chose them.
        short: the pools none of whose workers was within its threshold.
    """

    prompt_worker: WorkerView
    token_worker: WorkerView
    by: PlacedBy
    short: tuple[Pool, ...] = ()


class Placer:
    """Chooses workers for one request after another.

    Args:
        pools: all workers.
        policy: thresholds, and whether to break even.
    """

    def __init__(self, pools: Pools, policy: PoolPolicy) -> None:
        self._pools = pools
        self._policy = policy

    def place(self, demand: RequestDemand) -> Placement | None:
        """Return the workers of a request, or `None` where nobody has room for it."""
        token_worker = self._token_worker(demand, TOKEN_AT_HOME)
        prompt_worker = self._prompt_worker(demand, PROMPT_AT_HOME) if token_worker is not None else None
        if prompt_worker is not None and token_worker is not None:
            return self._split(demand, prompt_worker, token_worker, PlacedBy.HOME)
        # A look at all groups, which ends the matter for whoever finds no room: the first in the queue comes by here
        # with every request that comes or goes.
        if not self._pools.have_room(Need(demand.prompt_tokens, demand.max_new_tokens, reserves=True)):
            return None
        if not self._pools.ready_at(Pool.PROMPT):
            return self._without_prompt_pool(demand)
        if not self._pools.ready_at(Pool.TOKEN, Pool.MIXED):
            return self._in_place(demand, (PROMPT_AT_HOME, PROMPT_AWAY), PlacedBy.HOME) or self._all_over(demand)
        if token_worker is None:
            prompt_worker = self._prompt_worker(demand, PROMPT_AT_HOME)
        if prompt_worker is not None:
            return self._spill_tokens(demand, prompt_worker)
        return self._spill_prompt(demand, token_worker)

    # --- rules --------------------------------------------------------------------------------------------------------

    def _without_prompt_pool(self, demand: RequestDemand) -> Placement | None:
        """Everything is served in place: by the mixed pool, then by whoever is there."""
        return (
            self._in_place(demand, (MIXED,), PlacedBy.HOME)
            or self._in_place(demand, (TOKEN_AT_HOME, TOKEN_AWAY), PlacedBy.HOME)
            or self._all_over(demand)
        )

    def _spill_tokens(self, demand: RequestDemand, prompt_worker: WorkerView) -> Placement | None:
        """The token pool is over: the mixed pool, then a converted prompt worker."""
        away = self._token_worker(demand, TOKEN_AWAY)
        short = () if away is not None else (Pool.TOKEN,)
        partners = [view for view in (away, self._token_worker(demand, MIXED)) if view is not None]
        plans = [self._split(demand, prompt_worker, view, PlacedBy.MIXED_POOL, short) for view in partners]
        if here := self._in_place(demand, (PROMPT_AWAY,), PlacedBy.MIXED_POOL, short):
            plans.append(here)
        if plans:
            return min(plans, key=lambda plan: (plan.token_worker.remaining_tokens, plan.token_worker.id))
        converted = self._in_place(demand, (PROMPT_AT_HOME,), PlacedBy.CONVERSION, short)
        return converted or self._all_over(demand, short)

    def _spill_prompt(self, demand: RequestDemand, token_worker: WorkerView | None) -> Placement | None:
        """The prompt pool is over, and the token pool too where there is no `token_worker`."""
        away = self._prompt_worker(demand, PROMPT_AWAY)
        short = [] if away is not None else [Pool.PROMPT]
        if token_worker is None:
            token_worker = self._token_worker(demand, TOKEN_AWAY)
            short += [] if token_worker is not None else [Pool.TOKEN]
            token_worker = token_worker or self._token_worker(demand, MIXED)
        plans = []
        if away is not None and token_worker is not None:
            plans.append(self._split(demand, away, token_worker, PlacedBy.MIXED_POOL, short))
        groups = (TOKEN_AWAY, MIXED) if token_worker is not None else (PROMPT_AWAY, TOKEN_AWAY, MIXED)
        if here := self._in_place(demand, groups, PlacedBy.MIXED_POOL, short):
            plans.append(here)
        if plans:
            return min(plans, key=lambda plan: (self._prompt_queue(demand, plan.prompt_worker), plan.prompt_worker.id))
        converted = self._in_place(demand, (TOKEN_AT_HOME,), PlacedBy.CONVERSION, short)
        return converted or self._all_over(demand, short)

    def _all_over(self, demand: RequestDemand, short: Iterable[Pool] = ()) -> Placement | None:
        """No threshold holds: the shortest queues of the home pools, and wherever there is room, else."""
        prompt_workers = [self._prompt_worker(demand, group, bounded=False) for group in (PROMPT_AT_HOME, PROMPT_AWAY)]
        prompt_worker = self._shortest(demand, prompt_workers)
        token_workers = [self._token_worker(demand, group, bounded=False) for group in (TOKEN_AT_HOME, TOKEN_AWAY)]
        found = [view for view in token_workers if view is not None]
        token_worker = min(found, key=lambda view: (view.remaining_tokens, view.id), default=None)
        token_worker = token_worker or self._token_worker(demand, MIXED, bounded=False)
        if prompt_worker is not None and token_worker is not None:
            return Placement(prompt_worker, token_worker, PlacedBy.ALL_OVER, tuple(short))
        return self._in_place(demand, ALL_GROUPS, PlacedBy.ALL_OVER, short, bounded=False)

    # --- one worker, or two -------------------------------------------------------------------------------------------

    def _split(
        self,
        demand: RequestDemand,
        prompt_worker: WorkerView,
        token_worker: WorkerView,
        by: PlacedBy,
        short: Iterable[Pool] = (),
    ) -> Placement:
        """Return both workers, or the token worker alone where that delays everybody less."""
        if self._policy.break_even and self._costs_more_than_in_place(demand, prompt_worker, token_worker):
            return Placement(token_worker, token_worker, PlacedBy.BREAK_EVEN, tuple(short))
        return Placement(prompt_worker, token_worker, by, tuple(short))

    def _costs_more_than_in_place(
        self, demand: RequestDemand, prompt_worker: WorkerView, token_worker: WorkerView
    ) -> bool:
        push_s, prompt_s = prompt_worker.load.kv_push_token_s, prompt_worker.load.prompt_token_s
        if push_s is None or prompt_s is None:
            return False
        uncomputed = demand.uncomputed(token_worker)
        if token_worker.tokens_to_wait_behind > max(0, self._policy.max_pending_prompt_tokens - uncomputed):
            return False
        here_s = token_worker.load.prompt_token_s
        if here_s is None:
            here_s = prompt_s  # one that has computed no prompt yet is taken for as fast as its partner
        queue = self._prompt_queue(demand, prompt_worker)
        split_s = push_s * demand.prompt_tokens + prompt_s * queue
        queue_here = self._prompt_queue(demand, token_worker)
        in_place_s = here_s * (queue_here + uncomputed * token_worker.decoding)
        return in_place_s < split_s

    def _in_place(
        self,
        demand: RequestDemand,
        groups: tuple[Group, ...],
        by: PlacedBy,
        short: Iterable[Pool] = (),
        *,
        bounded: bool = True,
    ) -> Placement | None:
        """Return the worker with the shortest queues of some groups, for both phases."""
        found = self._first(Queue.BOTH, demand, groups, reserves=True, bounded=bounded)
        if not found:
            return None
        length = self._pools.decode_length
        worker = min(found, key=lambda view: (self._prompt_queue(demand, view) + length(view), view.id))
        return Placement(worker, worker, by, tuple(short))

    # --- the shortest queue of a group --------------------------------------------------------------------------------

    def _prompt_queue(self, demand: RequestDemand, worker: WorkerView) -> int:
        """Tokens to compute there until this prompt is done."""
        return worker.pending_prompt_tokens + demand.uncomputed(worker)

    def _prompt_worker(self, demand: RequestDemand, group: Group, *, bounded: bool = True) -> WorkerView | None:
        return self._shortest(demand, self._first(Queue.HOME, demand, (group,), reserves=False, bounded=bounded))

    def _shortest(self, demand: RequestDemand, workers: Iterable[WorkerView | None]) -> WorkerView | None:
        found = [view for view in workers if view is not None]
        if len(found) < 2:
            return found[0] if found else None
        return min(found, key=lambda view: (self._prompt_queue(demand, view), view.id))

    def _token_worker(self, demand: RequestDemand, group: Group, *, bounded: bool = True) -> WorkerView | None:
        max_owed = self._policy.max_owed_tokens
        spare = max_owed - demand.max_new_tokens if bounded and max_owed is not None else None
        need = Need(demand.prompt_tokens, demand.max_new_tokens, reserves=True, max_owed=spare, without=demand.without)
        return next(iter(self._pools.first_of(Queue.HOME, (group,), need)), None)

    def _first(
        self, queue: Queue, demand: RequestDemand, groups: tuple[Group, ...], *, reserves: bool, bounded: bool
    ) -> list[WorkerView]:
        """Return those of some groups that may have the shortest queue: of each the first, and who holds a prefix."""
        max_owed = self._policy.max_owed_tokens if bounded and reserves else None
        need = Need(
            demand.prompt_tokens,
            demand.max_new_tokens,
            reserves,
            self._policy.max_pending_prompt_tokens - demand.prompt_tokens if bounded else None,
            max_owed - demand.max_new_tokens if max_owed is not None else None,
            demand.without,
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
