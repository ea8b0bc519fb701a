"""All workers, by the pool that they belong to and the one that they are in.

Law: a worker stands in one group: its home and whether it is there or in the mixed pool at this moment, both derived from its
view. A worker that takes no requests stands in none. Each group is ranked by the queues that are looked at in it: workers that
compute prompts for others by their prompts, those that take such KV in by their tokens, all by both, for requests that stay
on one worker.

Invariants: after every change each ready worker is in the rankings of its group and in no other, at the place that its view
gives it; nothing else is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from spotwise.core.cluster.policy import DecodeQueue
from spotwise.core.cluster.ranking import Need, Ranking
from spotwise.core.cluster.views import Assignment, WorkerView
from spotwise.core.members import Member, Pool

#: A worker's home, and the pool that it is in.
Group = tuple[Pool, Pool]
PROMPT_AT_HOME: Group = (Pool.PROMPT, Pool.PROMPT)
PROMPT_AWAY: Group = (Pool.PROMPT, Pool.MIXED)
TOKEN_AT_HOME: Group = (Pool.TOKEN, Pool.TOKEN)
TOKEN_AWAY: Group = (Pool.TOKEN, Pool.MIXED)
MIXED: Group = (Pool.MIXED, Pool.MIXED)
ALL_GROUPS = (PROMPT_AT_HOME, PROMPT_AWAY, TOKEN_AT_HOME, TOKEN_AWAY, MIXED)


#: Where a worker's capacity stands in what it is ranked by.
_CAPACITY = 0


class Queue(StrEnum):
    """What a ranking counts."""

    PROMPTS = "prompts"
    TOKENS = "tokens"
    BOTH = "both"


_DECODES: dict[DecodeQueue, Callable[[WorkerView], int]] = {
    DecodeQueue.OWED_TOKENS: lambda view: view.owed_tokens,
    DecodeQueue.SEQUENCES: lambda view: view.decoding,
}


def _queues_of(group: Group) -> tuple[Queue, Queue]:
    """What a group is ranked by: its home's queue, and both."""
    return (Queue.PROMPTS if group[0] is Pool.PROMPT else Queue.TOKENS), Queue.BOTH


class Pools:
    """The scheduler's view of all workers.

    Args:
        decode_queue: how decodes count in the queue of both.

    Attributes:
        decode_length: a worker's decodes, counted so.
    """

    def __init__(self, decode_queue: DecodeQueue = DecodeQueue.OWED_TOKENS) -> None:
        self.decode_length = _DECODES[decode_queue]
        self._views: dict[str, WorkerView] = {}
        self._places: dict[str, tuple[Group, tuple[float, ...]]] = {}
        self._homes: Counter[Pool] = Counter()
        self._most_kv_tokens: int | None = None
        lengths: dict[Queue, Callable[[WorkerView], int]] = {
            Queue.PROMPTS: lambda view: view.pending_prompt_tokens,
            Queue.TOKENS: lambda view: view.owed_tokens,
            Queue.BOTH: lambda view: view.pending_prompt_tokens + self.decode_length(view),
        }
        self._rankings = {
            (group, queue): Ranking(lengths[queue]) for group in ALL_GROUPS for queue in _queues_of(group)
        }

    # --- who is there -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[WorkerView]:
        return iter(self._views.values())

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._views

    def __getitem__(self, worker_id: str) -> WorkerView:
        return self._views[worker_id]

    @property
    def ready(self) -> int:
        """Workers that take requests."""
        return self._homes.total()

    def ready_at(self, *homes: Pool) -> int:
        """Workers of these homes that take requests, wherever they are at this moment."""
        return sum(self._homes[home] for home in homes)

    def group_of(self, worker_id: str) -> Group | None:
        """Return where a worker stands, or `None` where it takes no requests."""
        place = self._places.get(worker_id)
        return None if place is None else place[0]

    def members(self, *groups: Group) -> list[WorkerView]:
        """Return the workers of some groups, in order of id."""
        views = (view for group in groups for view in self._rankings[group, Queue.BOTH])
        return sorted(views, key=lambda view: view.id)

    # --- what happens to them -----------------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        """Take in a worker that was heard for the first time."""
        self._views[member.id] = WorkerView(member)
        self._place(self._views[member.id])

    def lose(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self._displace(worker_id)
        self._most_kv_tokens = None
        del self._views[worker_id]

    def heard(self, member: Member, scheduler_id: str, now: float) -> None:
        """Take in a worker's report; it is known."""
        view = self._views[member.id]
        view.heard(member, scheduler_id, now)
        self._place(view)

    def assign(self, worker_id: str, assignment: Assignment) -> None:
        """Count an order that is sent to a worker now."""
        view = self._views[worker_id]
        view.assign(assignment)
        self._place(view)

    def intend(self, worker_id: str, request_id: str, prompt_tokens: int) -> None:
        """Count a prompt that a worker will be given once its reservation stands."""
        view = self._views[worker_id]
        view.intend(request_id, prompt_tokens)
        self._place(view)

    def order_intended(self, worker_id: str, request_id: str, assignment: Assignment) -> None:
        """Count the order by which a worker is given the prompt that it was to be given."""
        view = self._views[worker_id]
        view.intend_no_more(request_id)
        view.assign(assignment)
        self._place(view)

    def intend_no_more(self, worker_id: str, request_id: str) -> None:
        """A prompt will not be given to the worker, which may be gone."""
        view = self._views.get(worker_id)
        if view is not None:
            view.intend_no_more(request_id)
            self._place(view)

    def _place(self, view: WorkerView) -> None:
        """See to a worker's place in the rankings after a change."""
        if not view.is_ready:
            self._displace(view.id)
            self._most_kv_tokens = None
            return
        group = (view.home, view.pool)
        ranked_by = (
            view.kv_tokens,
            view.pending_prompt_tokens,
            view.prompts_wait,
            view.owed_tokens,
            self.decode_length(view),
            view.free_tokens,
            view.reserves_ahead,
        )
        known = self._places.get(view.id)
        if known == (group, ranked_by):
            return
        if known is None or known[1][_CAPACITY] != ranked_by[_CAPACITY]:
            self._most_kv_tokens = None
        if known is None or known[0] != group:
            self._displace(view.id)
            self._homes[view.home] += 1
        self._places[view.id] = (group, ranked_by)
        for queue in _queues_of(group):
            self._rankings[group, queue].put(view)

    def _displace(self, worker_id: str) -> None:
        place = self._places.pop(worker_id, None)
        if place is not None:
            group, _ = place
            self._homes[group[0]] -= 1
            for queue in _queues_of(group):
                self._rankings[group, queue].remove(worker_id)

    # --- questions ----------------------------------------------------------------------------------------------------

    def first_of(self, queue: Queue, groups: Iterable[Group], need: Need) -> list[WorkerView]:
        """Return of each group the worker with the shortest queue that has what is needed, where there is one."""
        firsts = (self._rankings[group, queue].first(need) for group in groups)
        return [view for view in firsts if view is not None]

    def have_room(self, need: Need) -> bool:
        """Tell whether any worker has what is needed now."""
        return any(self._rankings[group, Queue.BOTH].first(need) is not None for group in ALL_GROUPS)

    def most_kv_tokens(self) -> int:
        """Tokens that the largest KV cache of a ready worker holds; 0 where there is none."""
        if self._most_kv_tokens is None:
            self._most_kv_tokens = max(self._rankings[group, Queue.BOTH].most_capacity() for group in ALL_GROUPS)
        return self._most_kv_tokens
