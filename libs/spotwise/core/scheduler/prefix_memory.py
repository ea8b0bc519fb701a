"""Remembers which worker was sent which prompt prefix.

Law: the memory holds what was ordered, not what is cached: a worker may have evicted the blocks since.
A wrong answer costs computation and never a token, since the worker looks up its own cache.
At most `capacity` spans are kept, the least recently used go first; of each span at most `HOLDERS` workers, the latest.
Only a worker's current incarnation is named.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from spotwise.core.requests.prefixes import span_ends

#: Where spans end, in tokens; a prompt of as many would have 2^35.
_ENDS = tuple(islice(span_ends(), 200))
#: Workers remembered of one span, and named for one prompt at most.
HOLDERS = 4


class PrefixMemory:
    """Holders of spans; a `capacity` of 0 remembers none."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._holders: OrderedDict[int, tuple[tuple[str, int], ...]] = OrderedDict()

    def sent(self, spans: tuple[int, ...], worker_id: str, incarnation: int) -> None:
        """Note that a worker was sent a prompt of these spans."""
        if not self._capacity:
            return
        holder = (worker_id, incarnation)
        holders = self._holders
        for span in spans:
            known = holders.get(span)
            if known is None:
                holders[span] = (holder,)
                continue
            holders.move_to_end(span)
            if known[-1] != holder:
                others = [other for other in known if other[0] != worker_id]
                holders[span] = (*others[-(HOLDERS - 1) :], holder)
        while len(holders) > self._capacity:
            holders.popitem(last=False)

    def held(self, spans: tuple[int, ...], incarnation_of: Callable[[str], int | None]) -> dict[str, int]:
        """Return by worker how many of a prompt's first tokens it was sent before, the most first.

        `incarnation_of` gives a worker's current one, `None` where it is gone.
        """
        found: dict[str, int] = {}
        for index in range(min(len(spans), len(_ENDS)) - 1, -1, -1):
            span, end = spans[index], _ENDS[index]
            for worker_id, incarnation in self._holders.get(span, ()):
                if worker_id not in found and incarnation_of(worker_id) == incarnation:
                    found[worker_id] = end
            if len(found) >= HOLDERS:
                break
        return found
