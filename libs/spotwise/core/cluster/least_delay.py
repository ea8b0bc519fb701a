"""Replaces a placement that the pools' rules have chosen where another one delays less by more than a hand-off.

Law: no placement is worse than the best one looked at by more than the prompt's hand-off takes (before one was measured: by
more than the prompt's own computing). Looked at are the first `LOOKED_AT` workers of each group and class of life in the order
of its queue, those that hold a prefix, and of these every pair along which KV may flow, and every worker for both phases.
Where nothing waits on the prompt worker and nothing decodes there, the rules' choice stands: all that others could be is
faster. So thresholds, home pools and the mixed pool, lives and prefixes are preferences as far as a hand-off's time, and no
further.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.cluster.answer_times import AnswerTimes
from spotwise.core.cluster.delays import Delays
from spotwise.core.cluster.placements import PlacedBy, Placement, RequestDemand
from spotwise.core.cluster.policy import PoolPolicy
from spotwise.core.cluster.pools import (
    ALL_GROUPS,
    MIXED,
    PROMPT_OFF_POOL,
    PROMPT_ON_POOL,
    TOKEN_OFF_POOL,
    TOKEN_ON_POOL,
    Pools,
    Queue,
)
from spotwise.core.cluster.ranking import Need
from spotwise.core.cluster.views import WorkerView
from spotwise.core.members import Pool

#: Workers of a group, and of a class of life in it, whose delays are compared.
LOOKED_AT = 8
_PROMPT_GROUPS = (PROMPT_ON_POOL, PROMPT_OFF_POOL)
_TOKEN_GROUPS = (TOKEN_ON_POOL, TOKEN_OFF_POOL, MIXED)


class LeastDelay:
    """Compares placements of one request at a time."""

    def __init__(self, pools: Pools, policy: PoolPolicy, times: AnswerTimes) -> None:
        self._pools = pools
        self._policy = policy
        self._times = times

    def _delays(self, demand: RequestDemand, views: Iterable[WorkerView]) -> Delays:
        return Delays(self._policy, self._times, demand, views)

    def instead_of(self, plan: Placement, demand: RequestDemand) -> Placement:
        """Return the placement of the least delay, if that is less than the plan's by more than a hand-off; else the plan."""
        if self._is_undelayed(plan, demand):
            return plan
        prompt_workers = self._prompt_workers(demand)
        alone = self._workers_for_both(demand)
        delays = self._delays(demand, [plan.prompt_worker, plan.token_worker, *prompt_workers, *alone])
        best, least_s = plan, _delay_s(delays, plan) - self._slack_s(delays, plan, prompt_workers)
        for view in alone:
            in_place_s = delays.in_place_s(view)
            if in_place_s < least_s:
                best, least_s = Placement(view, view, PlacedBy.LEAST_DELAY, plan.short), in_place_s
        token_worker = self._token_worker(plan, demand, delays)
        if token_worker is not None:
            for view in prompt_workers:
                split_s = delays.split_s(view, token_worker)
                if split_s < least_s:
                    best, least_s = Placement(view, token_worker, PlacedBy.LEAST_DELAY, plan.short), split_s
        return best

    def in_place(self, plan: Placement, demand: RequestDemand) -> WorkerView:
        """Return the worker for both phases of a request that cannot be handed off as planned: the plan's token worker, or the
        one of the least delay.
        """
        usual, views = plan.token_worker, self._workers_for_both(demand)
        delays = self._delays(demand, [plan.prompt_worker, usual, *views])
        best = min(views, key=lambda view: (delays.in_place_s(view), view.id), default=usual)
        most_s = delays.in_place_s(best) + delays.slack_s(plan.prompt_worker)
        return usual if delays.in_place_s(usual) <= most_s else best

    def delay_s(self, plan: Placement, demand: RequestDemand, than: Placement) -> float:
        """Return by how many seconds a placement delays the request more than another."""
        delays = self._delays(demand, (plan.prompt_worker, plan.token_worker, than.prompt_worker, than.token_worker))
        return _delay_s(delays, plan) - _delay_s(delays, than)

    def _is_undelayed(self, plan: Placement, demand: RequestDemand) -> bool:
        view = plan.prompt_worker
        if view.pending_prompt_tokens or view.decoding:
            return False
        return not demand.held or demand.uncomputed(view) <= min(
            map(demand.uncomputed, self._holders(demand)), default=0
        )

    def _slack_s(self, delays: Delays, plan: Placement, prompt_workers: list[WorkerView]) -> float:
        if plan.prompt_worker is not plan.token_worker:
            return delays.slack_s(plan.prompt_worker)
        return delays.slack_s(prompt_workers[0]) if prompt_workers else 0.0

    def _holders(self, demand: RequestDemand) -> list[WorkerView]:
        return [self._pools[id_] for id_ in demand.held if self._pools.group_of(id_) is not None]

    def _prompt_workers(self, demand: RequestDemand) -> list[WorkerView]:
        need = Need(demand.prompt_tokens, demand.max_new_tokens, reserves=False, without=demand.without)
        found = self._pools.first_of(Queue.HOME_POOL, _PROMPT_GROUPS, need, LOOKED_AT)
        holders = [view for view in self._holders(demand) if view.home_pool is Pool.PROMPT and need.is_met_by(view)]
        return [*found, *holders]

    def _workers_for_both(self, demand: RequestDemand) -> list[WorkerView]:
        need = demand.need
        found = self._pools.first_of(Queue.BOTH, ALL_GROUPS, need, LOOKED_AT)
        return [*found, *(view for view in self._holders(demand) if need.is_met_by(view))]

    def _token_worker(self, plan: Placement, demand: RequestDemand, delays: Delays) -> WorkerView | None:
        found = self._pools.first_of(Queue.HOME_POOL, _TOKEN_GROUPS, demand.need, LOOKED_AT)
        if plan.token_worker.home_pool is not Pool.PROMPT:
            found.insert(0, plan.token_worker)  # the rules' choice, where no other is better
        return min(found, key=delays.answer_s, default=None)


def _delay_s(delays: Delays, plan: Placement) -> float:
    if plan.prompt_worker is plan.token_worker:
        return delays.in_place_s(plan.token_worker)
    return delays.split_s(plan.prompt_worker, plan.token_worker)
