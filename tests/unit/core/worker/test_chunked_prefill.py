"""How many prompt tokens may join an iteration with decodes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.batching import Batch, BatchLimits, BatchRow
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.messages import mesh as m
from spotwise.core.worker.policy import Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.chunked_prefill import (
    ALONE_TOKENS,
    MIN_TOKENS,
    REMEMBERED_TOKENS,
    ChunkedPrefillBudget,
    TokenCost,
)
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from tests.unit.core.worker.bench import WorkerBench, row_of, rows

STALL_S = 1 / 16
TOKEN_S = 1 / 1024


def part(tokens: int, first_position: int = 0) -> BatchRow:
    return BatchRow("p", first_position, tokens, ())


def decode(context: int) -> BatchRow:
    return BatchRow("d", context, 1, ())


def run(pace: ChunkedPrefillBudget, seconds: float, *rows: BatchRow, now: float = 100.0) -> None:
    """Charge one iteration."""
    pace.ordered(Batch(rows), now)
    pace.ended(now + seconds)


def room(pace: ChunkedPrefillBudget, decodes: int = 1, first_position: int = 0) -> int:
    """The tokens allowed for a first prompt, beside decodes that have almost no context."""
    budget = pace.budget([0] * decodes)
    assert budget is not None
    return budget.max_chunk_tokens(first_position)


def paced() -> ChunkedPrefillBudget:
    """A pace that has seen one prompt alone, at 1/1024 s a token."""
    pace = ChunkedPrefillBudget(STALL_S)
    run(pace, 1.0, part(1024))
    return pace


def test_a_prompt_alone_is_cut_to_the_same_time() -> None:
    """What arrives, or is to stop, waits for one iteration: half a second is 512 tokens here."""
    pace = ChunkedPrefillBudget(0.5)
    run(pace, 1.0, part(1024))
    assert room(pace, decodes=0) == 512


def test_a_prompt_alone_gets_as_many_tokens_as_hide_the_cost_of_an_iteration() -> None:
    """Its time would hold 64; before any cost is known, too, and for all prompts of an iteration together."""
    for pace in (paced(), ChunkedPrefillBudget(STALL_S)):
        budget = pace.budget([])
        assert budget is not None
        assert budget.max_chunk_tokens(0) == ALONE_TOKENS
        budget.spend(0, 200)
        assert budget.max_chunk_tokens(0) == ALONE_TOKENS - 200


def test_without_a_bound_prompts_run_whole_beside_decodes_too() -> None:
    pace = ChunkedPrefillBudget(None)
    run(pace, 1.0, part(1024))
    assert pace.budget([1, 2, 3, 4]) is None
    assert pace.budget([]) is None


def test_a_prompt_is_cut_to_what_the_device_computes_in_time() -> None:
    """A sixteenth of a second is 64 tokens here, of which the decodes have their own."""
    pace = paced()
    assert room(pace, decodes=1) == 63
    assert room(pace, decodes=3) == 61


def test_prompts_of_an_iteration_share_its_time() -> None:
    """Before anything is known of the device, too."""
    for pace, tokens in ((ChunkedPrefillBudget(STALL_S), 64), (paced(), 63)):
        budget = pace.budget([0])
        assert budget is not None
        assert budget.max_chunk_tokens(0) == tokens
        budget.spend(0, 40)
        assert budget.max_chunk_tokens(0) == tokens - 40
        budget.spend(0, tokens - 40)
        assert budget.max_chunk_tokens(0) == 0


def test_a_slow_device_still_makes_progress() -> None:
    """However long that takes and however many decode; but not with every prompt that waits."""
    pace = ChunkedPrefillBudget(STALL_S)
    run(pace, 10.0, part(100))
    budget = pace.budget([0] * 200)
    assert budget is not None
    assert budget.max_chunk_tokens(0) == MIN_TOKENS
    budget.spend(0, MIN_TOKENS)
    assert budget.max_chunk_tokens(0) == 0


def test_decodes_alone_teach_no_prompt_cost() -> None:
    """Decodes read all weights for a few tokens, so they teach nothing about prompts."""
    pace = paced()
    run(pace, 0.1, *[decode(500)] * 4, now=200.0)
    assert room(pace) == 63


def test_iterations_that_overlap_are_not_counted_twice() -> None:
    """The second of a pipeline begins when the first has ended."""
    pace = ChunkedPrefillBudget(STALL_S)
    for _ in range(2):
        pace.ordered(Batch((part(1024),)), 10.0)
    pace.ended(11.0)
    pace.ended(12.0)
    assert room(pace) == 63


def test_a_clock_that_was_set_back_teaches_nothing() -> None:
    """An iteration of negative duration leaves the token cost as it was."""
    pace = paced()
    run(pace, -3600.0, part(1024))
    assert room(pace) == 63


ROWS = st.lists(st.builds(part, st.integers(1, 5000), st.integers(0, 10**6)), min_size=1, max_size=4)


@given(
    st.lists(st.tuples(ROWS, st.floats(-1.0, 100.0)), max_size=20),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=300),
    st.integers(0, 10**6),
    st.floats(1e-3, 1.0),
)
def test_there_is_always_room_for_some_tokens(
    past: list[tuple[list[BatchRow], float]], decodes: list[int], first_position: int, max_stall_s: float
) -> None:
    """The budget admits `MIN_TOKENS` at least, for every measured duration."""
    pace = ChunkedPrefillBudget(max_stall_s)
    for computed, seconds in past:
        run(pace, seconds, *computed)
    budget = pace.budget(decodes)
    assert budget is not None
    assert budget.max_chunk_tokens(first_position) >= MIN_TOKENS


@given(st.floats(1e-6, 1e-2), st.floats(0.0, 1e-5), st.integers(0, 10**6), st.floats(1e-3, 10.0))
def test_a_part_takes_its_time_and_no_more(
    seconds: float, per_context: float, first_position: int, bound: float
) -> None:
    """One token more would take longer than allowed."""
    cost = TokenCost(seconds, per_context)
    tokens = cost.part_within(bound, first_position)

    def takes(tokens: int) -> float:
        return cost.of(tokens, tokens * (first_position + tokens / 2))

    assert takes(tokens) <= bound * (1 + 1e-6)
    assert takes(tokens + 1) >= bound * (1 - 1e-6)


def test_a_steady_device_is_learned() -> None:
    """After some iterations parts take the time that they may take, whatever was measured first."""
    pace = ChunkedPrefillBudget(STALL_S)
    run(pace, 60.0, part(1024), now=0.0)  # a cold start
    for second in range(60):
        tokens = room(pace)
        run(pace, tokens * TOKEN_S, part(tokens), now=100.0 + second)
    assert room(pace) in (62, 63)  # from above, and for ever a little above


def test_a_context_costs_what_the_model_gives() -> None:
    """Here a token behind 1,024 others costs twice as much: chunks are half as long, and decodes cost double."""
    pace = ChunkedPrefillBudget(STALL_S, context_parity=1024.0)
    run(pace, 64 * 2 * TOKEN_S, part(64, 1024 - 32))
    assert room(pace, first_position=0) == 61  # of 63, whose mean context is 31
    assert room(pace, first_position=1024) == 31
    budget = pace.budget([1024, 1024])
    assert budget is not None
    assert budget.max_chunk_tokens(1024) == 29


@given(st.integers(500, 5000), st.integers(500, 3000), st.lists(st.integers(0, 2000), min_size=1, max_size=4))
def test_parts_take_the_same_time_all_through_a_prompt(parity: int, prompt: int, decodes: list[int]) -> None:
    """Chunks of a prompt take equal times when prompts follow prompts beside decodes."""
    cost = TokenCost(5e-4, 5e-4 / parity)
    pace = ChunkedPrefillBudget(STALL_S, parity)
    run(pace, cost.of(100, 5000), part(100))
    position = 0
    for second in range(200, 250):
        budget = pace.budget(decodes)
        assert budget is not None
        tokens = min(budget.max_chunk_tokens(position), prompt - position)
        is_cut = position + tokens < prompt
        context = tokens * (position + tokens / 2) + sum(decodes) + len(decodes) / 2
        seconds = cost.of(tokens + len(decodes), context)
        run(pace, seconds, part(tokens, position), *map(decode, decodes), now=float(second))
        position = position + tokens if is_cut else 0
        assert not is_cut or seconds == pytest.approx(STALL_S, rel=0.1)


def test_what_a_prompt_token_costs_is_learned_without_a_bound_too() -> None:
    """The learned cost is that of a token behind half of its prompt: 512 tokens of context add half of its own cost."""
    pace = ChunkedPrefillBudget(None, context_parity=1024.0)
    assert pace.prompt_rate.token_s is None
    run(pace, 1536 * TOKEN_S, part(1024))
    assert pace.prompt_rate.token_s == pytest.approx(1.5 * TOKEN_S)


def test_a_typical_prompt_token_is_one_of_late() -> None:
    """What came 1,024 tokens ago counts for less by a quarter; decodes have contexts of their own."""
    pace = ChunkedPrefillBudget(None, context_parity=1024.0)
    run(pace, 1536 * TOKEN_S, part(1024))
    run(pace, (1024 * 3.5 + 1 + 1000.5 / 1024) * TOKEN_S, part(1024, 2048), decode(1000), now=200.0)
    before = math.exp(-1024 / REMEMBERED_TOKENS)
    assert pace.prompt_rate.token_s == pytest.approx((1.5 * before + 3.5) / (before + 1) * TOKEN_S)


def test_a_short_prompt_says_little_of_a_long_one() -> None:
    """A word of 20 tokens takes what an iteration takes; beside 1,000 tokens it counts as 20, before them and after."""
    pace = ChunkedPrefillBudget(None)
    run(pace, 500 * TOKEN_S, part(20))
    assert pace.prompt_rate.token_s == pytest.approx(25 * TOKEN_S)
    assert pace.prompt_rate.tokens == 20
    run(pace, 1500 * TOKEN_S, part(1000), now=200.0)
    assert pace.prompt_rate.token_s == pytest.approx(2 * TOKEN_S, rel=0.1)
    for number in range(3):
        run(pace, 500 * TOKEN_S, part(20), now=300.0 + number)
    assert pace.prompt_rate.token_s == pytest.approx(3.3 * TOKEN_S, rel=0.1)
    assert 900 < pace.prompt_rate.tokens < 1000


def test_a_profile_gives_the_token_cost_before_any_was_computed() -> None:
    """The cost is that of a prompt of usual length, with its iteration's fixed cost and half of its context."""
    profile = LinearIterationCost(512 * TOKEN_S, TOKEN_S, TOKEN_S / 1024, decode_s=5.0, decode_context_s=0.0)
    pace = ChunkedPrefillBudget(STALL_S, 1024.0, profile)
    assert pace.prompt_rate.token_s == pytest.approx((1 + 1 + 256 / 1024) * TOKEN_S)
    assert room(pace) == 33  # of 64 tokens' time, at 1.8 each and a decode, with what the part attends to


def test_what_was_computed_corrects_the_profile() -> None:
    """A measured iteration corrects the profile's estimate, which counts as 512 tokens."""
    pace = ChunkedPrefillBudget(None, profile=LinearIterationCost(0.0, TOKEN_S, 0.0, 0.0, 0.0))
    run(pace, 3.0, part(1024))
    before = math.exp(-1024 / REMEMBERED_TOKENS) * 512
    assert pace.prompt_rate.token_s == pytest.approx((before * TOKEN_S + 3.0) / (before + 1024))


def test_a_profile_of_nothing_gives_no_cost() -> None:
    assert ChunkedPrefillBudget(None, profile=LinearIterationCost(0.0, 0.0, 0.0, 1.0, 0.0)).prompt_rate.token_s is None


class TestInAWorker:
    """Chunked prefill in a worker's iterations."""

    def bench(self) -> WorkerBench:
        return WorkerBench(
            blocks=100,
            policy=WorkerPolicy(BatchLimits(), Reserve.MAX_TOKENS, prefix_caching=False, max_stall_s=STALL_S),
        )

    def test_a_long_prompt_is_computed_in_parts_beside_a_decode(self) -> None:
        """The first by a guess, the next by what the first has cost."""
        bench = self.bench()
        bench.decode("d")
        bench.prefill("p", prompt=200)
        assert row_of(bench.iterate(d=51), "p") == (0, 64)
        assert row_of(bench.iterate(after_s=65 * TOKEN_S, d=51), "p") == (64, 63)

    def test_a_long_prompt_alone_is_cut_and_a_decode_that_arrives_has_the_next_iteration(self) -> None:
        """It waits for one part of the prompt, which goes on beside it in smaller ones."""
        bench = self.bench()
        assert row_of(bench.prefill("p", prompt=1200), "p") == (0, ALONE_TOKENS)
        bench.decode("d")
        assert row_of(bench.iterate(after_s=ALONE_TOKENS * TOKEN_S), "d") == (30, 1)
        commands = bench.iterate(after_s=65 * TOKEN_S, d=51)
        assert row_of(commands, "d") == (31, 1)

    def test_of_a_long_prompt_that_is_cancelled_no_further_part_runs(self) -> None:
        """The next prompt has the next iteration; the blocks of the first are free by then."""
        bench = self.bench()
        bench.prefill("p", prompt=1200)
        bench.prefill("q", prompt=100)
        bench.feed(m.CancelRequest("p", 1))
        assert bench.role.load().pending_prompt_tokens == ALONE_TOKENS + 100
        assert rows(bench.iterate()) == ["q@1"]
        bench.feed(m.CancelRequest("q", 1))
        bench.iterate()
        bench.assert_empty()

    def test_of_a_long_prompt_whose_deadline_comes_no_further_part_runs(self) -> None:
        """The worker ends it at a tick, whatever the gateway does."""
        bench = self.bench()
        bench.start("p", prompt=1200)
        bench.load("p", deadline_unix_s=bench.now + 2.0)
        bench.prefill("q", prompt=100)
        bench.tick(after_s=2.5)
        assert rows(bench.iterate()) == ["q@1"]

    def test_first_come_first_served_a_newcomer_waits_for_a_long_prompt(self) -> None:
        """A part of it is not its end: that is FCFS's word."""
        bench = self.bench()
        bench.prefill("p", prompt=600)
        bench.prefill("q", prompt=100)
        assert rows(bench.iterate()) == ["p@1"]

    def test_by_priority_a_newcomer_passes_a_long_prompt_at_the_next_cut(self) -> None:
        """The long prompt gets what it leaves of that iteration."""
        policy = WorkerPolicy(BatchLimits(), prefix_caching=False, max_stall_s=STALL_S, scheduling=Scheduling.PRIORITY)
        bench = WorkerBench(blocks=100, policy=policy)
        bench.start("p", prompt=1200)
        bench.load("p", priority=1)
        bench.start("q", prompt=100)
        bench.load("q", priority=0)
        commands = bench.iterate(after_s=ALONE_TOKENS * TOKEN_S)
        assert rows(commands) == ["q@1", "p@1"]
        assert row_of(commands, "p") == (ALONE_TOKENS, ALONE_TOKENS - 100)

    def test_by_attained_service_a_newcomer_passes_a_long_prompt_at_the_next_cut(self) -> None:
        """With queues (FastServe) the long prompt, whose parts were charged, goes on behind it, and loses nothing computed."""
        policy = WorkerPolicy(
            BatchLimits(),
            prefix_caching=False,
            max_stall_s=STALL_S,
            scheduling=Scheduling.MLFQ,
            mlfq=MlfqPolicy(TOKEN_S),
            cost=LinearIterationCost(0.0, TOKEN_S, 0.0, 1.0, 0.0),
        )
        bench = WorkerBench(blocks=100, policy=policy)
        assert row_of(bench.prefill("p", prompt=1200), "p") == (0, ALONE_TOKENS)
        bench.prefill("q", prompt=100)
        commands = bench.iterate(after_s=ALONE_TOKENS * TOKEN_S)
        assert rows(commands) == ["q@1", "p@1"]
        assert row_of(commands, "p") == (ALONE_TOKENS, ALONE_TOKENS - 100)

    def test_without_a_bound_of_time_a_prompt_is_cut_to_the_cap(self) -> None:
        """And nothing computed is computed again."""
        limits = BatchLimits(max_prompt_tokens=500, cuts_prompts=True)
        bench = WorkerBench(blocks=100, limits=limits)
        assert row_of(bench.prefill("p", prompt=1200), "p") == (0, 500)
        assert row_of(bench.iterate(), "p") == (500, 500)
        assert row_of(bench.iterate(), "p") == (1000, 200)

    def test_a_prompt_alone_is_whole_and_teaches_what_a_token_costs(self) -> None:
        """The first prompt runs whole and teaches the token cost, which bounds the next prompt's chunk beside a decode."""
        bench = self.bench()
        assert row_of(bench.prefill("p", prompt=200), "p") == (0, 200)
        bench.decode("d")
        bench.prefill("q", prompt=100)
        assert row_of(bench.iterate(after_s=200 * TOKEN_S, p=50), "q") == (0, 63)

    def test_its_heartbeat_has_the_prompt_token_cost(self) -> None:
        bench = self.bench()
        bench.prefill("p", prompt=200)
        assert bench.role.load().prompt_token_s is None
        bench.iterate(after_s=200 * TOKEN_S, p=50)
        assert bench.role.load().prompt_token_s == pytest.approx(TOKEN_S)

    def test_with_a_profile_the_first_heartbeat_has_the_cost(self) -> None:
        bench = WorkerBench(policy=WorkerPolicy(cost=LinearIterationCost(0.0, TOKEN_S, 0.0, 1.0, 0.0)))
        assert bench.role.load().prompt_token_s == pytest.approx(TOKEN_S)
