"""Placement that keeps away from what failed.

Law: the rules of `placement.py` choose; where they choose workers that failed, they choose again without those. Avoided are
the workers and pairs of which the request's earlier attempts failed, and the pairs in quarantine. Of a bad pair the prompt
worker gets another token worker, or the token worker another prompt worker; where there is none, or the request's hand-offs
failed `MAX_FAILED_HANDOFFS` times, the token worker serves both phases. To avoid is a preference: a request that a worker has
room for is placed.

Invariants: with nothing to avoid, the choice is that of the rules; a placement exists if and only if the rules find one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spotwise.core.cluster.placement import PlacedBy, Placement, Placer, RequestDemand
from spotwise.core.cluster.quarantine import Pair, Quarantine
from spotwise.core.messages import Suspects

#: A request whose hand-off failed between so many pairs is handed off no more.
MAX_FAILED_HANDOFFS = 2


class AvoidingPlacer:
    """Chooses workers for one request after another.

    Args:
        placer: by the rules.
        quarantine: pairs that get no hand-offs for a while.
    """

    def __init__(self, placer: Placer, quarantine: Quarantine) -> None:
        self._placer = placer
        self._quarantine = quarantine

    def place(self, demand: RequestDemand, avoid: tuple[Suspects, ...], now: float) -> Placement | None:
        """Return the workers of a request whose earlier attempts failed of `avoid`; `None` where nobody has room for it."""
        plan = self._placer.place(demand)
        if plan is None or not (avoid or self._quarantine):
            return plan
        workers = frozenset(suspects[0] for suspects in avoid if len(suspects) == 1)
        if workers:
            demand = replace(demand, without=workers)
            plan = self._placer.place(demand) or plan
        if plan.prompt_worker is plan.token_worker:
            return plan
        failed = [(suspects[0], suspects[1]) for suspects in avoid if len(suspects) > 1]
        other: Placement | None = None
        if len(failed) < MAX_FAILED_HANDOFFS:
            pairs = self._quarantine.avoided(now).union(failed)
            other = plan if _pair(plan) not in pairs else self._another_pair(demand, plan, pairs)
        return other or Placement(plan.token_worker, plan.token_worker, PlacedBy.BAD_PAIR, plan.short)

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
