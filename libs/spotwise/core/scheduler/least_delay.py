"""Replaces a placement that the pools' rules have chosen where another one delays less by more than a hand-off.

Law: no placement is worse than the best one looked at by more than the prompt's hand-off takes (before one was measured: by
more than the prompt's own computing).
In a mesh of up to `ALL_OF` workers every pair along which KV may flow is looked at, and every worker for both phases.
Where nothing waits on the prompt worker and nothing decodes there, the rules' choice stands: others could only be faster.
So thresholds, home pools and the mixed pool, lives and prefixes are preferences as far as a hand-off's time, and no further.

In a larger mesh that would take as long as all else. There others are looked at for a prompt that is delayed by `LARGE_MESH_S`:
the first of each group and class of life in the order of its queue, and those that hold a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.answer_times import AnswerTimes
from spotwise.core.scheduler.delays import Delays
from spotwise.core.scheduler.placements import PlacedBy, Placement, RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import (
    ALL_GROUPS,
    MIXED,
    PROMPT_OFF_POOL,
    PROMPT_ON_POOL,
    TOKEN_OFF_POOL,
    TOKEN_ON_POOL,
    Pools,
    Queue,
)
from spotwise.core.scheduler.ranking import Need
from spotwise.core.scheduler.views import WorkerView

#: Workers of a mesh that are all compared.
ALL_OF = 16
#: Seconds of a prompt's delay from which on others are looked at in a larger mesh.
LARGE_MESH_S = 1.0
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
        prompt_worker, token_worker = plan.prompt_worker, plan.token_worker
        if not demand.held and not prompt_worker.pending_prompt_tokens and not prompt_worker.decoding:
            return plan
        if self._pools.ready > ALL_OF:
            delays = self._delays(demand, (prompt_worker,))
            undelayed_s = delays.compute_s(prompt_worker, demand.uncomputed(prompt_worker))
            if delays.prompt_s(prompt_worker) - undelayed_s < LARGE_MESH_S:
                return plan
        prompt_workers, alone = self._prompt_workers(plan, demand), self._workers_for_both(plan, demand)
        delays = self._delays(demand, [prompt_worker, token_worker, *prompt_workers, *alone])
        best, least_s = plan, _delay_s(delays, plan) - self._slack_s(delays, plan, prompt_workers)
        for view in alone:
            if delays.wait_s(view) < least_s and (in_place_s := delays.in_place_s(view)) < least_s:
                best, least_s = Placement(view, view, PlacedBy.LEAST_DELAY, plan.short), in_place_s
        partner = self._token_worker(plan, demand, delays) if prompt_workers else None
        if partner is not None:
            for view in prompt_workers:
                if delays.wait_s(view) < least_s and (split_s := delays.split_s(view, partner)) < least_s:
                    best, least_s = Placement(view, partner, PlacedBy.LEAST_DELAY, plan.short), split_s
        return best

    def in_place(self, plan: Placement, demand: RequestDemand) -> WorkerView:
        """Return the worker for both phases of a request that cannot be handed off as planned: the plan's token worker, or the
        one of the least delay.
        """
        usual, views = plan.token_worker, self._workers_for_both(plan, demand)
        delays = self._delays(demand, [plan.prompt_worker, usual, *views])
        best = min(views, key=lambda view: (delays.in_place_s(view), view.id), default=usual)
        most_s = delays.in_place_s(best) + delays.slack_s(plan.prompt_worker)
        return usual if delays.in_place_s(usual) <= most_s else best

    def delay_s(self, plan: Placement, demand: RequestDemand, than: Placement) -> float:
        """Return by how many seconds a placement delays the request more than another."""
        delays = self._delays(demand, (plan.prompt_worker, plan.token_worker, than.prompt_worker, than.token_worker))
        return _delay_s(delays, plan) - _delay_s(delays, than)

    def _slack_s(self, delays: Delays, plan: Placement, prompt_workers: list[WorkerView]) -> float:
        if plan.prompt_worker is not plan.token_worker:
            return delays.slack_s(plan.prompt_worker)
        return delays.slack_s(prompt_workers[0]) if prompt_workers else 0.0

    @property
    def _number(self) -> int:
        """How many workers of each group and class are compared."""
        return ALL_OF if self._pools.ready <= ALL_OF else 1

    def _holders(self, demand: RequestDemand, need: Need) -> list[WorkerView]:
        if not demand.held:
            return []
        views = [self._pools[id_] for id_ in demand.held if self._pools.group_of(id_) is not None]
        return [view for view in views if need.is_met_by(view)]

    def _prompt_workers(self, plan: Placement, demand: RequestDemand) -> list[WorkerView]:
        tokens, numerics_class = (demand.prompt_tokens, demand.max_new_tokens), demand.numerics_class
        need = Need(*tokens, reserves=False, without=demand.without, numerics_class=numerics_class)
        number, known = self._number, self._pools.group_of(plan.prompt_worker.id)
        # The rules take the first of its group: no other one is looked for in a large mesh.
        groups = [group for group in _PROMPT_GROUPS if number > 1 or group is not known]
        found = self._pools.first_of(Queue.HOME_POOL, groups, need, number)
        if known in _PROMPT_GROUPS:
            found.append(plan.prompt_worker)
        return [*found, *(view for view in self._holders(demand, need) if view.home_pool is Pool.PROMPT)]

    def _workers_for_both(self, plan: Placement, demand: RequestDemand) -> list[WorkerView]:
        need, number = demand.need, self._number
        planned = (plan.prompt_worker, plan.token_worker)
        known = [self._pools.group_of(view.id) for view in planned] if number == 1 else []
        groups = [group for group in ALL_GROUPS if group not in known]
        found = self._pools.first_of(Queue.BOTH, groups, need, number)
        return [*found, *(view for view in planned if need.is_met_by(view)), *self._holders(demand, need)]

    def _token_worker(self, plan: Placement, demand: RequestDemand, delays: Delays) -> WorkerView | None:
        is_planned = plan.token_worker.home_pool is not Pool.PROMPT
        if is_planned and self._number == 1:
            return plan.token_worker  # by its queue and life, as the rules have it
        found = self._pools.first_of(Queue.HOME_POOL, _TOKEN_GROUPS, demand.need, self._number)
        if is_planned:
            found.insert(0, plan.token_worker)
        return min(found, key=delays.partner_s, default=None)


def _delay_s(delays: Delays, plan: Placement) -> float:
    if plan.prompt_worker is plan.token_worker:
        return delays.in_place_s(plan.token_worker)
    return delays.split_s(plan.prompt_worker, plan.token_worker)
