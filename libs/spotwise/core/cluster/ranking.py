"""Workers in order of a queue's length, and the first of them that has what a request needs.

Law: ranks are kept, not computed: a report or an order moves one worker, and a choice looks at a few. The ranking is a sorted
list in short runs; of each run it knows the most that any member has of what a request may need, so that a choice passes over
whole runs in which nobody can serve it. With n workers a move costs O(log n) comparisons and a copy of at most `RUN_LENGTH`
references; a choice looks at n / `RUN_LENGTH` runs at most, and into one of them.

Invariants: members are in order of (key, id), so that ties go to the smaller id; `first` returns what a scan of all members
in that order would.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spotwise.core.cluster.views import WorkerView

#: Members of a run at most; it is split in two beyond.
RUN_LENGTH = 48


@dataclass(slots=True)
class Need:
    """What a worker must have to be chosen; several are made for every decision.

    A queue of length 0 is within any bound, hence `_bound`.

    Attributes:
        prompt_tokens, max_new_tokens: of the request.
        reserves: whether it must have room for the request's KV; else it must only be able to hold the prompt ever.
        max_pending: prompt tokens that may be pending there at most, where a prompt waits; `None` for no bound.
        max_owed: tokens that may be owed there at most, where any are; `None` for no bound.
        without: workers that are not chosen.
    """

    prompt_tokens: int
    max_new_tokens: int
    reserves: bool
    max_pending: int | None = None
    max_owed: int | None = None
    without: frozenset[str] = frozenset()

    @property
    def kv_tokens(self) -> int:
        """Tokens that its cache must be able to hold."""
        return self.prompt_tokens + (self.max_new_tokens if self.reserves else 0)

    def is_met_by(self, view: WorkerView) -> bool:
        """Tell whether the worker has all of it."""
        if view.tokens_to_wait_behind > _bound(self.max_pending) or view.remaining_tokens > _bound(self.max_owed):
            return False
        if self.without and view.id in self.without:
            return False
        if self.reserves:
            return view.has_room(self.prompt_tokens, self.max_new_tokens)
        return view.could_ever_hold(self.prompt_tokens)


def _bound(most: int | None) -> float:
    if most is None:
        return math.inf
    return most if most > 0 else 0


class _Run:
    """Some members in order, and the most that any of them has.

    Each column holds one quantity of every member, in the members' order.
    """

    __slots__ = ("_ahead", "_capacity", "_owed", "_pending", "free", "keys", "most", "views")

    def __init__(self) -> None:
        self.keys: list[tuple[int, str]] = []
        self.views: list[WorkerView] = []
        self._capacity: list[int] = []
        self.free: list[int] = []
        self._pending: list[int] = []
        self._owed: list[int] = []
        self._ahead: list[int] = []
        #: Capacity, free tokens, pending, owed, ahead of whoever is best off in each; `None` since a change.
        self.most: tuple[int, int, int, int, int] | None = None

    def _columns(self) -> tuple[list[Any], ...]:
        return self.keys, self.views, self._capacity, self.free, self._pending, self._owed, self._ahead

    def insert(self, at: int, key: tuple[int, str], view: WorkerView) -> None:
        """Take a member in at a position."""
        self.keys.insert(at, key)
        self.views.insert(at, view)
        self._capacity.insert(at, view.kv_tokens)
        self.free.insert(at, view.free_tokens)
        self._pending.insert(at, view.tokens_to_wait_behind)
        self._owed.insert(at, view.remaining_tokens)
        self._ahead.insert(at, view.reserves_ahead)
        self.most = None

    def change(self, at: int, view: WorkerView) -> None:
        """Take note of what has changed of the member at a position, which keeps its place."""
        self.views[at] = view
        self._capacity[at] = view.kv_tokens
        self.free[at] = view.free_tokens
        self._pending[at] = view.tokens_to_wait_behind
        self._owed[at] = view.remaining_tokens
        self._ahead[at] = view.reserves_ahead
        self.most = None

    def delete(self, at: int) -> None:
        """Take the member at a position out."""
        del self.keys[at], self.views[at], self._capacity[at], self.free[at]
        del self._pending[at], self._owed[at], self._ahead[at]
        self.most = None

    def split(self) -> _Run:
        """Give the second half of the members to a run of their own."""
        half, other = len(self.keys) // 2, _Run()
        for column, rest in zip(self._columns(), other._columns(), strict=True):
            rest.extend(column[half:])
            del column[half:]
        self.most = None
        return other

    def sum_up(self) -> tuple[int, int, int, int, int]:
        """Return `most`, worked out anew."""
        self.most = most = (
            max(self._capacity),
            max(self.free),
            min(self._pending),
            min(self._owed),
            min(self._ahead),
        )
        return most


class Ranking:
    """Workers in order of one queue.

    Args:
        length: of a worker's queue, tokens.
    """

    def __init__(self, length: Callable[[WorkerView], int]) -> None:
        self._length = length
        self._runs: list[_Run] = []
        self._last: list[tuple[int, str]] = []  # key of each run's last member
        self._keys: dict[str, tuple[int, str]] = {}

    def __iter__(self) -> Iterator[WorkerView]:
        return (view for run in self._runs for view in run.views)

    def put(self, view: WorkerView) -> None:
        """Take a worker in, or see to its place after a change."""
        key = (self._length(view), view.id)
        if self._keys.get(view.id) == key:
            run = self._runs[bisect_left(self._last, key)]
            run.change(bisect_left(run.keys, key), view)
            return
        self.remove(view.id)
        self._keys[view.id] = key
        if not self._runs:
            self._runs.append(_Run())
            self._last.append(key)
        at = min(bisect_left(self._last, key), len(self._runs) - 1)
        run = self._runs[at]
        run.insert(bisect_left(run.keys, key), key, view)
        if len(run.keys) > RUN_LENGTH:
            self._runs.insert(at + 1, run.split())
            self._last.insert(at + 1, self._runs[at + 1].keys[-1])
        self._last[at] = run.keys[-1]

    def remove(self, worker_id: str) -> None:
        """Take a worker out, if it is here."""
        key = self._keys.pop(worker_id, None)
        if key is None:
            return
        at = bisect_left(self._last, key)
        run = self._runs[at]
        run.delete(bisect_left(run.keys, key))
        if run.keys:
            self._last[at] = run.keys[-1]
        else:
            del self._runs[at], self._last[at]

    def first(self, need: Need) -> WorkerView | None:
        """Return the first worker that has all of it."""
        # In one piece, and with nothing asked twice: most of a decision is spent here, passing over who cannot serve.
        prompt_tokens, new_tokens, reserves, kv_tokens = (
            need.prompt_tokens,
            need.max_new_tokens,
            need.reserves,
            need.kv_tokens,
        )
        max_pending, max_owed = _bound(need.max_pending), _bound(need.max_owed)
        least: float = -math.inf
        for run in self._runs:
            capacity, free, pending, owed, ahead = run.most or run.sum_up()
            if reserves:
                least = prompt_tokens + (new_tokens if new_tokens < ahead else ahead)
            if kv_tokens > capacity or least > free or pending > max_pending or owed > max_owed:
                continue
            for at, free_tokens in enumerate(run.free):
                if free_tokens >= least and need.is_met_by(run.views[at]):
                    return run.views[at]
        return None

    def most_capacity(self) -> int:
        """Tokens that the largest KV cache here holds."""
        return max(((run.most or run.sum_up())[0] for run in self._runs), default=0)
