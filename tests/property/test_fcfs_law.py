"""First come, first served (Orca, section 4.1): an earlier arrival has run at least as many iterations, or has ended.

Without preemption, that is; `test_prompts_first_law.py` says what holds with it.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.worker import commands as c
from tests.unit.core.builders import only
from tests.unit.core.worker.bench import WorkerBench

#: Prompts, by prompt tokens and output tokens, and between them iterations (`None`).
STEPS = st.lists(st.none() | st.tuples(st.integers(1, 70), st.integers(1, 6)), max_size=40)
LIMITS = st.builds(
    lambda seqs, prompt_tokens, more: BatchLimits(seqs, prompt_tokens, None if more is None else seqs + more),
    st.integers(1, 6),
    st.integers(1, 80),
    st.none() | st.integers(0, 40),
)


class Watched:
    """A worker whose iterations are counted by sequence."""

    def __init__(self, limits: BatchLimits, blocks: int) -> None:
        self.bench = WorkerBench(blocks=blocks, limits=limits)
        self.arrived: list[str] = []
        self.ended: set[str] = set()
        self.iterations: Counter[str] = Counter()
        self.running: tuple[str, ...] = ()
        self.computed: Counter[str] = Counter()
        self.known: dict[str, int] = {}

    def arrives(self, prompt: int, max_new: int, *, in_place: bool) -> None:
        name = f"r{len(self.arrived)}"
        self.arrived.append(name)
        self.known[name] = prompt
        if in_place:
            self.handle(self.bench.in_place(name, prompt=prompt, max_new=max_new))
        else:
            self.handle(self.bench.prefill(name, prompt=prompt, max_new=max_new))

    def handle(self, commands: list[c.WorkerCommand]) -> None:
        """Note the iteration ordered and the endings, hand-offs among them; these are delivered at once."""
        for order in only(commands, c.RunIteration):
            self.running = tuple(row.sequence_id.split("@")[0] for row in order.batch.rows)
            for name, row in zip(self.running, order.batch.rows, strict=True):
                self.iterations[name] += 1
                assert row.first_position == self.computed[name]
                self.computed[name] += row.num_tokens
        for dropped in only(commands, c.DropSequence):
            self.ended.add(dropped.sequence_id.split("@")[0])
        pushes = only(commands, c.PushKv)
        self.ended.update(push.handoff.choice_id for push in pushes)
        self.assert_law()
        for push in pushes:
            self.handle(self.bench.delivered(push.handoff.choice_id))

    def iterate(self) -> None:
        """End the running iteration; a sequence at the end of its known tokens gets one."""
        if not self.running:
            return
        done = [name for name in self.running if self.computed[name] == self.known[name]]
        self.known.update({name: self.known[name] + 1 for name in done})
        self.running = ()
        self.handle(self.bench.iterate(**dict.fromkeys(done, 50)))

    def assert_law(self) -> None:
        live = [name for name in self.arrived if name not in self.ended]
        counts = [self.iterations[name] for name in live]
        assert counts == sorted(counts, reverse=True)


@settings(max_examples=150)
@given(STEPS, LIMITS, st.booleans(), st.integers(12, 30))
def test_the_first_arrival_has_run_at_least_as_often(
    steps: list[tuple[int, int] | None], limits: BatchLimits, in_place: bool, blocks: int
) -> None:
    """Prompts whole or cut, for this worker or for another one, with as little memory as one of them may need."""
    watched = Watched(limits, blocks if not in_place else 40 * 5)
    for step in steps:
        if step is None:
            watched.iterate()
        else:
            watched.arrives(*step, in_place=in_place)
    for _ in range(40 * 80):
        if len(watched.ended) == len(watched.arrived):
            break
        watched.iterate()
    assert sorted(watched.ended) == sorted(watched.arrived)
    watched.bench.assert_empty()
