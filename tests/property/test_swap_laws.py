"""KV swapped to the host and back: running sequences have their own, none waits for ever, and nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import Batch, BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from tests.property.timeline import BLOCK_SIZE, Arrival, Timeline

#: Of the timeline's engine: seconds of an iteration, and of each prompt token.
COST = LinearIterationCost(0.4, 0.1, 0.0, 0.0, 0.0)
#: All under which memory is ranked; half of them swap.
WAYS = [
    (scheduling, when_full)
    for scheduling in Scheduling
    for when_full in (*WhenFull, WhenFull.REACTIVE, WhenFull.PROACTIVE, WhenFull.PROACTIVE)
    if (scheduling, when_full) != (Scheduling.FCFS, WhenFull.RECOMPUTE)
]


def policy_of(
    way: tuple[Scheduling, WhenFull], spare_slots: int, burst_queues: int, policy: WorkerPolicy
) -> WorkerPolicy:
    scheduling, when_full = way
    return replace(policy, scheduling=scheduling, swap=SwapPolicy(when_full, spare_slots, burst_queues))


PLAIN = st.builds(
    WorkerPolicy,
    st.builds(BatchLimits, st.integers(1, 5), st.integers(8, 30), st.none() | st.integers(8, 16)),
    max_preemptions=st.integers(1, 3),
    prefix_caching=st.sampled_from([True, True, False]),
    mlfq=st.builds(
        MlfqPolicy, st.sampled_from([0.4, 0.5]), st.sampled_from([1.5, 2.0, 4.0]), st.integers(1, 8), st.floats(0.5, 30)
    ),
    cost=st.just(COST),
)
POLICIES = st.builds(policy_of, st.sampled_from(WAYS), st.integers(0, 3), st.integers(0, 3), PLAIN)
ARRIVALS = st.builds(
    Arrival,
    st.sampled_from(["hand_off", "decode", "in_place", "in_place"]),
    prompt=st.integers(1, 20),
    new=st.integers(5, 40),
    alike=st.integers(0, 2),
    load_ticks=st.integers(0, 10),
    then_ticks=st.integers(0, 10),
    cancel_ticks=st.none() | st.none() | st.integers(0, 200),
)
#: Policies under which every sequence has a turn within 3 s.
FAIR = POLICIES.map(
    lambda policy: replace(
        policy,
        scheduling=Scheduling.MLFQ if policy.scheduling is Scheduling.MLFQ else Scheduling.FCFS,
        mlfq=policy.mlfq and replace(policy.mlfq, starve_limit_s=min(policy.mlfq.starve_limit_s, 3.0)),
    )
).filter(lambda policy: policy.is_ranked)
#: Iterations that a request may be here, of some 2,400 in all. Of the twelve that are here at most each needs some 20, of a
#: single row if need be, and may wait, for its turn and for its KV, before each of them.
LONGEST = 1200
SCRIPTS = st.lists(st.tuples(st.integers(0, 20), ARRIVALS), min_size=5, max_size=16)


class Kv:
    """The contents of every block position: an iteration must find its own, and a copy must not be overwritten."""

    def __init__(self, seed: int, failing: float) -> None:
        self.device: dict[int, list[object]] = {}
        self.host: dict[int, list[object]] = {}
        self.moves = {c.SwapOut: 0, c.SwapIn: 0}
        self.failed = 0
        self._rng = random.Random(seed)
        self._failing = failing

    def compute(self, batch: Batch, prompts: Mapping[str, tuple[int, ...]]) -> None:
        for row in batch.rows:
            name = row.sequence_id.split("@")[0]
            for position in range(row.first_position + row.num_tokens):
                block = self.device.setdefault(row.block_ids[position // BLOCK_SIZE], [None] * BLOCK_SIZE)
                content = _content(name, prompts[name], position)
                if position >= row.first_position:
                    block[position % BLOCK_SIZE] = content
                # The first token of a hand-off came from the prompt worker.
                assert block[position % BLOCK_SIZE] == content, f"{name} at {position}"

    def arrive(self, name: str, prompt: tuple[int, ...], block_ids: tuple[int, ...]) -> None:
        for position in range(len(prompt)):
            block = self.device.setdefault(block_ids[position // BLOCK_SIZE], [None] * BLOCK_SIZE)
            block[position % BLOCK_SIZE] = _content(name, prompt, position)

    def begin(self, move: c.SwapOut | c.SwapIn, timeline: Timeline) -> None:
        self.moves[type(move)] += 1
        at = timeline.tick + self._rng.randint(0, 20)
        if self._rng.random() < self._failing:
            self.failed += 1
            timeline.at(at, lambda: timeline.feed(c.SwapFailed(move.sequence_id, "the disk is on fire")))
            return
        outwards = isinstance(move, c.SwapOut)
        source, place = (self.device, self.host) if outwards else (self.host, self.device)
        read_ids, written_ids = move.block_ids, move.host_block_ids
        if not outwards:
            read_ids, written_ids = written_ids, read_ids
        read = {block_id: list(source[block_id]) for block_id in read_ids}

        def done() -> None:
            for of, to in zip(read_ids, written_ids, strict=True):
                assert source[of] == read[of], "written while it was read"
                place[to] = list(read[of])
            timeline.feed(c.Swapped(move.sequence_id))

        timeline.at(at, done)


def _content(name: str, prompt: tuple[int, ...], position: int) -> object:
    """Equal where equal tokens stand before equal positions."""
    return prompt[: position + 1] if position < len(prompt) else (name, position)


@settings(max_examples=300)
@given(
    SCRIPTS, st.integers(15, 20), st.integers(1, 60), POLICIES, st.integers(0, 2**32), st.sampled_from([0.0, 0.0, 0.2])
)
def test_a_running_sequence_has_its_own_kv_and_all_end(
    script: list[tuple[int, Arrival]],
    blocks: int,
    host_blocks: int,
    policy: WorkerPolicy,
    seed: int,
    failing: float,
) -> None:
    """Whatever goes and comes, fails and is cancelled on the way, under each scheduling; at the end all blocks are free."""
    host, kv = BlockPool(host_blocks, BLOCK_SIZE), Kv(seed, failing)
    timeline = Timeline(blocks, policy, host=host, swaps=kv)
    tick = 0
    for number, (gap, arrival) in enumerate(script):
        tick += gap
        timeline.at(tick, partial(timeline.arrive, f"r{number}", arrival))
    timeline.run(until=1_000_000)
    assert timeline.live == {}
    assert (timeline.pool.free_blocks, host.free_blocks) == (blocks, host_blocks)
    load = timeline.role.load()
    assert (load.pending_prompt_tokens, load.remaining_tokens, load.preempted, load.running) == (0, 0, 0, 0)
    stages = [command.entry.stage for _, command in timeline.commands if isinstance(command, m.RecordLedger)]
    came = stages.count("swapped_in") + stages.count("prefix_fetched")
    assert (stages.count("swapped_out"), came) == (kv.moves[c.SwapOut], kv.moves[c.SwapIn])
    if not policy.swap.when_full.swaps:
        assert not any(kv.moves.values())
    event(f"{policy.swap.when_full}: {'swapped' if kv.moves[c.SwapIn] else 'not swapped'}")
    event(f"computed again: {'preempted' in stages}")
    event(f"fetched: {'prefix_fetched' in stages}")


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(8, 12), st.integers(1, 40), FAIR)
def test_no_sequence_waits_for_ever_while_others_keep_coming(
    seed: int, blocks: int, host_blocks: int, policy: WorkerPolicy
) -> None:
    """No sequence waits for ever under policies that ensure it: FCFS, or queues that promote starving sequences."""
    rng = random.Random(seed)
    timeline = Timeline(blocks, policy, host=BlockPool(host_blocks, BLOCK_SIZE), swaps=Kv(seed, 0.0))
    arrived_at: dict[str, int] = {}
    longest = 0
    for number in range(1500):
        tick = number * 8
        timeline.run(until=tick)
        arrived_at = {name: began for name, began in arrived_at.items() if name in timeline.live}
        longest = max([longest, *(timeline.role.iterations - began for began in arrived_at.values())])
        if len(timeline.live) >= 12:
            continue
        kind = rng.choice(["hand_off", "in_place", "in_place", "decode"])
        arrival = Arrival(kind, rng.randint(1, 10), rng.randint(1, 18), 0, 0, rng.randint(0, 5), None)
        arrived_at[f"r{number}"] = timeline.role.iterations
        timeline.at(tick, partial(timeline.arrive, f"r{number}", arrival))
    timeline.run(until=1_000_000)
    assert timeline.live == {}
    assert longest <= LONGEST
    event(f"up to {100 * (1 + longest // 100)} iterations")
