"""The scheduler's queue keeps its order, and a request waits in it only while no worker has memory for it, or while it would
pass another one at that one's cost.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.passing import LOOK_AHEAD
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerEvent, SchedulerLimits, SchedulerRole

PATIENT = SchedulerLimits(max_queue_s=1e9, reservation_timeout_s=1e9, member_timeout_s=1e9)
BLOCKS = 6


class Queue:
    """A scheduler and its queued requests, each with its demand, by priority and number; `blocks`: of each worker."""

    def __init__(self, max_passes: int = 0, blocks: tuple[int, ...] = (BLOCKS,) * 3) -> None:
        self.max_passes, self.blocks = max_passes, blocks
        self.role = SchedulerRole("s", PATIENT, policy=PoolPolicy(max_passes=max_passes))
        self.waiting: dict[tuple[int, int], tuple[int, int]] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.orders: list[tuple[str, int, m.ReserveKv | m.StartPrefill]] = []
        self.seen = 0
        self.passes: Counter[tuple[tuple[int, int], str]] = Counter()  #: of a request, on a worker

    def feed(self, event: SchedulerEvent) -> None:
        for command in self.role.handle(event, 1000.0):
            match command:
                case m.Send(worker_id, m.ReserveKv() | m.StartPrefill() as order):
                    place = self.places[int(order.choice_id)]
                    self._passed(place, worker_id)
                    del self.waiting[place]
                    self.orders.append((worker_id, order.assignment, order))

    def _passed(self, place: tuple[int, int], worker_id: str) -> None:
        """Where a request is placed ahead of others, check that it takes nothing from a more important one."""
        ahead = [each for each in self.waiting if each < place]
        assert not ahead or self.max_passes
        for other in ahead:
            if self.role.pools[worker_id].kv_tokens >= sum(self.waiting[other]):
                assert other[0] == place[0], "passed a more important request, and took what it could use"
        if ahead:
            self.passes[min(ahead), worker_id] += 1

    def submit(self, number: int, demand: tuple[int, int], priority: int) -> None:
        self.places[number] = priority, number
        self.waiting[priority, number] = demand
        self.feed(m.SubmitRequest(str(number), 1, m.StreamRef("g", number), *demand, priority=priority))

    def refuse(self, demands: dict[int, tuple[int, int]]) -> None:
        worker_id, assignment, order = self.orders.pop()
        number = int(order.choice_id)
        self.waiting[self.places[number]] = demands[number]
        self.feed(m.KvRefused(order.choice_id, 1, assignment, worker_id, "no"))

    def leave(self, number: int) -> None:
        del self.waiting[self.places[number]]
        self.feed(m.CloseRequest(str(number), 1, finished=False))

    def report(self, worker_id: str, pool: m.Pool, state: m.MemberState, free: int) -> None:
        self.seen = max((assignment for _, assignment, _ in self.orders), default=self.seen)
        seen = (("s", self.seen),)
        total = self.blocks[int(worker_id[1:])]
        load = m.WorkerLoad(kv_blocks_total=total, kv_blocks_free=min(free, total), assignments_seen=seen)
        self.feed(m.Member(worker_id, m.MemberKind.TOKEN_WORKER, 1, state, "host", 1, "", pool, load=load))
        assert self.role.queued == len(self.waiting)
        if self.waiting:
            head = self.waiting[min(self.waiting)]
            assert not any(view.is_ready and view.has_capacity(*head) for view in self.role.pools)


def play(seed: int, queue: Queue) -> None:
    """Requests, refusals, clients that leave, and reports in any order, from workers of any pool that drain and come back."""
    rng = random.Random(seed)
    demands: dict[int, tuple[int, int]] = {}
    states = [m.MemberState.READY, m.MemberState.READY, m.MemberState.DRAINING]
    for number in range(60):
        match rng.choice(["submit", "submit", "refuse", "leave", "report", "report"]):
            case "submit" if queue.role.pools.ready:
                demand = rng.randint(1, 60), rng.randint(1, 30)
                if sum(demand) <= queue.role.pools.most_kv_tokens():
                    demands[number] = demand
                    queue.submit(number, demand, rng.choice([-1, 0, 0, 0, 5]))
            case "refuse" if queue.orders:
                queue.refuse(demands)
            case "leave" if queue.waiting:
                queue.leave(rng.choice(list(queue.waiting))[1])
            case _:
                free = rng.choice([0, 1, 2, BLOCKS])
                queue.report(f"w{rng.randrange(3)}", rng.choice(list(m.Pool)), rng.choice(states), free)


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_after_a_report_the_first_in_the_queue_has_room_nowhere(seed: int) -> None:
    """A request offered to a worker is the first in the queue, by priority, then by arrival."""
    queue = Queue()
    queue.report("w0", m.Pool.TOKEN, m.MemberState.READY, 0)
    play(seed, queue)


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 3), st.tuples(*[st.integers(1, BLOCKS)] * 3))
def test_requests_that_pass_take_nothing_from_more_important_ones(
    seed: int, max_passes: int, blocks: tuple[int, int, int]
) -> None:
    """On workers of several sizes; and the head of the queue always has the first claim."""
    queue = Queue(max_passes, blocks)
    queue.report("w0", m.Pool.TOKEN, m.MemberState.READY, 0)
    play(seed, queue)


@settings(max_examples=60)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 60))
def test_a_large_request_is_passed_on_its_worker_a_bounded_number_of_times(
    max_passes: int, workers: int, small_tokens: int
) -> None:
    """Small requests come without end, and end at random: one worker drains for the large one, and it is placed; meanwhile
    the others are served, without any bound where there are other workers.
    """
    queue = Queue(max_passes, (BLOCKS,) * workers)
    rng = random.Random(small_tokens)
    held: dict[str, list[int]] = {f"w{number}": [1] for number in range(workers)}  # blocks of what runs there
    placed = 0

    def report(worker_id: str) -> None:
        free = BLOCKS - sum(held[worker_id])
        queue.report(worker_id, m.Pool.MIXED, m.MemberState.READY, free)

    for worker_id in held:
        report(worker_id)
    queue.submit(0, (BLOCKS * 16 - 1, 1), 0)
    for number in range(1, 600):
        if len(queue.waiting) < LOOK_AHEAD:
            queue.submit(number, (small_tokens, 1), 0)
        for worker_id, assignment, order in queue.orders:
            queue.seen = assignment
            if order.choice_id == "0":
                assert max(queue.passes.values(), default=0) <= max_passes or workers > 1
                return
            placed += 1
            held[worker_id].append(-(-(small_tokens + 1) // 16))
        queue.orders.clear()
        worker_id = rng.choice(sorted(held))
        if held[worker_id]:
            held[worker_id].pop(0)
        report(worker_id)
    raise AssertionError("the large request was starved")
