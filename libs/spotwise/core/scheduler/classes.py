"""Keeps requests within their numerics class: the one rule of crossings (`messages/numerics.py`).

A class has *room* for a request where a ready worker of it, other than those that failed the request, has free KV blocks for it
and a prompt queue (and a token queue, where that is bounded) within its threshold.

Law: both phases of an attempt are on workers of one class, so that no hand-off crosses.
A request without tokens goes to a class with room, of several to the placement of the least delay.
One with tokens goes to their class where that has room, else to another one with room, else where it can be held at all: first
in its class. With `refuse` it never goes to another: it waits, and holds up no other request, until its class can hold it.

A running request moves within its class; with `count` also to a class with free blocks that has the same KV, where its own has
none and it has to leave (`planner/targets.py`).
In a mesh of one class nothing of this is decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spotwise.core.messages.mesh import SubmitRequest
from spotwise.core.messages.numerics import Crossing, dtype_of, is_crossing
from spotwise.core.scheduler.placement import AvoidingPlacer, Placer
from spotwise.core.scheduler.placements import Placement, RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.quarantine import Quarantine


def classes_to_move_to(own: str, present: Iterable[str], crossing: Crossing) -> tuple[str, ...]:
    """Return the classes that a running request of the class `own` may move to, in the order in which they are tried."""
    if crossing is Crossing.REFUSE:
        return (own,)
    others = (each for each in present if each != own and dtype_of(each) == dtype_of(own))
    return (own, *others)


class ClassPlacer:
    """Chooses workers for one request at a time, of one class."""

    def __init__(self, pools: Pools, placer: Placer, quarantine: Quarantine, policy: PoolPolicy) -> None:
        self._pools = pools
        self._placer = placer
        self._avoiding = AvoidingPlacer(placer, quarantine)
        self._policy = policy
        self._too_large: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """Start at the head of the queue: nothing is known of what classes cannot hold now."""
        self._too_large.clear()

    def is_bound(self, order: SubmitRequest) -> bool:
        """Tell whether a request waits for its own class, whatever others could hold."""
        has_classes = self._pools.classes != ("",)
        return self._policy.crossing is Crossing.REFUSE and order.numerics_class != "" and has_classes

    def could_ever_hold(self, order: SubmitRequest) -> bool:
        """Tell whether a ready worker that the request may go to could hold all of it when idle."""
        return self._pools.could_ever_hold(order, order.numerics_class if self.is_bound(order) else None)

    def place(self, order: SubmitRequest, demand: RequestDemand, now: float) -> Placement | None:
        """Return the workers of a request; `None` where those that it may go to lack free blocks."""
        own, present = order.numerics_class, self._pools.classes
        if len(present) < 2 and not any(is_crossing(own, each) for each in present):
            return self._avoiding.place(demand, order.avoid, now)
        if self.is_bound(order):
            return self._place_bound(order, demand, now)
        others = [each for each in present if is_crossing(own, each)]
        mine = [each for each in present if each not in others]
        for classes in (mine, others):
            with_room = [each for each in classes if self._has_room(order, demand, each)]
            if with_room and (placement := self._best(order, demand, with_room, now)) is not None:
                return placement
        return self._best(order, demand, mine, now) or self._best(order, demand, others, now)

    def _place_bound(self, order: SubmitRequest, demand: RequestDemand, now: float) -> Placement | None:
        own, size = order.numerics_class, (demand.prompt_tokens, demand.max_new_tokens)
        known = self._too_large.get(own)
        if known is not None and known[0] <= size[0] and known[1] <= size[1]:
            return None  # hundreds may wait for one class
        placement = self._best(order, demand, [own], now)
        if placement is None:
            self._too_large[own] = size
        return placement

    def _has_room(self, order: SubmitRequest, demand: RequestDemand, numerics_class: str) -> bool:
        policy = self._policy
        failed = frozenset(suspects[0] for suspects in order.avoid if len(suspects) == 1)
        need = replace(demand, without=demand.without | failed, numerics_class=numerics_class).need
        need.max_pending = policy.max_pending_prompt_tokens - demand.prompt_tokens
        if policy.max_remaining_tokens is not None:
            need.max_remaining = policy.max_remaining_tokens - demand.max_new_tokens
        return self._pools.have_capacity(need)

    def _best(
        self, order: SubmitRequest, demand: RequestDemand, classes: Iterable[str], now: float
    ) -> Placement | None:
        """Return the placement of the least delay, of one in each class; of the shortest queues where none are compared."""
        best: Placement | None = None
        for each in classes:
            within = replace(demand, numerics_class=each)
            placement = self._avoiding.place(within, order.avoid, now)
            if placement is None:
                continue
            if best is None or self._is_sooner(placement, best, demand):
                best = placement
        return best

    def _is_sooner(self, placement: Placement, than: Placement, demand: RequestDemand) -> bool:
        if self._policy.break_even:
            return self._placer.is_longer_by(0.0, than, placement, demand)
        return _queued(placement) < _queued(than)


def _queued(placement: Placement) -> int:
    return placement.prompt_worker.pending_prompt_tokens + placement.token_worker.remaining_tokens
