"""Workers that only count: they accept orders, report what they hold, and compute nothing.

A worker's report is the sum of its unfinished work, as a scheduler sees it in a busy mesh. Time is a number of steps; lengths,
not a clock, decide when work ends.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import cycle

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.requests.record import KvTarget

KV_BLOCK = 16
#: Of ten workers, the home pools.
_HOMES = (*[m.Pool.PROMPT] * 4, *[m.Pool.TOKEN] * 5, m.Pool.MIXED)
_GATEWAY = "gateway-0"
#: Ends an hour of the types of spot instances; one more type is on demand.
_ENDS_PER_H = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 12.0)
_FAMILIES = 200
_SHARED_SPANS, _OWN_SPANS = 12, 8


def _blocks_at_first(prompt_tokens: int) -> int:
    return -(-(prompt_tokens + 1) // KV_BLOCK)


@dataclass(slots=True)
class _Held:
    """A worker's part of a request."""

    prompt_tokens: int = 0
    remaining_tokens: int = 0
    blocks: int = 0
    in_place: bool = False


@dataclass(slots=True)
class CountingWorker:
    """A worker that counts."""

    id: str
    pool: m.Pool
    blocks: int
    seen: int = 0
    held: dict[str, _Held] = field(default_factory=dict)

    def report(self) -> m.Member:
        """Its heartbeat."""
        parts = self.held.values()
        prompts = [part for part in parts if part.prompt_tokens]
        load = m.WorkerLoad(
            pending_prompt_tokens=sum(part.prompt_tokens for part in prompts),
            remaining_tokens=sum(part.remaining_tokens for part in parts),
            kv_blocks_total=self.blocks,
            kv_blocks_free=self.blocks - sum(part.blocks for part in parts),
            kv_block_size=KV_BLOCK,
            reserved_new_tokens=1,
            decoding=sum(part.remaining_tokens > 0 and not part.prompt_tokens for part in parts),
            prompts_in_place=sum(part.in_place for part in prompts),
            prompts_to_hand_off=sum(not part.in_place for part in prompts),
            prompt_token_s=1e-4,
            kv_push_token_s=1e-5,
            assignments_seen=(("scheduler-0", self.seen),),
        )
        kind = m.MemberKind.PROMPT_WORKER if self.pool is m.Pool.PROMPT else m.MemberKind.TOKEN_WORKER
        return m.Member(self.id, kind, 1, m.MemberState.READY, "host", 1, "", self.pool, load=load)


class CountingFleet:
    """A fleet of counting workers, and their requests.

    Args:
        blocks: KV blocks of each.
        seed: seed of lengths and prefixes.
    """

    def __init__(self, workers: int, blocks: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self.workers = {
            f"worker-{number:05}": CountingWorker(f"worker-{number:05}", _HOMES[number % 10], blocks)
            for number in range(workers)
        }
        self._beats = cycle(self.workers.values())
        self._submitted = 0
        self._prompts: deque[tuple[str, str, str]] = deque()
        self._decodes: deque[tuple[str, str]] = deque()

    @property
    def serving(self) -> int:
        """The number of assigned, unfinished requests."""
        return len(self._prompts) + len(self._decodes)

    def submission(self) -> m.SubmitRequest:
        """The next request; many prompts share a prefix."""
        self._submitted += 1
        family = self._rng.randrange(_FAMILIES)
        prompt_tokens = int(64 * 64 ** self._rng.random())
        spans = [family << 32 | number for number in range(min(_SHARED_SPANS, prompt_tokens // 128))]
        spans += [self._submitted << 40 | number for number in range(_OWN_SPANS)]
        return m.SubmitRequest(
            f"request-{self._submitted}",
            1,
            m.StreamRef(_GATEWAY, self._submitted % 2**32),
            prompt_tokens,
            self._rng.randint(16, 1024),
            tuple(spans),
        )

    def take(self, commands: list[m.Send | m.RecordLedger]) -> list[m.KvReserved | m.PrefillAccepted]:
        """Carry out a scheduler's commands; return the workers' answers."""
        answers: list[m.KvReserved | m.PrefillAccepted] = []
        for command in commands:
            if isinstance(command, m.RecordLedger):
                continue
            order, worker = command.message, self.workers.get(command.recipient_id)
            if worker is None:
                continue
            if isinstance(order, m.ReserveKv):
                worker.seen = order.assignment
                blocks = _blocks_at_first(order.kv_tokens - order.max_new_tokens)
                worker.held[order.choice_id] = _Held(remaining_tokens=order.max_new_tokens, blocks=blocks)
                target = KvTarget(worker.id, 1, "", ())
                answers.append(m.KvReserved(order.choice_id, 1, order.assignment, target))
            elif isinstance(order, m.StartPrefill):
                worker.seen = order.assignment
                token_id = order.target.worker_id
                part = worker.held[order.choice_id] = _Held(prompt_tokens=order.prompt_tokens)
                if token_id == worker.id:
                    part.in_place, part.remaining_tokens = True, order.max_new_tokens
                    part.blocks = _blocks_at_first(order.prompt_tokens)
                    answers.append(m.PrefillAccepted(order.choice_id, 1, order.assignment, worker.id))
                self._prompts.append((order.choice_id, worker.id, token_id))
        return answers

    def work(self, prompts: int, requests: int) -> list[m.CloseRequest]:
        """End the oldest phases until at most `prompts` and `requests` are running; return the requests that ended.

        Prompts end too where no decode is left to end.
        """
        while len(self._prompts) > prompts or (self._prompts and not self._decodes and self.serving > requests):
            choice_id, prompt_id, token_id = self._prompts.popleft()
            if prompt_id == token_id:
                self.workers[prompt_id].held[choice_id].prompt_tokens = 0
            else:
                del self.workers[prompt_id].held[choice_id]
            self._decodes.append((choice_id, token_id))
        ended = []
        while self._decodes and self.serving > requests:
            choice_id, token_id = self._decodes.popleft()
            del self.workers[token_id].held[choice_id]
            ended.append(m.CloseRequest(choice_id, 1, finished=True))
        return ended

    def lives(self, at_s: float) -> m.FleetReported:
        """A report of the fleet: types on spot, which end twice as often in their first hour, and one on demand."""
        learned = [
            m.LearnedLives(f"type-{kind}", "", PiecewiseHazard((0.0, 3600.0), (per_h / 1800, per_h / 3600)), 100, 50)
            for kind, per_h in enumerate(_ENDS_PER_H)
        ]
        instances = []
        for number, worker_id in enumerate(self.workers):
            kind = number // 10 % (len(_ENDS_PER_H) + 1)
            market = Market.SPOT if kind < len(_ENDS_PER_H) else Market.ON_DEMAND
            launched_s = -7.0 * number
            instances.append(
                m.FleetInstance(worker_id, f"type-{kind}", market, InstanceState.RUNNING, launched_s, worker_id)
            )
        return m.FleetReported("watcher-0", 1, at_s, "local", tuple(instances), lives=tuple(learned))

    def beats(self, count: int) -> list[m.Member]:
        """The heartbeats of the next `count` workers."""
        return [next(self._beats).report() for _ in range(count)]
