"""Prompts that a queue interrupts."""

from __future__ import annotations

from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.simulator.world.observation import Arrival
from spotwise.simulator.world.settings import InterruptedPrompts
from tests.unit.simulator.world.worlds import machine_type, machines, serve, settings

#: 1 s an iteration, 0.25 s a token of it; quanta 2, 4, 8 and 16 s.
COST = LinearIterationCost(1.0, 0.25, 0.0, 0.0, 0.0)
QUEUES = MlfqPolicy(2.0, queues=4, starve_limit_s=1000.0)


def test_a_prompt_loses_what_each_quantum_has_room_for() -> None:
    """8 tokens take 3 s and 20 tokens 6 s; in Q3, whose quantum is 8 s, the latter are computed whole."""
    interrupted = InterruptedPrompts(COST, QUEUES)
    assert interrupted.lost_parts(4) == ()
    assert interrupted.lost_parts(8) == (4,)
    assert interrupted.lost_parts(20) == (4, 12)


def test_the_last_queue_interrupts_no_prompt() -> None:
    """However long the prompt: it would never end."""
    assert InterruptedPrompts(COST, QUEUES).lost_parts(10_000) == (4, 12, 28)


def test_a_quantum_without_room_for_a_token_loses_nothing() -> None:
    """The quantum ends before any token is computed."""
    assert InterruptedPrompts(COST, MlfqPolicy(1.0, queues=3)).lost_parts(6) == (4,)


def test_a_client_waits_for_the_lost_parts_and_then_for_its_answer() -> None:
    """The answer begins once all lost parts have been computed: 2 s, 4 s, and then 6 s."""
    interrupted = InterruptedPrompts(COST, QUEUES)
    policy = WorkerPolicy(prefix_caching=False, scheduling=Scheduling.MLFQ, mlfq=QUEUES, cost=COST)
    alone = settings(policy, interrupted=interrupted, through_scheduler=False)
    result, diary = serve(machines(mixed=1, kind=machine_type(cost=COST)), [Arrival(5.0, 20, 2)], alone)
    (served,) = diary.completed
    assert (result.completed, result.failed) == (1, 0)
    assert (served.arrival, served.ttft_s, served.e2e_s) == (Arrival(5.0, 20, 2), 12.0, 13.0)
    assert [shape.prompt_tokens for _, shape, _, _ in diary.iterations] == [4, 12, 20, 0]
