"""In which numerics class each delivered token was computed, known from the workers themselves, beside what the mesh says."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from spotwise.core.gateway import commands as g
from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import with_class
from tests.property.fake_worker import FakeWorker


class TokenClasses:
    """The classes of one mesh's tokens.

    Attributes:
        of: classes of the tokens that clients have, by request and index; of a token that two workers may have computed, all.
        counted: crossings that the gateway counts, by request; `explained`: those in the ledger.
    """

    def __init__(self) -> None:
        self.of: defaultdict[str, list[set[str]]] = defaultdict(list)
        self.counted: Counter[str] = Counter()
        self.explained: Counter[str] = Counter()
        self._by_delta: dict[int, tuple[m.TokenDelta, str]] = {}
        self._by_place: defaultdict[tuple[int, int], set[str]] = defaultdict(set)

    def sent(self, worker: FakeWorker, message: Any) -> None:
        """Note who has computed the tokens of a batch."""
        if isinstance(message, m.TokenBatch) and worker.member.numerics is not None:
            name = worker.member.numerics.name
            assert message.numerics_class == name, "a worker says that it computes in another class"
            for delta in message.deltas:
                self._by_delta[id(delta)] = delta, name  # the delta is kept, so that no other one has its id
                self._by_place[delta.attempt_id, delta.token_index].add(name)

    def delivered(self, choice_id: str, delta: m.TokenDelta) -> None:
        """Note the class of the next token of a client; one that a move brought in a lost message's place is another object."""
        known = self._by_delta.get(id(delta))
        classes = {known[1]} if known is not None else self._by_place[delta.attempt_id, delta.token_index]
        self.of[choice_id].append(classes)

    def saved(self, choice_id: str, tokens: int) -> tuple[str, ...]:
        """Return what another gateway finds saved of the first tokens, and forget the others."""
        del self.of[choice_id][tokens:]
        classes: tuple[str, ...] = ()
        for each in self.of[choice_id]:
            classes = with_class(classes, min(each, default=""))
        return classes

    def recorded(self, command: g.SubmitAttempt) -> None:
        """Check what a record says of its tokens: their classes and no others, and the class of the last one last."""
        truth, said = self.of[command.choice_id], command.numerics_classes
        assert len(truth) == len(command.output_token_ids)
        assert all(each & set(said) for each in truth if each), "a token is of no class of its record"
        assert set(said) <= set().union(*truth), "a record has a class of none of its tokens"
        assert len(set(said)) == len(said)
        if truth and truth[-1]:
            assert said[-1] in truth[-1], "a record ends with another class than its tokens"

    def crossings(self, choice_id: str) -> int | None:
        """Return how often a request's tokens are of another class than the one before; `None` where one is not known."""
        truth = self.of[choice_id]
        if any(len(each) != 1 for each in truth):
            return None
        return sum(one != other for one, other in pairwise(truth))
