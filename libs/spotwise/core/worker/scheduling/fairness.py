"""Fairness among tenants: virtual token counters.

Law: each tenant's counter sums the weighted tokens that it was served; rows go to the least counter among tenants with work.
Within a tenant the given order stays. A tenant that was idle is lifted to the least counter of busy tenants, or to the last
busy one's: idle time earns no credit. Tenants with work are always served; no capacity is kept back.
Source: virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), section 4.1, with its
weights; there it chooses newcomers, here the rows of each iteration.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

PROMPT_TOKEN_WEIGHT = 1.0
OUTPUT_TOKEN_WEIGHT = 2.0

_Job = TypeVar("_Job")


class VirtualTokenCounters:
    """Counters by tenant; of idle tenants only those above the floor are kept."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._last_busy_served = 0.0

    def __len__(self) -> int:
        return len(self._served)

    def served(self, tenant: str) -> float:
        """Return a tenant's counter."""
        return self._served.get(tenant, 0.0)

    def at_arrival(self, tenant: str, busy: Collection[str]) -> float:
        """Return the counter that a tenant would have with a first job beside these; its own where it is one of them."""
        return max(self.served(tenant), self._floor(busy))

    def charge(self, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
        """Count tokens that a tenant was served."""
        worth = PROMPT_TOKEN_WEIGHT * prompt_tokens + OUTPUT_TOKEN_WEIGHT * output_tokens
        self._served[tenant] = self.served(tenant) + worth

    def note_busy(self, tenants: Collection[str], before: Collection[str]) -> None:
        """Note which tenants have work now, and had it `before`; new ones are lifted."""
        floor = self._floor([tenant for tenant in tenants if tenant in before])
        for tenant in tenants:
            if tenant not in before:
                self._served[tenant] = max(self.served(tenant), floor)
        for tenant in [tenant for tenant in self._served if tenant not in tenants]:
            if tenant in before:
                self._last_busy_served = max(self._last_busy_served, self._served[tenant])
            if self._served[tenant] <= floor:
                del self._served[tenant]

    def _floor(self, busy: Collection[str]) -> float:
        return min(map(self.served, busy), default=self._last_busy_served)

    def in_turn(
        self, jobs: Sequence[_Job], tenant_of: Callable[[_Job], str], worth_of: Callable[[_Job], float]
    ) -> list[_Job]:
        """Return jobs, in order within each tenant, in order of rows; `worth_of`: weighted tokens of the next iteration."""
        queues: dict[str, deque[_Job]] = {}
        for job in jobs:
            queues.setdefault(tenant_of(job), deque()).append(job)
        if len(queues) < 2:
            return list(jobs)
        turns = [(self.served(tenant), number, tenant) for number, tenant in enumerate(queues)]
        heapq.heapify(turns)
        ordered = []
        while turns:
            served, number, tenant = turns[0]
            job = queues[tenant].popleft()
            ordered.append(job)
            if queues[tenant]:
                heapq.heapreplace(turns, (served + worth_of(job), number, tenant))
            else:
                heapq.heappop(turns)
        return ordered
