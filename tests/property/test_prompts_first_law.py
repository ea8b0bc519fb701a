"""Tests of order on a worker with both phases and too little memory: which sequence passes or preempts which."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages import mesh as m
from spotwise.core.worker.policy import WorkerPolicy
from tests.property.timeline import BLOCK_SIZE, TICKS_PER_S, Arrival, Timeline

#: Everything is ready at once, so the first arrival is ready first.
ARRIVALS = st.builds(
    Arrival,
    st.sampled_from(["hand_off", "in_place"]),
    prompt=st.integers(1, 20),
    new=st.integers(1, 40),
    alike=st.integers(0, 2),
    load_ticks=st.just(0),
    then_ticks=st.just(0),
    cancel_ticks=st.none(),
)
SCRIPTS = st.lists(st.tuples(st.integers(1, 60), ARRIVALS), min_size=2, max_size=16)
POLICIES = st.builds(
    WorkerPolicy,
    st.builds(BatchLimits, st.integers(2, 8), st.integers(8, 30), st.none() | st.integers(8, 16)),
    watermark=st.sampled_from([0.0, 0.2]),
    max_preemptions=st.integers(1, 3),
    prefix_caching=st.booleans(),
    prompts_first=st.booleans(),
    preempt_after_s=st.sampled_from([0.0, 1.0, 5.0]),
)


#: Iterations that a request may be here, of some 600 in all: most are done in 60, and up to eleven others are ahead of it.
LONGEST = 400


class Play:
    """A script that has run to its end, and what there is to see of it."""

    def __init__(self, script: list[tuple[int, Arrival]], blocks: int, policy: WorkerPolicy) -> None:
        self.timeline = Timeline(blocks, policy)
        self.arrived_tick: dict[str, int] = {}
        self.arrivals: dict[str, Arrival] = {}
        tick = 0
        for number, (gap, arrival) in enumerate(script):
            tick += gap
            name = f"r{number}"
            self.arrived_tick[name], self.arrivals[name] = tick, arrival
            self.timeline.at(tick, partial(self.timeline.arrive, name, arrival))
        self.timeline.run(until=1_000_000)
        assert self.timeline.live == {}
        assert self.timeline.pool.free_blocks == blocks
        self.rows = [{row[0].split("@")[0]: row for row in rows} for rows in self.timeline.iterations]
        entries = [
            (tick, command.entry) for tick, command in self.timeline.commands if isinstance(command, m.RecordLedger)
        ]
        self.preempted = [(tick, entry.choice_id) for tick, entry in entries if entry.stage == "preempted"]
        self.prefilled_tick = {entry.choice_id: tick for tick, entry in entries if entry.stage == "prefilled"}

    def place(self, name: str) -> int:
        """Return the place of a request in order of arrival."""
        return int(name[1:])


@settings(max_examples=200)
@given(SCRIPTS, st.integers(15, 24), POLICIES)
def test_a_never_preempted_sequence_is_passed_only_for_want_of_a_block(
    script: list[tuple[int, Arrival]], blocks: int, policy: WorkerPolicy
) -> None:
    """Of two such, the earlier has run at least as often, but for iterations in which it needed a block that was not there."""
    play = Play(script, blocks, policy)
    victims = {name for _, name in play.preempted}
    names = sorted({name for rows in play.rows for name in rows} - victims, key=play.place)
    last = {name: max(k for k, rows in enumerate(play.rows) if name in rows) for name in names}
    runs: Counter[str] = Counter()
    next_position: dict[str, int] = {}
    for k, rows in enumerate(play.rows):
        for name in names:
            if name in rows:
                _, first, tokens = rows[name]
                next_position[name] = first + tokens
                runs[name] += 1
            elif next_position.get(name, 1) % BLOCK_SIZE == 0:
                runs[name] += 1  # as if it had had the block
        for place, earlier in enumerate(names):
            if last[earlier] <= k:
                continue
            for later in names[place + 1 :]:
                assert runs[earlier] >= runs[later]


@settings(max_examples=200)
@given(SCRIPTS, st.integers(15, 24), POLICIES)
def test_blocks_are_lost_to_an_earlier_arrival_or_to_a_prompt_that_waited(
    script: list[tuple[int, Arrival]], blocks: int, policy: WorkerPolicy
) -> None:
    """A sequence loses blocks only to earlier arrivals, or to prompts where they come first, a bounded number of times."""
    play = Play(script, blocks, policy)
    for tick, victim in play.preempted:
        ordered = [row[0].split("@")[0] for row in play.timeline.iterations[play.timeline.order_at[tick]]]
        to_earlier = any(play.place(name) < play.place(victim) for name in ordered)
        waited = [
            name
            for name in play.arrivals
            if play.arrived_tick[name] + policy.preempt_after_s * TICKS_PER_S <= tick
            and play.prefilled_tick.get(name, tick + 1) > tick
        ]
        assert to_earlier or (policy.prompts_first and waited)
        event("to an earlier one" if to_earlier else "to a prompt")
    counts = Counter(name for _, name in play.preempted)
    assert max(counts.values(), default=0) <= policy.max_preemptions


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(15, 24), POLICIES, st.sampled_from([1, 1000]))
def test_no_sequence_waits_for_ever_while_others_keep_coming(
    seed: int, blocks: int, policy: WorkerPolicy, counted_steps: int
) -> None:
    """Prompts for others, prompts in place and hand-offs keep a small worker full; each of them ends all the same."""
    rng = random.Random(seed)
    timeline = Timeline(blocks, replace(policy, counted_steps=counted_steps))
    arrived_at: dict[str, int] = {}
    longest = 0
    for number in range(500):
        tick = number * 8
        timeline.run(until=tick)
        arrived_at = {name: began for name, began in arrived_at.items() if name in timeline.live}
        longest = max([longest, *(timeline.role.iterations - began for began in arrived_at.values())])
        if len(timeline.live) >= 12:
            continue
        kind = rng.choice(["hand_off", "in_place", "in_place", "decode"])
        arrival = Arrival(kind, rng.randint(1, 20), rng.randint(1, 40), 0, 0, rng.randint(0, 5), None)
        arrived_at[f"r{number}"] = timeline.role.iterations
        timeline.at(tick, partial(timeline.arrive, f"r{number}", arrival))
    assert longest < LONGEST
    timeline.run(until=1_000_000)
    assert timeline.live == {}
