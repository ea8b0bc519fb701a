"""All workers, grouped by their home pool and by the work that they have, and which model's weights the mesh serves.

Law: one mesh serves one model: that of the worker longest up when the first worker is ready.
The model stays for the scheduler's life, also while no worker of it is present; workers with other weights get no requests.
A restarted scheduler decides again by the same rule, from registrations; it is final once such a worker sends a heartbeat.
The decision depends on the workers present, not on the order of their messages.

Law: a ready worker is in one group: its home pool, and whether it is there or in the mixed pool now, derived from its view.
A worker that takes no requests, or has other weights than the mesh serves, is in none.
Each group is ranked by its own queue (prompts in the prompt pool, tokens elsewhere) and by both queues, for service in place;
where answers are decoded, apart by class of life (`views.py`): prompts end soon, so that lives do not matter to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from spotwise.core.messages.members import Member, MemberState, Pool
from spotwise.core.messages.mesh import SubmitRequest
from spotwise.core.scheduler.policy import DecodeQueue
from spotwise.core.scheduler.ranking import Need, Ranking
from spotwise.core.scheduler.views import Assignment, WorkerLife, WorkerView

_LOADED = (MemberState.READY, MemberState.DRAINING)


class ServedModel:
    """The model of one mesh; `digest` is `None` while unknown, and for workers without weights."""

    def __init__(self) -> None:
        self.is_known = False
        self.is_final = False
        self.digest: str | None = None

    def decide(self, workers: Iterable[Member]) -> None:
        """Settle on a model, unless that is final or no worker has loaded one.

        Of the `workers` present, one known from its registration only has no load.
        """
        loaded = [] if self.is_final else [worker for worker in workers if worker.state in _LOADED]
        if loaded:
            longest_up = min(loaded, key=lambda worker: (worker.incarnation, worker.id))
            self.is_known, self.digest = True, longest_up.model_digest
            reporting = (worker for worker in loaded if worker.load is not None)
            self.is_final = any(worker.model_digest == self.digest for worker in reporting)

    def admits(self, worker: Member) -> bool:
        """Tell whether a worker has the served weights, as far as those are known."""
        return not self.is_known or worker.model_digest == self.digest


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Workers of one home pool that are in one pool; there are five groups."""

    home_pool: Pool
    pool: Pool


PROMPT_ON_POOL = Group(Pool.PROMPT, Pool.PROMPT)
PROMPT_OFF_POOL = Group(Pool.PROMPT, Pool.MIXED)
TOKEN_ON_POOL = Group(Pool.TOKEN, Pool.TOKEN)
TOKEN_OFF_POOL = Group(Pool.TOKEN, Pool.MIXED)
MIXED = Group(Pool.MIXED, Pool.MIXED)
ALL_GROUPS = (PROMPT_ON_POOL, PROMPT_OFF_POOL, TOKEN_ON_POOL, TOKEN_OFF_POOL, MIXED)


class Queue(StrEnum):
    """What a ranking counts."""

    HOME_POOL = "home"  #: prompts in the prompt pool, tokens in the others
    BOTH = "both"


def _group_of(view: WorkerView) -> Group:
    if view.member.pool is Pool.TOKEN:
        return TOKEN_OFF_POOL if view.is_off_pool else TOKEN_ON_POOL
    if view.member.pool is Pool.PROMPT:
        return PROMPT_OFF_POOL if view.is_off_pool else PROMPT_ON_POOL
    return MIXED


_pending, _remaining, _decoding = (
    attrgetter(name) for name in ("pending_prompt_tokens", "remaining_tokens", "decoding")
)


class Pools:
    """The scheduler's view of all workers; `decode_length` counts a worker's decodes for the ranking by both queues."""

    def __init__(self, decode_queue: DecodeQueue = DecodeQueue.REMAINING_TOKENS) -> None:
        by_tokens = decode_queue is DecodeQueue.REMAINING_TOKENS
        length: Callable[[WorkerView], int] = _remaining if by_tokens else _decoding
        self.decode_length = length
        self.served_model = ServedModel()
        self._views: dict[str, WorkerView] = {}
        self._places: dict[str, tuple[Group, int, str]] = {}  #: with the tokens of its cache, and its numerics class
        self._home_pools: Counter[tuple[Pool, str]] = Counter()
        self._classes: tuple[str, ...] = ()
        self._most_kv_tokens: dict[str | None, int] = {}
        self._by_home = {
            group: Ranking(_pending, by_life=False) if group.home_pool is Pool.PROMPT else Ranking(_remaining)
            for group in ALL_GROUPS
        }
        self._by_both = {group: Ranking(lambda view: view.pending_prompt_tokens + length(view)) for group in ALL_GROUPS}

    def __iter__(self) -> Iterator[WorkerView]:
        return iter(self._views.values())

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._views

    def __getitem__(self, worker_id: str) -> WorkerView:
        return self._views[worker_id]

    @property
    def ready(self) -> int:
        """Number of workers that take requests."""
        return len(self._places)

    @property
    def classes(self) -> tuple[str, ...]:
        """The numerics classes of the workers that take requests, in order of name."""
        return self._classes

    def ready_at(self, *home_pools: Pool, numerics_class: str | None = None) -> int:
        """Number of workers of these home pools that take requests, on or off their pool; of a class, or of all."""
        classes = self._classes if numerics_class is None else (numerics_class,)
        return sum(self._home_pools[pool, each] for pool in home_pools for each in classes)

    def group_of(self, worker_id: str) -> Group | None:
        """Return a worker's group, or `None` where it takes no requests."""
        place = self._places.get(worker_id)
        return None if place is None else place[0]

    def with_other_weights(self) -> list[Member]:
        """Return the workers that are ready but excluded for their weights, in order of id."""
        refused = (v.member for v in self._views.values() if v.is_ready and not self.served_model.admits(v.member))
        return sorted(refused, key=lambda member: member.id)

    def members(self, *groups: Group) -> list[WorkerView]:
        """Return the workers of some groups, in order of id."""
        ids = [worker_id for worker_id, (group, *_) in self._places.items() if group in groups]
        return [self._views[worker_id] for worker_id in sorted(ids)]

    def join(self, member: Member) -> None:
        """Add a new worker."""
        self._views[member.id] = WorkerView(member)
        self._place(self._views[member.id])

    def lose(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self._displace(worker_id)
        self._most_kv_tokens.clear()
        del self._views[worker_id]

    def reported(self, member: Member, scheduler_id: str, now: float) -> None:
        """Replace a known worker's report."""
        view = self._views[member.id]
        view.reported(member, scheduler_id, now)
        self._place(view)

    def set_life(self, worker_id: str, life: WorkerLife | None) -> None:
        """Replace what is known of a worker's life."""
        view = self._views[worker_id]
        known_class, view.life = view.life_class, life
        if view.life_class != known_class and worker_id in self._places:
            self._place(view)

    def assign(self, worker_id: str, assignment: Assignment) -> None:
        """Count an order that is sent to a worker now."""
        view = self._views[worker_id]
        view.assign(assignment)
        self._place(view)

    def intend(self, worker_id: str, choice_id: str, prompt_tokens: int) -> None:
        """Count a prompt that a worker will be sent once its reservation is made."""
        view = self._views[worker_id]
        view.intend(choice_id, prompt_tokens)
        self._place(view)

    def order_intended(self, worker_id: str, choice_id: str, assignment: Assignment) -> None:
        """Count the order that sends a worker its intended prompt."""
        view = self._views[worker_id]
        view.drop_intended(choice_id)
        view.assign(assignment)
        self._place(view)

    def drop_intended(self, worker_id: str, choice_id: str) -> None:
        """Stop counting a prompt that will not be sent to the worker, which may be gone."""
        view = self._views.get(worker_id)
        if view is not None and view.drop_intended(choice_id):
            self._place(view)

    def _place(self, view: WorkerView) -> None:
        is_ready = view.is_ready
        if is_ready and not self.served_model.is_final:
            self.served_model.decide(each.member for each in self._views.values())
        if not is_ready or not self.served_model.admits(view.member):
            self._displace(view.id)
            self._most_kv_tokens.clear()
            return
        group, numerics_class = _group_of(view), view.numerics_class
        known_group, known_capacity, known_class = self._places.get(view.id, (None, None, None))
        if known_capacity != view.kv_tokens or known_class != numerics_class:
            self._most_kv_tokens.clear()
        if known_group is not group or known_class != numerics_class:
            self._displace(view.id)
            self._count(group.home_pool, numerics_class, 1)
        self._places[view.id] = group, view.kv_tokens, numerics_class
        self._by_home[group].put(view)
        self._by_both[group].put(view)

    def _displace(self, worker_id: str) -> None:
        place = self._places.pop(worker_id, None)
        if place is not None:
            group, _, numerics_class = place
            self._count(group.home_pool, numerics_class, -1)
            self._by_home[group].remove(worker_id)
            self._by_both[group].remove(worker_id)

    def _count(self, home_pool: Pool, numerics_class: str, change: int) -> None:
        self._home_pools[home_pool, numerics_class] += change
        if self._home_pools[home_pool, numerics_class] in (0, change):  # the first, or none any more
            self._classes = tuple(sorted({each for (_, each), count in self._home_pools.items() if count}))

    def first_of(self, queue: Queue, groups: Iterable[Group], need: Need, number: int = 1) -> list[WorkerView]:
        """Return so many workers with the shortest queues that meet the need, of each group and class of life."""
        rankings = self._by_both if queue is Queue.BOTH else self._by_home
        return [view for group in groups for view in rankings[group].firsts(need, number)]

    def have_capacity(self, need: Need) -> bool:
        """Tell whether any worker meets the need now."""
        # The last first: where the others have some, a placement has found it before it comes to ask.
        return any(self._by_both[group].have(need) for group in reversed(ALL_GROUPS))

    def could_ever_hold(self, order: SubmitRequest, numerics_class: str | None = None) -> bool:
        """Tell whether a ready worker's cache, of a class or of any, could hold all of a request when idle."""
        return order.prompt_tokens + order.max_new_tokens <= self.most_kv_tokens(numerics_class)

    def most_kv_tokens(self, numerics_class: str | None = None) -> int:
        """Tokens that the largest KV cache of a ready worker holds, of a class or of any; 0 without workers."""
        known = self._most_kv_tokens.get(numerics_class)
        if known is None:
            known = max(ranking.most_capacity(numerics_class) for ranking in self._by_home.values())
            self._most_kv_tokens[numerics_class] = known
        return known
