"""What placement by life is worth: a small fleet of unequal hazards, simulated with and without it on the same requests."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace

import pytest

from spotwise.core.messages.fleet import Market
from spotwise.core.messages.members import Member, Pool
from spotwise.core.scheduler.answer_times import AnswerTimes
from spotwise.core.scheduler.lives import Lives
from spotwise.core.scheduler.placement import Placer
from spotwise.core.scheduler.placements import RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler.fleets import fleet, instance

#: Seconds of a token, and ends a second of the kinds of instances: half an hour, three minutes.
TOKEN_S = 0.05
KINDS = {"calm": 1 / 1800, "wild": 1 / 180}
#: Lengths that requests allow; an answer is up to as long, and all lengths are equally likely.
SHORT, LONG = 64, 2048
MIXED_LENGTHS = (SHORT, SHORT, SHORT, LONG)


@dataclass(slots=True)
class Outcome:
    """Counts of a run: answers and interrupted ones' tokens, by what machine they were on; and prompts by worker."""

    interrupted_tokens: int = 0
    answers: int = 0
    on: dict[tuple[int, str], int] = field(default_factory=dict)
    prompts: list[str] = field(default_factory=list)
    most_queued: int = 0

    def share_that_stays(self, longest: int) -> float:
        """The share of answers of a kind that were on machines on demand."""
        all_of = sum(count for (length, _), count in self.on.items() if length == longest)
        return self.on.get((longest, "stays"), 0) / all_of


class SmallFleet:
    """Four machines of each kind that decode at a constant speed; one that ends is replaced at once by a new one."""

    def __init__(self, interruption_s: float, seed: int) -> None:
        policy = PoolPolicy(interruption_s=interruption_s, token_s=TOKEN_S, break_even=False)
        self._arrivals, self._ends = random.Random(f"arrivals {seed}"), random.Random(f"ends {seed}")
        self.outcome, self._pools = Outcome(), Pools()
        self._lives = Lives(self._pools)
        self._placer = Placer(self._pools, policy, AnswerTimes(TOKEN_S))
        self._kinds = {f"{kind}{number}": kind for kind in ("stays", *KINDS) for number in range(4)}
        self._launched = dict.fromkeys(self._kinds, 0.0)
        self._held: dict[str, dict[int, tuple[int, int, float]]] = {id_: {} for id_ in self._kinds}
        for id_ in self._kinds:
            self._pools.join(worker_member(id_, blocks=10_000))
        for number in range(2):
            self._pools.join(worker_member(f"prompt{number}", Pool.PROMPT))

    def run(self, requests: int) -> Outcome:
        """Serve so many requests, five a second; all machines' ends are drawn ahead, alike for any placement."""
        events: list[tuple[float, int, str, int]] = []
        for id_, kind in self._kinds.items():
            at_s = 0.0
            while kind in KINDS and at_s < requests / 5 + 60:
                at_s += self._ends.expovariate(KINDS[kind])
                events.append((at_s, len(events), id_, 0))
        at_s = 0.0
        for number in range(1, requests + 1):
            at_s += self._arrivals.expovariate(5.0)
            events.append((at_s, len(events), "", number))
        heapq.heapify(events)
        while events:
            now, _, id_, number = heapq.heappop(events)
            if id_ and not number:
                self._end(id_, now)
            elif id_:
                self._held[id_].pop(number, None)
            else:
                chosen, ends_s = self._serve(number, now)
                heapq.heappush(events, (ends_s, requests * 100 + number, chosen, number))
        return self.outcome

    def _serve(self, number: int, now: float) -> tuple[str, float]:
        """Place a request by fresh reports; return its machine and when it ends."""
        longest = self._arrivals.choice(MIXED_LENGTHS)
        tokens = self._arrivals.randint(1, longest)
        spot = [
            instance(
                id_, kind, launched_s=self._launched[id_], market=Market.SPOT if kind in KINDS else Market.ON_DEMAND
            )
            for id_, kind in self._kinds.items()
        ]
        self._lives.reported(fleet(*spot, hazards=KINDS, at_s=now), now)
        for id_ in self._kinds:
            self._pools.reported(self._heartbeat(id_, now), "s", now)
        found = self._placer.place(RequestDemand(100, longest))
        assert found is not None
        chosen, outcome = found.token_worker.id, self.outcome
        self._held[chosen][number] = longest, tokens, now
        key = longest, self._kinds[chosen]
        outcome.on[key] = outcome.on.get(key, 0) + 1
        outcome.answers += 1
        outcome.prompts.append(found.prompt_worker.id)
        outcome.most_queued = max(outcome.most_queued, *(len(held) for held in self._held.values()))
        return chosen, now + tokens * TOKEN_S

    def _heartbeat(self, id_: str, now: float) -> Member:
        remaining = sum(longest - int((now - from_s) / TOKEN_S) for longest, _, from_s in self._held[id_].values())
        member = self._pools[id_].member
        assert member.load is not None
        return replace(member, load=replace(member.load, remaining_tokens=max(0, remaining)))

    def _end(self, id_: str, now: float) -> None:
        """The machine ends, and a new one of the same name starts: tokens of its unfinished answers are lost."""
        for _, tokens, from_s in self._held[id_].values():
            self.outcome.interrupted_tokens += min(tokens, int((now - from_s) / TOKEN_S))
        self._held[id_].clear()
        self._launched[id_] = now


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_long_answers_go_to_machines_that_stay_and_fewer_tokens_are_interrupted(seed: int) -> None:
    """Same requests and ends: at least a third fewer tokens are lost, and prompts' workers are chosen as before."""
    by_queue, by_life = (SmallFleet(interruption_s, seed).run(1500) for interruption_s in (0.0, 20.0))
    assert by_queue.answers == by_life.answers == 1500
    assert by_life.interrupted_tokens < 0.67 * by_queue.interrupted_tokens
    assert by_life.share_that_stays(LONG) > by_queue.share_that_stays(LONG) + 0.1
    assert by_life.share_that_stays(LONG) > by_life.share_that_stays(SHORT) + 0.1
    assert by_life.prompts == by_queue.prompts
