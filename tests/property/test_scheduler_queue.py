"""The scheduler's queue keeps its order, and a request waits in it only while no worker has memory for it."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core import messages as m
from spotwise.core.scheduler import SchedulerEvent, SchedulerLimits, SchedulerRole

PATIENT = SchedulerLimits(max_queue_s=1e9, reservation_timeout_s=1e9, member_timeout_s=1e9)
BLOCKS = 6


class Queue:
    """A scheduler and its queued requests, each with its demand, by priority and number."""

    def __init__(self) -> None:
        self.role = SchedulerRole("s", PATIENT)
        self.waiting: dict[tuple[int, int], tuple[int, int]] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.orders: list[tuple[str, int, m.ReserveKv | m.StartPrefill]] = []

    def feed(self, event: SchedulerEvent) -> None:
        for command in self.role.handle(event, 1000.0):
            match command:
                case m.Send(worker_id, m.ReserveKv() | m.StartPrefill() as order):
                    place = self.places[int(order.choice_id)]
                    assert place == min(self.waiting)
                    del self.waiting[place]
                    self.orders.append((worker_id, order.assignment, order))

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
        seen = (("s", max((assignment for _, assignment, _ in self.orders), default=0)),)
        load = m.WorkerLoad(kv_blocks_total=BLOCKS, kv_blocks_free=free, assignments_seen=seen)
        self.feed(m.Member(worker_id, m.MemberKind.TOKEN_WORKER, 1, state, "host", 1, "", pool, load=load))
        assert self.role.queued == len(self.waiting)
        if self.waiting:
            head = self.waiting[min(self.waiting)]
            assert not any(view.is_ready and view.has_capacity(*head) for view in self.role.pools)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_after_a_report_the_first_in_the_queue_has_room_nowhere(seed: int) -> None:
    """Requests, refusals, clients that leave, and reports in any order, from workers of any pool that drain and come back.

    A request offered to a worker is the first in the queue, by priority, then by arrival.
    """
    rng, queue = random.Random(seed), Queue()
    demands: dict[int, tuple[int, int]] = {}
    states = [m.MemberState.READY, m.MemberState.READY, m.MemberState.DRAINING]
    queue.report("w0", m.Pool.TOKEN, m.MemberState.READY, 0)
    for number in range(60):
        match rng.choice(["submit", "submit", "refuse", "leave", "report", "report"]):
            case "submit" if queue.role.pools.ready:
                demands[number] = rng.randint(1, 60), rng.randint(1, 30)
                queue.submit(number, demands[number], rng.choice([-1, 0, 0, 0, 5]))
            case "refuse" if queue.orders:
                queue.refuse(demands)
            case "leave" if queue.waiting:
                queue.leave(rng.choice(list(queue.waiting))[1])
            case _:
                free = rng.choice([0, 1, 2, BLOCKS])
                queue.report(f"w{rng.randrange(3)}", rng.choice(list(m.Pool)), rng.choice(states), free)
