"""Whose turn it is among tenants: whoever was served least.

Law: every tenant has a counter of the tokens that it was served, weighted by what they cost; rows of an iteration go, one by
one, to the tenant whose counter is the least, and within it to whoever comes first there. A tenant that was idle does not save
its turns up: when it comes back, its counter is lifted to the least of those that have work, or, where nobody has, to that of
the last who had.

Source: virtual token counter, Sheng et al., OSDI 2024 ("Fairness in Serving Large Language Models"), section 4.1, with its
weights of 1 for a prompt token and 2 for an output token. There it chooses newcomers; here rows, since a row can be taken
away at every iteration.

Invariants: a counter never falls; as long as two tenants both have work that can run, their counters differ by no more than
what the rows of one iteration are worth and what they differed by before; who has work is served (no capacity is kept back).
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
    """Counters by tenant; of tenants that are idle only those that still have more than others are kept."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._last_busy_served = 0.0

    def __len__(self) -> int:
        return len(self._served)

    def served(self, tenant: str) -> float:
        """Return a tenant's counter."""
        return self._served.get(tenant, 0.0)

    def charge(self, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
        """Count what a tenant was served."""
        worth = PROMPT_TOKEN_WEIGHT * prompt_tokens + OUTPUT_TOKEN_WEIGHT * output_tokens
        self._served[tenant] = self.served(tenant) + worth

    def note_busy(self, tenants: Collection[str], before: Collection[str]) -> None:
        """Note which tenants have work, and which had; whoever is new among them is lifted.

        Args:
            tenants: in any order.
            before: of the last time.
        """
        stayed = [self.served(tenant) for tenant in tenants if tenant in before]
        floor = min(stayed) if stayed else self._last_busy_served
        for tenant in tenants:
            if tenant not in before:
                self._served[tenant] = max(self.served(tenant), floor)
        for tenant in [tenant for tenant in self._served if tenant not in tenants]:
            if tenant in before:
                self._last_busy_served = max(self._last_busy_served, self._served[tenant])
            if self._served[tenant] <= floor:
                del self._served[tenant]

    def in_turn(
        self, jobs: Sequence[_Job], tenant_of: Callable[[_Job], str], worth_of: Callable[[_Job], float]
    ) -> list[_Job]:
        """Return jobs in the order in which their tenants have rows.

        Args:
            jobs: of each tenant in their order.
            tenant_of: whose a job is.
            worth_of: what its next iteration will be charged.
        """
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
