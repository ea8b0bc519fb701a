"""Prompts that wait for blocks, and sequences that decode."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from tests.unit.core.builders import ledger
from tests.unit.core.worker.bench import WorkerBench, deltas, row_of, rows

POLICY = WorkerPolicy(watermark=0.0, prefix_caching=False)


def full(blocks: int = 4, policy: WorkerPolicy = POLICY) -> WorkerBench:
    """Sequences a and b decode, with two blocks of 16 each."""
    bench = WorkerBench(blocks=blocks, policy=policy)
    bench.decode("a", prompt=17)
    bench.decode("b", prompt=17)
    bench.iterate(a=51)
    return bench


def preempted(commands: list[c.WorkerCommand]) -> int:
    return len(ledger(commands, "preempted"))


def test_a_prompt_that_waits_too_long_takes_the_blocks_of_a_decode() -> None:
    """After `preempt_after_s` the last decode loses its blocks to the prompt and is recomputed after the prompt has left."""
    bench = full()
    bench.prefill("p", prompt=30)
    assert rows(bench.iterate(after_s=0.875, a=52, b=51)) == ["a@1", "b@1"]
    commands = bench.iterate(after_s=0.125, a=53, b=52)
    assert rows(commands) == ["a@1", "p@1"]
    assert ledger(commands, "preempted") == [{"computed_tokens": 19, "preemptions": 1}]
    assert rows(bench.iterate(a=54, p=50)) == ["a@1"]
    bench.delivered("p")
    assert row_of(bench.iterate(a=55), "b") == (0, 20)


def test_strictly_first_come_first_served_it_waits() -> None:
    bench = full(policy=replace(POLICY, prompts_first=False))
    bench.prefill("p", prompt=30)
    commands = bench.iterate(after_s=1000.0, a=52, b=51)
    assert (rows(commands), preempted(commands)) == (["a@1", "b@1"], 0)


def test_with_all_blocks_reserved_no_sequence_is_preempted() -> None:
    bench = full(policy=replace(POLICY, reserve=Reserve.MAX_TOKENS))
    bench.prefill("p", prompt=30)
    assert rows(bench.iterate(after_s=1000.0, a=52, b=51)) == ["a@1", "b@1"]


def test_the_first_arrival_is_never_a_victim() -> None:
    """The first arrival is never preempted, and alone it runs to its end."""
    bench = WorkerBench(blocks=2, policy=POLICY)
    bench.decode("a", prompt=17)
    bench.prefill("p", prompt=30)
    assert rows(bench.iterate(after_s=1000.0, a=51)) == ["a@1"]
    assert rows(bench.iterate(a=2)) == ["p@1"]


def test_the_longer_a_prompt_waits_the_older_the_decodes_it_outranks() -> None:
    """A decode of 60 seconds falls to one that has waited for 7, not for 6."""
    bench = full()
    bench.iterate(after_s=60.0, a=52, b=51)
    bench.prefill("p", prompt=30)
    assert rows(bench.iterate(after_s=6.0, a=53, b=52)) == ["a@1", "b@1"]
    assert rows(bench.iterate(after_s=1.0, a=54, b=53)) == ["a@1", "p@1"]


def test_equals_do_not_preempt_one_another() -> None:
    """A rank must be higher: ten seconds of waiting are a hundred of decoding, and no more."""
    bench = full()
    bench.iterate(after_s=90.0, a=52, b=51)
    bench.prefill("p", prompt=30)
    assert rows(bench.iterate(after_s=10.0, a=53, b=52)) == ["a@1", "b@1"]


def test_one_that_was_preempted_before_is_harder_to_preempt() -> None:
    """A preempted sequence's age counts twice, then three times."""
    bench = full()
    bench.prefill("p", prompt=30)
    bench.iterate(after_s=1.0, a=52, b=51)
    bench.iterate(a=53, p=50)
    bench.delivered("p")
    bench.iterate(a=54)
    bench.iterate(after_s=29.0, a=55, b=52)
    bench.prefill("q", prompt=30)
    assert rows(bench.iterate(after_s=6.0, a=56, b=53)) == ["a@1", "b@1"]  # 2 x 36 against 60
    assert rows(bench.iterate(after_s=2.0, a=57, b=54)) == ["a@1", "q@1"]  # 2 x 38 against 80


def test_after_some_preemptions_it_stays() -> None:
    """After `max_preemptions` a sequence is not preempted again, however long a prompt waits."""
    bench = full(blocks=5, policy=replace(POLICY, max_preemptions=1))
    bench.prefill("p", prompt=40)
    bench.iterate(after_s=1.0, a=52, b=51)
    bench.iterate(a=53, p=50)
    bench.delivered("p")
    assert rows(bench.iterate(a=54)) == ["a@1", "b@1"]
    bench.prefill("q", prompt=40)
    assert rows(bench.iterate(after_s=1000.0, a=55, b=52)) == ["a@1", "b@1"]


def test_as_few_as_are_needed_lose_their_blocks() -> None:
    """The youngest has one block and another one two: a prompt of two needs the latter alone."""
    bench = full(blocks=5)
    bench.decode("c", prompt=10)
    bench.iterate(a=52, b=51)
    bench.prefill("p", prompt=30)
    commands = bench.iterate(after_s=1.0, a=53, b=52, c=51)
    assert rows(commands) == ["a@1", "c@1", "p@1"]
    assert preempted(commands) == 1


def test_where_preemption_would_not_suffice_no_sequence_loses_blocks() -> None:
    """No decode is preempted for a prompt that would not fit even then."""
    bench = full(blocks=5)
    bench.prefill("p", prompt=60)
    commands = bench.iterate(after_s=1000.0, a=52, b=51)
    assert (rows(commands), preempted(commands)) == (["a@1", "b@1"], 0)


def test_no_prompt_passes_one_that_waits() -> None:
    """A small one that would find a victim waits behind a large one that does not."""
    bench = full(blocks=5)
    bench.prefill("large", prompt=60)
    bench.prefill("small", prompt=30)
    commands = bench.iterate(after_s=1000.0, a=52, b=51)
    assert (rows(commands), preempted(commands)) == (["a@1", "b@1"], 0)


def test_a_prompt_without_a_row_takes_nothing() -> None:
    """A prompt without a row in the batch would hold its blocks in vain."""
    bench = full(policy=replace(POLICY, limits=BatchLimits(max_num_seqs=2)))
    bench.prefill("p", prompt=30)
    commands = bench.iterate(after_s=1000.0, a=52, b=51)
    assert (rows(commands), preempted(commands)) == (["a@1", "b@1"], 0)


def test_free_blocks_that_a_preempted_one_waits_for_are_left_to_it() -> None:
    """One is free, and b waits for two; c has one: a prompt that needs two gets neither, one that needs one gets that of c."""
    bench = full(blocks=8)
    bench.decode("c", prompt=10)
    bench.decode("d", prompt=10)
    bench.reserve("r", tokens=20, new=10)
    bench.iterate(a=52, b=51)
    bench.prefill("p", prompt=50)
    assert rows(bench.iterate(after_s=1.0, a=53, b=52, c=51, d=51)) == ["a@1", "c@1", "p@1"]
    bench.feed(m.CancelRequest("r", 1))
    bench.prefill("two", prompt=20)
    commands = bench.iterate(after_s=1.0, a=54, c=52, p=50)
    assert (rows(commands), preempted(commands)) == (["a@1", "c@1"], 0)
    bench.feed(m.CancelRequest("two", 1))
    bench.prefill("one", prompt=10)
    assert rows(bench.iterate(after_s=1.0, a=55, c=53)) == ["a@1", "one@1"]
    assert bench.pool.free_blocks == 1


def test_a_prompt_that_is_computed_in_parts_keeps_its_blocks() -> None:
    """A decode that needs one waits until the prompt has its first token, then takes it."""
    limits = BatchLimits(max_num_seqs=4, max_num_batched_tokens=16)
    bench = WorkerBench(blocks=4, policy=replace(POLICY, limits=limits))
    bench.decode("a", prompt=30)
    bench.in_place("p", prompt=31)
    for part, members, tokens in (
        ((0, 15), ["a@1", "p@1"], {"a": 51}),
        ((15, 15), ["p@1"], {"a": 52}),
        ((30, 1), ["p@1"], {}),
    ):
        commands = bench.iterate(**tokens)
        assert rows(commands) == members
        assert row_of(commands, "p") == part
    commands = bench.iterate(p=50)
    assert rows(commands) == ["a@1"]
    assert ledger(commands, "preempted") == [{"computed_tokens": 31, "preemptions": 1}]


class TestInPlace:
    """A prompt whose target is this worker waits on it, and may preempt decodes."""

    def test_it_takes_the_blocks_of_a_decode(self) -> None:
        """A prompt for this worker preempts a decode, then decodes up to its own length."""
        bench = full()
        bench.in_place("p", prompt=30, max_new=2)
        assert bench.role.load().remaining_tokens == 8 + 9 + 2
        assert rows(bench.iterate(after_s=1.0, a=52, b=51)) == ["a@1", "p@1"]
        assert rows(bench.iterate(a=53, p=50)) == ["a@1", "p@1"]
        assert [delta.token_id for delta in deltas(bench.iterate(a=54, p=51))] == [54, 51]


def test_a_prompt_that_was_given_blocks_computes_what_others_have_computed_since() -> None:
    """A prompt that has empty blocks of its own keeps them, even if its prefix is cached by then."""
    policy = WorkerPolicy(BatchLimits(8, 2048, 17), watermark=0.0, preempt_after_s=0.0)
    bench = WorkerBench(blocks=6, policy=policy)
    bench.decode("a", prompt=17)
    bench.decode("b", prompt=17)
    bench.iterate(a=51)
    bench.iterate(a=52, b=51)
    for name in ("q", "p"):
        bench.start(name, prompt=32)
        bench.load(name, prompt=tuple(range(32)))
    assert rows(bench.iterate(a=53, b=52)) == ["a@1", "b@1", "q@1"]
    commands = bench.iterate(after_s=1.0, a=54, b=53)
    assert (rows(commands), preempted(commands)) == (["a@1", "q@1"], 1)
    assert len(bench.pool.owned_by("p@1")) == 2
    assert row_of(bench.iterate(a=55), "p") == (0, 15)
