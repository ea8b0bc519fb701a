"""The requests that a scheduler has accepted and nobody has closed.

Law: a request is queued, asked for or assigned, never two of them. The queue is in order of priority, the lower number first,
and of arrival among equals; one that comes back to it takes the place that it had. Priorities are strict, as vLLM's are: while
requests of a lower number keep coming and find no room, those behind them wait, as long as anybody may wait here.

Invariants: the three sets are disjoint and together all; of one request id there is one entry.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from spotwise.core.messages import SubmitRequest


@dataclass(slots=True)
class AcceptedRequest:
    """A request that was accepted and not closed.

    Attributes:
        order: as the gateway submitted it.
        number: of arrival.
        accepted_s: when.
        prompt_worker, token_worker: once it has left the queue.
        prompt_queued: prompt tokens counted for the prompt worker.
        placed_by: the rule that chose the workers.
        asked_s, assignment: when a worker was asked to take it, and the number of that order.
    """

    order: SubmitRequest
    number: int
    accepted_s: float
    prompt_worker: str | None = None
    token_worker: str | None = None
    prompt_queued: int = 0
    placed_by: str = ""
    asked_s: float | None = None
    assignment: int | None = None

    @property
    def choice_id(self) -> str:
        """Its request."""
        return self.order.choice_id

    @property
    def place(self) -> tuple[int, int, str]:
        """Its place in the queue: priority, number of arrival, and who it is."""
        return self.order.priority, self.number, self.order.choice_id

    @property
    def is_in_place(self) -> bool:
        """Whether one worker was asked to serve both its phases."""
        return self.token_worker is not None and self.prompt_worker == self.token_worker


class Requests:
    """Entries by request id, and where each stands."""

    def __init__(self) -> None:
        self._entries: dict[str, AcceptedRequest] = {}
        self._queue: list[tuple[int, int, str]] = []
        self._asked: dict[str, None] = {}
        self._arrivals = 0

    def __iter__(self) -> Iterator[AcceptedRequest]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, choice_id: str) -> AcceptedRequest | None:
        """Return a request that is here."""
        return self._entries.get(choice_id)

    def accept(self, order: SubmitRequest, now: float) -> None:
        """Queue a request that is not here."""
        self._arrivals += 1
        entry = self._entries[order.choice_id] = AcceptedRequest(order, self._arrivals, now)
        insort(self._queue, entry.place)

    def drop(self, entry: AcceptedRequest) -> None:
        """Forget a request, wherever it stands."""
        del self._entries[entry.choice_id]
        if entry.choice_id in self._asked:
            del self._asked[entry.choice_id]
        elif entry.token_worker is None:
            del self._queue[bisect_left(self._queue, entry.place)]

    # --- the queue ----------------------------------------------------------------------------------------------------

    @property
    def queued(self) -> list[AcceptedRequest]:
        """Those that wait, in order of priority and arrival."""
        return [self._entries[choice_id] for _, _, choice_id in self._queue]

    @property
    def num_queued(self) -> int:
        """How many wait."""
        return len(self._queue)

    def head(self) -> AcceptedRequest | None:
        """Return the one whose turn is next."""
        return self._entries[self._queue[0][2]] if self._queue else None

    def requeue(self, entry: AcceptedRequest) -> None:
        """Put one that nobody took back where it was."""
        del self._asked[entry.choice_id]
        entry.prompt_worker = entry.token_worker = entry.asked_s = entry.assignment = None
        insort(self._queue, entry.place)

    # --- orders -------------------------------------------------------------------------------------------------------

    @property
    def asked(self) -> list[AcceptedRequest]:
        """Those that a worker was asked to take and has not answered for, in order of asking."""
        return [self._entries[choice_id] for choice_id in self._asked]

    def was_away(self, seconds: float) -> None:
        """Give those that were asked so much longer to answer: no answer could be heard."""
        for entry in self.asked:
            if entry.asked_s is not None:
                entry.asked_s += seconds

    def is_asked(self, entry: AcceptedRequest) -> bool:
        """Tell whether the worker that was asked has not answered yet."""
        return entry.choice_id in self._asked

    def ask(self, entry: AcceptedRequest, assignment: int, now: float) -> None:
        """Take the head from the queue: its workers are set, and one of them is asked to take it."""
        del self._queue[0]
        self._asked[entry.choice_id] = None
        entry.asked_s, entry.assignment = now, assignment

    def assigned(self, entry: AcceptedRequest) -> None:
        """The worker has taken it."""
        del self._asked[entry.choice_id]
