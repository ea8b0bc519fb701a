"""The requests that a scheduler has accepted and that are not closed.

Law: an open request is queued, unanswered (sent to a worker that has not replied) or assigned: exactly one of the three.
The queue is in order of priority (lower number first), then of arrival; a request that returns to it takes its former place.
Priorities are strict, as vLLM's: requests of a lower number that keep arriving hold back those behind them.
Which request leaves it next is decided by `passing.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from spotwise.core.messages.mesh import SubmitRequest
from spotwise.core.scheduler.placements import PlacedBy


@dataclass(slots=True)
class AcceptedRequest:
    """A request that was accepted and not closed; `number` is that of its arrival.

    Attributes:
        prompt_worker, token_worker: set once it has left the queue; `placed_by` is the rule that chose them.
        numerics_class: class of its workers.
        by_life: the token worker was chosen for its expected life, in spite of a longer queue.
        prompt_queued: prompt tokens counted for the prompt worker.
        sent_s, assignment: when a worker was sent the request, and the number of that order.
        reserved_worker: the worker that drains for it, once no worker could take it; `passes`: requests placed there since.
        classless_since_s: since when no ready worker of its class could hold it, where it waits for that; `None`: one could.
        holder, hop: the worker that its sequence has moved to, and the number of that move.
    """

    order: SubmitRequest
    number: int
    accepted_s: float
    prompt_worker: str | None = None
    token_worker: str | None = None
    prompt_queued: int = 0
    placed_by: PlacedBy | None = None
    numerics_class: str = ""
    by_life: bool = False
    sent_s: float | None = None
    assignment: int | None = None
    reserved_worker: str | None = None
    passes: int = 0
    classless_since_s: float | None = None
    holder: str | None = None
    hop: int = 0

    @property
    def choice_id(self) -> str:
        """Its request."""
        return self.order.choice_id

    @property
    def place(self) -> tuple[int, int, str]:
        """Its key in the queue: priority, number of arrival, id."""
        return self.order.priority, self.number, self.order.choice_id

    @property
    def kv_tokens(self) -> int:
        """Tokens that a worker's KV cache must be able to hold for it."""
        return self.order.prompt_tokens + self.order.max_new_tokens

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that may hold something of it."""
        named = dict.fromkeys((self.prompt_worker, self.token_worker, self.holder))
        return tuple(worker_id for worker_id in named if worker_id is not None)

    def moved_to(self, worker_id: str, hop: int) -> None:
        """Note a move, unless a later one is known."""
        if hop > self.hop:
            self.holder, self.hop = worker_id, hop

    @property
    def is_in_place(self) -> bool:
        """Whether one worker serves both phases."""
        return self.token_worker is not None and self.prompt_worker == self.token_worker


class Requests:
    """Open requests by id, with the queue and the set that awaits a worker's reply."""

    def __init__(self) -> None:
        self._entries: dict[str, AcceptedRequest] = {}
        self._queue: list[tuple[int, int, str]] = []
        self._unanswered: dict[str, None] = {}
        self._timed: dict[str, AcceptedRequest] = {}  #: those with a deadline
        self._of_gateways: Counter[tuple[str, int]] = Counter()
        self._arrivals = 0

    def __iter__(self) -> Iterator[AcceptedRequest]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def timed(self) -> Collection[AcceptedRequest]:
        """The requests whose clients have a deadline, in order of arrival."""
        return self._timed.values()

    @property
    def gateways(self) -> Collection[tuple[str, int]]:
        """The gateways that have open requests, with their incarnations, in order of their first."""
        return self._of_gateways.keys()

    def get(self, choice_id: str) -> AcceptedRequest | None:
        """Return an open request."""
        return self._entries.get(choice_id)

    def accept(self, order: SubmitRequest, now: float) -> None:
        """Queue a new request."""
        self._arrivals += 1
        entry = self._entries[order.choice_id] = AcceptedRequest(order, self._arrivals, now)
        self._of_gateways[_gateway_of(order)] += 1
        if order.deadline_unix_s is not None:
            self._timed[order.choice_id] = entry
        insort(self._queue, entry.place)

    def drop(self, entry: AcceptedRequest) -> None:
        """Forget a request in any state."""
        del self._entries[entry.choice_id]
        self._timed.pop(entry.choice_id, None)
        gateway = _gateway_of(entry.order)
        self._of_gateways[gateway] -= 1
        if not self._of_gateways[gateway]:
            del self._of_gateways[gateway]
        if entry.choice_id in self._unanswered:
            del self._unanswered[entry.choice_id]
        elif entry.token_worker is None:
            del self._queue[bisect_left(self._queue, entry.place)]

    @property
    def queued(self) -> list[AcceptedRequest]:
        """The queued requests, in order of priority and arrival."""
        return [self._entries[choice_id] for _, _, choice_id in self._queue]

    @property
    def num_queued(self) -> int:
        """Number of queued requests."""
        return len(self._queue)

    def head(self) -> AcceptedRequest | None:
        """Return the head of the queue."""
        return self._entries[self._queue[0][2]] if self._queue else None

    def waiting_at(self, index: int) -> AcceptedRequest | None:
        """Return the queued request at that place from the head on, from 0."""
        return self._entries[self._queue[index][2]] if index < len(self._queue) else None

    def requeue(self, entry: AcceptedRequest) -> None:
        """Put a request that no worker accepted back to its former place."""
        del self._unanswered[entry.choice_id]
        entry.prompt_worker = entry.token_worker = entry.sent_s = entry.assignment = None
        insort(self._queue, entry.place)

    @property
    def unanswered(self) -> list[AcceptedRequest]:
        """Requests that await a worker's reply, in the order in which they were sent."""
        return [self._entries[choice_id] for choice_id in self._unanswered]

    def was_away(self, seconds: float) -> None:
        """Extend the deadline of every reply, and every wait for a class, by a time in which the scheduler was cut off."""
        for entry in self.unanswered:
            if entry.sent_s is not None:
                entry.sent_s += seconds
        for entry in self.queued:
            if entry.classless_since_s is not None:
                entry.classless_since_s += seconds

    def is_unanswered(self, entry: AcceptedRequest) -> bool:
        """Whether the request awaits a worker's reply."""
        return entry.choice_id in self._unanswered

    def is_assigned(self, entry: AcceptedRequest) -> bool:
        """Whether a worker has accepted the request."""
        return entry.token_worker is not None and entry.choice_id not in self._unanswered

    def send(self, entry: AcceptedRequest, assignment: int, now: float) -> None:
        """Take a request whose workers are set from the queue: it was sent to one of them."""
        del self._queue[bisect_left(self._queue, entry.place)]
        self._unanswered[entry.choice_id] = None
        entry.sent_s, entry.assignment = now, assignment

    def assigned(self, entry: AcceptedRequest) -> None:
        """The worker has accepted the request."""
        del self._unanswered[entry.choice_id]


def _gateway_of(order: SubmitRequest) -> tuple[str, int]:
    return order.stream.gateway_id, order.stream.incarnation
