"""A prompt waits while blocks are promised to a refused reservation, and for no longer."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.simulator.world.observation import Arrival
from spotwise.simulator.world.world import World
from tests.unit.simulator.world import worlds

#: Time, prompt and output tokens: the last prompt is deferred behind a refused reservation, until nothing else is left.
SIZES = [
    (0.0, 70, 23),
    (0.0, 63, 11),
    (0.0, 88, 18),
    (0.0, 56, 23),
    (0.007, 113, 27),
    (0.048, 81, 4),
    (0.077, 146, 13),
]


def test_a_deferred_prompt_is_computed_once_the_promise_is_over() -> None:
    """Nothing else happens on its machine by then: only the time does."""
    policy = WorkerPolicy(
        BatchLimits(max_num_seqs=8, max_num_batched_tokens=24),
        prefix_caching=False,
        max_preemptions=1,
        max_in_flight=2,
        scheduling=Scheduling.MLFQ,
        mlfq=MlfqPolicy(0.01, queues=4, starve_limit_s=5.0),
        cost=worlds.COST,
        swap=SwapPolicy(WhenFull.DEFER, 0, 2),
    )
    small = worlds.machine_type(kv_tokens=256, link_bytes_per_s=1e6)
    kind = replace(small, host_memory_bytes=256 * worlds.MODEL.kv_token_bytes, host_bytes_per_s=1e7)
    world = World(worlds.machines(1, 2, 2, kind=kind), worlds.settings(policy, max_new_tokens=40), worlds.Diary())
    result = world.run([Arrival(*size) for size in SIZES])
    assert result.completed == len(SIZES)
