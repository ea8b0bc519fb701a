"""Workers sorted by queue length, with a search for the first that meets a need.

Law: members are in order of (queue length, id); `first` returns what a scan in that order would. `LifeRankings` keeps a ranking
for each class of life, so that the first of each is found without a scan.
The list is kept in runs of at most `RUN_LENGTH`; each run knows its members' best values, so that a search skips whole runs.
A move costs O(log n) comparisons and a copy of one run; a search reads at most n / `RUN_LENGTH` runs and scans into one.
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
    """What a worker must have to be chosen; an empty queue is within any bound (`_bound`), and `None` is no bound.

    Attributes:
        reserves: it must have free blocks for the request's KV now; else it must only be able to hold the prompt when idle.
        max_pending: bound on its pending prompt tokens where a prompt waits.
        max_remaining: bound on its remaining tokens to decode.
    """

    prompt_tokens: int
    max_new_tokens: int
    reserves: bool
    max_pending: int | None = None
    max_remaining: int | None = None
    without: frozenset[str] = frozenset()

    @property
    def kv_tokens(self) -> int:
        """Tokens that its cache must be able to hold."""
        return self.prompt_tokens + (self.max_new_tokens if self.reserves else 0)

    def is_met_by(self, view: WorkerView) -> bool:
        """Tell whether the worker meets the need."""
        if view.tokens_to_wait_behind > _bound(self.max_pending) or view.remaining_tokens > _bound(self.max_remaining):
            return False
        if self.without and view.id in self.without:
            return False
        if self.reserves:
            return view.has_capacity(self.prompt_tokens, self.max_new_tokens)
        return view.could_ever_hold(self.prompt_tokens)


def _bound(most: int | None) -> float:
    if most is None:
        return math.inf
    return most if most > 0 else 0


class _Run:
    """Some members in order, as columns of one quantity each, with the best value of each column."""

    __slots__ = ("_ahead", "_capacity", "_pending", "_remaining", "free", "keys", "most", "views")

    def __init__(self) -> None:
        self.keys: list[tuple[int, str]] = []
        self.views: list[WorkerView] = []
        self._capacity: list[int] = []
        self.free: list[int] = []
        self._pending: list[int] = []
        self._remaining: list[int] = []
        self._ahead: list[int] = []
        #: Best capacity, free tokens, pending, remaining and ahead; `None` since a change.
        self.most: tuple[int, int, int, int, int] | None = None

    def _columns(self) -> tuple[list[Any], ...]:
        return self.keys, self.views, self._capacity, self.free, self._pending, self._remaining, self._ahead

    def insert(self, at: int, key: tuple[int, str], view: WorkerView) -> None:
        self.keys.insert(at, key)
        self.views.insert(at, view)
        self._capacity.insert(at, view.kv_tokens)
        self.free.insert(at, view.free_tokens)
        self._pending.insert(at, view.tokens_to_wait_behind)
        self._remaining.insert(at, view.remaining_tokens)
        self._ahead.insert(at, view.reserves_ahead)
        self.most = None

    def change(self, at: int, view: WorkerView) -> None:
        self.views[at] = view
        self._capacity[at] = view.kv_tokens
        self.free[at] = view.free_tokens
        self._pending[at] = view.tokens_to_wait_behind
        self._remaining[at] = view.remaining_tokens
        self._ahead[at] = view.reserves_ahead
        self.most = None

    def delete(self, at: int) -> None:
        del self.keys[at], self.views[at], self._capacity[at], self.free[at]
        del self._pending[at], self._remaining[at], self._ahead[at]
        self.most = None

    def split(self) -> _Run:
        half, other = len(self.keys) // 2, _Run()
        for column, rest in zip(self._columns(), other._columns(), strict=True):
            rest.extend(column[half:])
            del column[half:]
        self.most = None
        return other

    def sum_up(self) -> tuple[int, int, int, int, int]:
        pending, remaining, ahead = min(self._pending), min(self._remaining), min(self._ahead)
        self.most = most = max(self._capacity), max(self.free), pending, remaining, ahead
        return most


class Ranking:
    """Workers in order of one queue, by its `length` in tokens."""

    def __init__(self, length: Callable[[WorkerView], int]) -> None:
        self._length = length
        self._runs: list[_Run] = []
        self._last: list[tuple[int, str]] = []  # key of each run's last member
        self._keys: dict[str, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[WorkerView]:
        return (view for run in self._runs for view in run.views)

    def put(self, view: WorkerView) -> None:
        """Insert a worker, or update its place."""
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
        """Remove a worker, if it is here."""
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
        """Return the first worker that meets the need."""
        # Unrolled, since most of a placement's time is spent here, on workers that cannot serve.
        prompt_tokens, new_tokens, kv_tokens = need.prompt_tokens, need.max_new_tokens, need.kv_tokens
        max_pending, max_remaining = _bound(need.max_pending), _bound(need.max_remaining)
        least: float = -math.inf
        for run in self._runs:
            capacity, free, pending, remaining, ahead = run.most or run.sum_up()
            if need.reserves:
                least = prompt_tokens + (new_tokens if new_tokens < ahead else ahead)
            if kv_tokens > capacity or least > free or pending > max_pending or remaining > max_remaining:
                continue
            for at, free_tokens in enumerate(run.free):
                if free_tokens >= least and need.is_met_by(run.views[at]):
                    return run.views[at]
        return None

    def most_capacity(self) -> int:
        """Tokens that the largest KV cache here holds."""
        return max(((run.most or run.sum_up())[0] for run in self._runs), default=0)


class LifeRankings:
    """Workers in order of one queue, apart by their class of life, or all in one class."""

    def __init__(self, length: Callable[[WorkerView], int], *, by_life: bool = True) -> None:
        self._length, self._by_life = length, by_life
        self._rankings: dict[int | None, Ranking] = {}
        self._classes: dict[str, int | None] = {}

    def __iter__(self) -> Iterator[WorkerView]:
        return (view for ranking in self._rankings.values() for view in ranking)

    def put(self, view: WorkerView) -> None:
        """Insert a worker, or update its place."""
        life_class = view.life_class if self._by_life else None
        if self._classes.get(view.id, life_class) != life_class:
            self.remove(view.id)
        self._classes[view.id] = life_class
        ranking = self._rankings.get(life_class)
        if ranking is None:
            ranking = self._rankings[life_class] = Ranking(self._length)
        ranking.put(view)

    def remove(self, worker_id: str) -> None:
        """Remove a worker, if it is here."""
        if worker_id in self._classes:
            life_class = self._classes.pop(worker_id)
            ranking = self._rankings[life_class]
            ranking.remove(worker_id)
            if not len(ranking):
                del self._rankings[life_class]

    def firsts(self, need: Need) -> list[WorkerView]:
        """Return the first worker of each class that meets the need."""
        return [view for ranking in self._rankings.values() if (view := ranking.first(need)) is not None]

    def have(self, need: Need) -> bool:
        """Tell whether a worker meets the need."""
        return any(ranking.first(need) is not None for ranking in self._rankings.values())

    def most_capacity(self) -> int:
        """Tokens that the largest KV cache here holds."""
        return max((ranking.most_capacity() for ranking in self._rankings.values()), default=0)
