"""How much of the store this gateway's kept requests fill, and whose they are."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from spotwise.core.access.quotas import UNBOUNDED_OUTPUT_TOKENS
from spotwise.core.gateway.kept_request import KeptRequest
from spotwise.gateway.errors import ApiError
from spotwise.gateway.plan import GenerationPlan

#: Of an answer, for each token and for each of its alternatives.
_TOKEN_BYTES = 8
#: One caller's share of all.
_CALLERS_SHARE = 0.5
_RETRY_AFTER = {"Retry-After": "5"}


class KeptRoom:
    """Bounds what is kept, by form and expected answer; a caller has half of it at most.

    Args:
        most_bytes: of all callers.
        now_s: a clock that only goes on.
    """

    def __init__(self, most_bytes: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._now_s = now_s
        self._of_requests: dict[str, _Room] = {}
        self._of_callers: Counter[str] = Counter()
        self._ends: list[tuple[float, str, int]] = []
        self._takings = itertools.count()

    @property
    def used_bytes(self) -> int:
        """What all requests fill that are kept now."""
        self._forget()
        return self._of_callers.total()

    def take(self, form: KeptRequest, plan: GenerationPlan) -> None:
        """Make room for a request until it is given back.

        Raises:
            ApiError: 429, there is none.
        """
        size, used_bytes = _size(form, plan), self.used_bytes
        of_caller = self._of_callers[form.scope] + size
        if used_bytes + size > self._most_bytes or of_caller > _CALLERS_SHARE * self._most_bytes:
            message = (
                "The requests and answers that are kept for you leave no room for another; let some end, or wait until "
                "their answers are forgotten."
            )
            raise ApiError(429, message, code="too_much_kept", headers=_RETRY_AFTER)
        self._add(form, size)

    def take_over(self, form: KeptRequest, plan: GenerationPlan) -> None:
        """Count a request that was admitted before, here or by another gateway, until it is given back; none is refused."""
        self._add(form, _size(form, plan))

    def give_back(self, request_id: str, after_s: float = 0.0) -> None:
        """Free a request's room once so many seconds have passed, unless it is taken again meanwhile."""
        if (room := self._of_requests.get(request_id)) is not None:
            heapq.heappush(self._ends, (self._now_s() + after_s, request_id, room.taking))

    def _add(self, form: KeptRequest, size: int) -> None:
        if (before := self._of_requests.get(form.request_id)) is not None:
            self._of_callers[before.scope] -= before.size
        self._of_requests[form.request_id] = _Room(form.scope, size, next(self._takings))
        self._of_callers[form.scope] += size

    def _forget(self) -> None:
        while self._ends and self._ends[0][0] <= self._now_s():
            _, request_id, taking = heapq.heappop(self._ends)
            room = self._of_requests.get(request_id)
            if room is None or room.taking != taking:
                continue
            del self._of_requests[request_id]
            self._of_callers[room.scope] -= room.size
            if not self._of_callers[room.scope]:
                del self._of_callers[room.scope]


class _Room(NamedTuple):
    scope: str
    size: int
    taking: int


def _size(form: KeptRequest, plan: GenerationPlan) -> int:
    answer = 0
    for each in plan.sequences:
        most = each.spec.stop.max_new_tokens
        tokens = min(most, UNBOUNDED_OUTPUT_TOKENS) if each.spec.unbounded else most
        answer += tokens * _TOKEN_BYTES * (1 + 2 * (each.spec.sampling.logprobs or 0))
    return len(form.body) + answer
