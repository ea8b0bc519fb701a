"""Runs small random worlds, and prints all that came of each: `python -m tests.integration.compiled_worlds SEEDS`.

Compiled or interpreted as the environment says; `test_compiled_simulator.py` compares the two.
"""

from __future__ import annotations

import os
import random
import sys

from spotwise.simulator.compiled.loading import VARIABLE, use_compiled

if use_compiled() is (os.environ.get(VARIABLE) == "0"):
    sys.exit("it is not as the environment says: is the simulator compiled?")

from dataclasses import replace

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import IterationCost, LinearIterationCost, PiecewiseLinear, TableIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.worker.policy import Batching, Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.simulator.runs.metrics import RunMetrics
from spotwise.simulator.runs.slo import AloneOn
from spotwise.simulator.world.observation import Arrival, PromptBlocks
from spotwise.simulator.world.settings import Overlap, SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World
from tests.unit.simulator.world import worlds

TABLE = TableIterationCost(
    PiecewiseLinear((64.0, 256.0, 1024.0), (0.02, 0.05, 0.2)),
    PiecewiseLinear((1.0, 4.0, 16.0), (0.01, 0.012, 0.02)),
    1e-7,
    2e-6,
)
BLOCK_TOKENS = 16


def policy(rng: random.Random, cost: LinearIterationCost | TableIterationCost) -> WorkerPolicy:
    limits = BatchLimits(
        max_num_seqs=rng.choice([4, 16, 256]),
        max_prompt_tokens=rng.choice([300, 2048]),
        max_num_batched_tokens=rng.choice([None, None, 256]),
    )
    usual = WorkerPolicy(
        limits,
        prefix_caching=False,
        watermark=rng.choice([0.0, 0.01, 0.1]),
        preempt_after_s=rng.choice([0.0, 1.0]),
        max_preemptions=rng.choice([1, 3]),
    )
    match rng.randrange(5):
        case 0:
            queues = MlfqPolicy(0.02, queues=rng.choice([2, 5]))
            return replace(usual, scheduling=Scheduling.MLFQ, mlfq=queues, cost=cost)
        case 1:
            return replace(usual, scheduling=rng.choice([Scheduling.PRIORITY, Scheduling.SRPT]))
        case 2:
            return replace(usual, reserve=Reserve.MAX_TOKENS, batching=rng.choice(list(Batching)))
        case 3:
            when_full = rng.choice([WhenFull.PROACTIVE, WhenFull.REACTIVE, WhenFull.DEFER])
            return replace(usual, scheduling=Scheduling.SRPT, swap=SwapPolicy(when_full, spare_slots=1, burst_queues=0))
        case _:
            return usual


def settings(rng: random.Random, of: WorkerPolicy) -> WorldSettings:
    return worlds.settings(
        replace(of, prefix_caching=rng.random() < 0.2),
        pools=PoolPolicy(
            max_pending_prompt_tokens=rng.choice([200, 8192]),
            decode_queue=rng.choice(list(DecodeQueue)),
            break_even=rng.random() < 0.5,
            repurpose_window_s=rng.choice([None, 2.0]),
            prefix_spans=0,
        ),
        max_new_tokens=rng.choice([160, 400]),
        knows_output=rng.random() < 0.5,
        control_latency_s=rng.choice([0.0, 0.0005]),
        private_link_bytes_per_s=rng.choice([None, 1e6]),
        overlap=rng.choice([Overlap(None), Overlap(100)]),
        elastic=rng.random() < 0.3,
        kv_block_size=rng.choice([1, 16]),
    )


def machines(rng: random.Random) -> list[SimulatedMachine]:
    """One to six machines."""
    costs: list[IterationCost] = [worlds.COST, TABLE]
    cost = rng.choice(costs)
    kind = worlds.machine_type(rng.choice([800, 1500, 6000]), link_bytes_per_s=3e6, cost=cost)
    kind = replace(kind, host_memory_bytes=2_000_000, host_bytes_per_s=1e8)
    pools = [Pool.MIXED] if rng.random() < 0.3 else [Pool.PROMPT, Pool.TOKEN]
    return [SimulatedMachine(kind, pool) for pool in pools * rng.randint(1, 3)]


def arrivals(rng: random.Random) -> list[Arrival]:
    """Requests within four seconds, some of whose prompts begin alike."""
    times = sorted(rng.uniform(0.0, 4.0) for _ in range(rng.randint(1, 60)))
    made = []
    for at_s in times:
        prompt_tokens = rng.randint(1, 400)
        hashes = tuple(rng.randint(0, 1) for _ in range(prompt_tokens // BLOCK_TOKENS))
        blocks = PromptBlocks(hashes, BLOCK_TOKENS)
        output_tokens = min(1 + int(rng.expovariate(1 / 40)), 160)
        made.append(Arrival(at_s, prompt_tokens, output_tokens, blocks, priority=rng.randint(0, 2)))
    return made


def run(seed: int) -> list[object]:
    """Return all that a world reports, and its percentiles."""
    rng = random.Random(seed)
    cluster = machines(rng)
    cost = cluster[0].machine_type.cost
    assert isinstance(cost, LinearIterationCost | TableIterationCost)
    chosen = settings(rng, policy(rng, cost))
    diary, metrics = worlds.Diary(), RunMetrics(AloneOn(cost), {f"m{number}": "all" for number in range(9)})
    load = arrivals(rng)
    try:
        world = World(cluster, chosen, diary)
        if chosen.elastic and len(cluster) > 2:
            world.notice_at(2.0, "m0", rng.choice([0.0, 0.5]))
        result: object = world.run(load)
        for request in diary.completed:
            metrics.request_completed(request)
    except ValueError as error:  # some of these policies do not go together
        return [str(error)]
    return [result, diary.completed, diary.failed, diary.iterations, diary.gaps, metrics.verdict()]


for number in range(int(sys.argv[1])):
    sys.stdout.write(f"{number} {run(number)!r}\n")
