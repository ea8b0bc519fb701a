"""Decides which queued requests may pass those ahead of them that no worker can take (backfilling).

Law: the first request that no worker can take reserves a worker: of those that could hold it, the one with the most free KV.
Requests of the same priority may pass it there `max_passes` times in all; then the worker gets nothing until that request is
placed, so that it drains. On other workers they pass it freely. A request that no ready worker could hold delays no other.
A request takes no KV that a more important one could use: it passes that one on smaller workers only. Priorities stay strict.
At most `LOOK_AHEAD` requests from the head on are tried. With `max_passes` 0 nothing passes anything.

Source: EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", 1995); the count is ours, since the length of an answer is
not known before it ends.
"""

from __future__ import annotations

from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.placements import Placement
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.requests import AcceptedRequest
from spotwise.core.scheduler.views import WorkerView

#: Requests that are tried from the head of the queue on, until this many could not be placed.
LOOK_AHEAD = 32


class Passing:
    """One scheduler's rule; `begin` starts a walk through the queue, from its head on."""

    def __init__(self, pools: Pools, max_passes: int) -> None:
        self._pools = pools
        self._max_passes = max_passes
        self._blocked: list[AcceptedRequest] = []
        self._least_kv_tokens: int | None = None  #: that one of them needs
        self._least_more_important: int | None = None  #: the same of those with a lower number than the last one

    @property
    def head(self) -> AcceptedRequest | None:
        """The first request of this walk that no worker could take."""
        return self._blocked[0] if self._blocked else None

    @property
    def least_demand(self) -> tuple[int, int] | None:
        """The fewest prompt tokens and the fewest new tokens of those that no worker could take; `None` without any."""
        if not self._blocked:
            return None
        orders = [entry.order for entry in self._blocked]
        return min(order.prompt_tokens for order in orders), min(order.max_new_tokens for order in orders)

    def begin(self) -> None:
        """Start at the head of the queue."""
        self._blocked = []
        self._least_kv_tokens = self._least_more_important = None

    def blocked(self, entry: AcceptedRequest) -> bool:
        """Note that no worker can take a request; tell whether the next one is to be tried."""
        if not self._blocked:
            self._reserve(entry)
        self._least_more_important = self.below_kv_tokens(entry)
        self._blocked.append(entry)
        known = self._least_kv_tokens
        self._least_kv_tokens = entry.kv_tokens if known is None else min(known, entry.kv_tokens)
        return self._max_passes > 0 and len(self._blocked) < LOOK_AHEAD

    def without(self, entry: AcceptedRequest) -> frozenset[str]:
        """Return the worker that the request may not use, if any."""
        head = self.head
        if head is None or head.reserved_worker is None:
            return frozenset()
        may_pass = entry.order.priority == head.order.priority and head.passes < self._max_passes
        return frozenset() if may_pass else frozenset((head.reserved_worker,))

    def below_kv_tokens(self, entry: AcceptedRequest) -> int | None:
        """Return the size that a worker's KV cache must be below to be the request's; `None` for any."""
        if self._blocked and self._blocked[-1].order.priority < entry.order.priority:
            return self._least_kv_tokens
        return self._least_more_important

    def placed(self, placement: Placement) -> None:
        """Count a request that was placed on the reserved worker."""
        head = self.head
        if head is not None and head.reserved_worker in (placement.prompt_worker.id, placement.token_worker.id):
            head.passes += 1

    def _reserve(self, entry: AcceptedRequest) -> None:
        """Reserve a worker, unless the one of before still can hold the request."""
        reserved = entry.reserved_worker
        if reserved is None or self._pools.group_of(reserved) is None or not self._could_hold(reserved, entry):
            entry.reserved_worker = self._with_most_free_kv(entry)

    def _could_hold(self, worker_id: str, entry: AcceptedRequest) -> bool:
        return self._pools[worker_id].could_ever_hold(entry.kv_tokens)

    def _with_most_free_kv(self, entry: AcceptedRequest) -> str | None:
        def suits(view: WorkerView) -> tuple[bool, int, str]:
            return view.home_pool is Pool.PROMPT, -view.free_tokens, view.id  # prompts of all others may need that one

        ready = (view for view in self._pools if self._pools.group_of(view.id) is not None)
        able = [view for view in ready if view.could_ever_hold(entry.kv_tokens)]
        return min(able, key=suits).id if able else None
