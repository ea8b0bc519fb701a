"""Placement that avoids workers and pairs that failed.

Law: `placement.py` chooses; where its choice failed before, it chooses again without the failed workers.
Avoided are workers and pairs on which earlier attempts of the request failed, and pairs in quarantine.
For a bad pair: another token worker for the prompt worker, else another prompt worker for the token worker, else both phases on
the token worker; the last also after `MAX_FAILED_HANDOFFS` failed hand-offs of the request.
Avoidance is a preference: a request is placed if and only if `placement.py` finds workers for it, and where the others would
delay it by `AVOIDED_S` more, it goes to the workers on which it failed. Both phases are on the worker of the least delay, if
delays are compared, where nothing is handed off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spotwise.core.messages.mesh import Suspects
from spotwise.core.scheduler.placement import Placer
from spotwise.core.scheduler.placements import PlacedBy, Placement, RequestDemand
from spotwise.core.scheduler.quarantine import FIRST_S, Pair, Quarantine

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
