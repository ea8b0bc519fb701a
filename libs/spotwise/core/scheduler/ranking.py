"""Workers sorted by class of life and queue length, with a search for the first of each class that meets a need.

Law: members are in order of (class, queue length, id); `firsts` returns those that a scan in that order finds first, by class.
The list is kept in runs of at most `RUN_LENGTH`, across classes: many small ones cost a search no more than a few large ones.
Each run has bounds of its members' values, so that a search skips whole runs. After a change a bound may be better than any
member; a search that finds nothing in a run corrects its bounds.
Workers take their places when the next search needs them: reports and orders outnumber the searches of most rankings.
A move costs O(log n) comparisons and a copy of one run; a search reads all n / `RUN_LENGTH` runs, and scans one for a class.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spotwise.core.scheduler.views import WorkerView

#: Members of a run at most; it is split in two beyond.
RUN_LENGTH = 48

#: A worker's class of life, the length of its queue, and its id.
_Key = tuple[int, int, str]
#: Stands behind all classes of life (`views.py`): workers that stay, or of which nothing is known.
_UNCLASSED = 1
#: More tokens than any worker has.
_NO_BOUND = 2**62
_NO_MEMBERS = (-_NO_BOUND, -_NO_BOUND, _NO_BOUND, _NO_BOUND, _NO_BOUND)


@dataclass(slots=True)
class Need:
    """What a worker must have to be chosen; an empty queue is within any bound (`_bound`), and `None` is no bound.

    Attributes:
        reserves: it must have free blocks for the request's KV now; else it must only be able to hold the prompt when idle.
        max_pending: bound on its pending prompt tokens where a prompt waits.
        max_remaining: bound on its remaining tokens to decode.
        below_kv_tokens: its cache must hold fewer tokens than this.
        numerics_class: in which it must compute; `None` for any.
    """

    prompt_tokens: int
    max_new_tokens: int
    reserves: bool
    max_pending: int | None = None
    max_remaining: int | None = None
    without: frozenset[str] = frozenset()
    below_kv_tokens: int | None = None
    numerics_class: str | None = None

    @property
    def kv_tokens(self) -> int:
        """Tokens that its cache must be able to hold."""
        return self.prompt_tokens + (self.max_new_tokens if self.reserves else 0)

    def is_met_by(self, view: WorkerView) -> bool:
        """Tell whether the worker meets the need."""
        if self.max_pending is not None and view.tokens_to_wait_behind > _bound(self.max_pending):
            return False
        if self.max_remaining is not None and view.remaining_tokens > _bound(self.max_remaining):
            return False
        if self.without and view.id in self.without:
            return False
        if self.numerics_class is not None and view.numerics_class != self.numerics_class:
            return False
        if self.below_kv_tokens is not None and view.kv_tokens >= self.below_kv_tokens:
            return False
        if self.reserves:
            return view.has_capacity(self.prompt_tokens, self.max_new_tokens)
        return view.could_ever_hold(self.prompt_tokens)


def _bound(most: int | None) -> int:
    if most is None:
        return _NO_BOUND
    return most if most > 0 else 0


class _Run:
    """Some members in order, with columns of what most searches compare, and a bound of each quantity."""

    __slots__ = ("_pending", "best", "free", "is_exact", "keys", "views")

    def __init__(self) -> None:
        self.keys: list[_Key] = []
        self.views: list[WorkerView] = []
        self.free: list[int] = []
        self._pending: list[int] = []
        #: No member has more capacity or free tokens, nor less pending, remaining or ahead; `is_exact`: some has as much.
        self.best = _NO_MEMBERS
        self.is_exact = True

    def insert(self, at: int, key: _Key, view: WorkerView) -> None:
        pending = view.tokens_to_wait_behind
        self.keys.insert(at, key)
        self.views.insert(at, view)
        self.free.insert(at, view.free_tokens)
        self._pending.insert(at, pending)
        self._widen(view, pending)

    def change(self, at: int, view: WorkerView) -> None:
        pending = view.tokens_to_wait_behind
        self.views[at] = view
        self.free[at] = view.free_tokens
        self._pending[at] = pending
        self.is_exact = False
        self._widen(view, pending)

    def delete(self, at: int) -> None:
        del self.keys[at], self.views[at], self.free[at], self._pending[at]
        self.is_exact = False

    def split(self) -> _Run:
        half, other = len(self.keys) // 2, _Run()
        columns: list[tuple[list[Any], list[Any]]] = [
            (self.keys, other.keys),
            (self.views, other.views),
            (self.free, other.free),
            (self._pending, other._pending),
        ]
        for column, rest in columns:
            rest.extend(column[half:])
            del column[half:]
        self.correct()
        other.correct()
        return other

    def _widen(self, view: WorkerView, pending: int) -> None:
        capacity, free, least_pending, remaining, ahead = self.best
        if (
            view.free_tokens > free
            or pending < least_pending
            or view.remaining_tokens < remaining
            or view.kv_tokens > capacity
            or view.reserves_ahead < ahead
        ):
            self.best = (
                max(capacity, view.kv_tokens),
                max(free, view.free_tokens),
                min(least_pending, pending),
                min(remaining, view.remaining_tokens),
                min(ahead, view.reserves_ahead),
            )

    def correct(self) -> None:
        """Make the bounds those of the members."""
        views = self.views
        self.best = (
            max([view.kv_tokens for view in views]),
            max(self.free),
            min(self._pending),
            min([view.remaining_tokens for view in views]),
            min([view.reserves_ahead for view in views]),
        )
        self.is_exact = True


class Ranking:
    """Workers in order of one queue, by its `length` in tokens, apart by their class of life, or all in one class."""

    def __init__(self, length: Callable[[WorkerView], int], *, by_life: bool = True) -> None:
        self._length, self._by_life = length, by_life
        self._runs: list[_Run] = []
        self._last: list[_Key] = []  # key of each run's last member
        self._keys: dict[str, _Key] = {}
        self._moved: dict[str, WorkerView] = {}  #: whose places may be old

    def __iter__(self) -> Iterator[WorkerView]:
        self._settle()
        return (view for run in self._runs for view in run.views)

    def put(self, view: WorkerView) -> None:
        """Insert a worker, or update its place."""
        self._moved[view.id] = view

    def _settle(self) -> None:
        if self._moved:
            moved, self._moved = self._moved, {}
            for view in moved.values():
                self._put(view)

    def _put(self, view: WorkerView) -> None:
        life = view.life if self._by_life else None
        key = (_UNCLASSED if life is None else life.life_class, self._length(view), view.id)
        if self._keys.get(view.id) == key:
            run = self._runs[bisect_left(self._last, key)]
            run.change(bisect_left(run.keys, key), view)
            return
        self._take_out(view.id)
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
        self._moved.pop(worker_id, None)
        self._take_out(worker_id)

    def _take_out(self, worker_id: str) -> None:
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

    def firsts(self, need: Need, number: int = 1) -> list[WorkerView]:
        """Return the first workers of each class that meet the need, so many at most."""
        return self._search(need, number)

    def have(self, need: Need) -> bool:
        """Tell whether a worker meets the need."""
        return bool(self._search(need, None))

    def _search(self, need: Need, number: int | None) -> list[WorkerView]:
        """Return the first `number` of each class, or of all the first."""
        self._settle()
        # Unrolled, since much of a placement's time is spent here, on workers that cannot serve.
        prompt_tokens, new_tokens, kv_tokens = need.prompt_tokens, need.max_new_tokens, need.kv_tokens
        max_pending, max_remaining = _bound(need.max_pending), _bound(need.max_remaining)
        reserves = need.reserves
        is_bounded = (
            need.max_pending is not None
            or need.max_remaining is not None
            or bool(need.without)
            or need.below_kv_tokens is not None
            or need.numerics_class is not None
        )
        least = -_NO_BOUND
        found: list[WorkerView] = []
        found_class: int | None = None  #: of which there are enough
        last_class, of_class = None, 0
        for run in self._runs:
            keys = run.keys
            if keys[-1][0] == found_class:
                continue
            capacity, free, pending, remaining, ahead = run.best
            if reserves:
                least = prompt_tokens + (new_tokens if new_tokens < ahead else ahead)
            if kv_tokens > capacity or least > free or pending > max_pending or remaining > max_remaining:
                continue
            at, end, free_tokens, found_before = 0, len(keys), run.free, len(found)
            if found_class is not None and keys[0][0] == found_class:
                at = bisect_left(keys, (found_class + 1,))
            while at < end:
                if free_tokens[at] < least:
                    at += 1
                    continue
                view = run.views[at]
                # `Need.is_met_by`, which is called only where more than memory is bounded
                ahead = view.reserves_ahead
                if (
                    kv_tokens > view.kv_tokens
                    or (reserves and prompt_tokens + (new_tokens if new_tokens < ahead else ahead) > view.free_tokens)
                    or (is_bounded and not need.is_met_by(view))
                ):
                    at += 1
                    continue
                found.append(view)
                if number is None:
                    return found
                of_class = of_class + 1 if keys[at][0] == last_class else 1
                last_class = keys[at][0]
                if of_class < number:
                    at += 1
                    continue
                found_class = last_class
                if keys[-1][0] == found_class:
                    break
                at = bisect_left(keys, (found_class + 1,), at)
            if len(found) == found_before and not run.is_exact:
                run.correct()
        return found

    def most_capacity(self, numerics_class: str | None = None) -> int:
        """Tokens that the largest KV cache here holds, of a class or of all."""
        any_class = numerics_class is None
        return max((view.kv_tokens for view in self if any_class or view.numerics_class == numerics_class), default=0)
