"""How many prompt tokens may join those that decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.batching import BatchLimits
from spotwise.core.worker.pace import MIN_TOKENS, Pace
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from tests.unit.core.worker.bench import WorkerBench, row_of

STALL_S = 1 / 16
TOKEN_S = 1 / 1024


def run(pace: Pace, tokens: int, seconds: float, now: float = 100.0) -> None:
    """One iteration of nothing but a prompt."""
    pace.ordered(tokens, tokens, now)
    pace.ended(now + seconds)


def test_a_prompt_alone_runs_whole() -> None:
    """It holds up nobody."""
    pace = Pace(STALL_S)
    run(pace, 1024, 1.0)
    assert pace.prompt_tokens(decodes=0) is None


def test_without_a_bound_prompts_run_whole_beside_decodes_too() -> None:
    """Whatever they cost."""
    pace = Pace(None)
    run(pace, 1024, 1.0)
    assert pace.prompt_tokens(decodes=4) is None


def test_a_prompt_is_cut_to_what_the_device_computes_in_time() -> None:
    """A sixteenth of a second is 64 tokens here, of which the decodes have their own."""
    pace = Pace(STALL_S)
    run(pace, 1024, 1.0)
    assert pace.prompt_tokens(decodes=1) == 63
    assert pace.prompt_tokens(decodes=3) == 61


def test_a_slow_device_still_goes_on() -> None:
    """However long that takes and however many decode."""
    pace = Pace(STALL_S)
    run(pace, 100, 10.0)
    assert pace.prompt_tokens(decodes=200) == MIN_TOKENS


def test_decodes_alone_say_nothing_of_what_prompts_cost() -> None:
    """They read all weights for a few tokens."""
    pace = Pace(STALL_S)
    run(pace, 1024, 1.0)
    pace.ordered(4, 0, 200.0)
    pace.ended(200.1)
    assert pace.prompt_tokens(decodes=1) == 63


def test_iterations_that_overlap_are_not_counted_twice() -> None:
    """The second of a pipeline begins when the first has ended."""
    pace = Pace(STALL_S)
    pace.ordered(1024, 1024, 10.0)
    pace.ordered(1024, 1024, 10.0)
    pace.ended(11.0)
    pace.ended(12.0)
    assert pace.prompt_tokens(decodes=1) == 63


def test_a_clock_that_was_set_back_teaches_nothing() -> None:
    """Nor does it divide by it."""
    pace = Pace(STALL_S)
    run(pace, 1024, 1.0)
    run(pace, 1024, -3600.0)
    assert pace.prompt_tokens(decodes=1) == 63


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.floats(-1.0, 100.0)), max_size=20),
    st.integers(1, 300),
    st.floats(1e-3, 1.0),
)
def test_there_is_always_room_for_some_tokens(past: list[tuple[int, float]], decodes: int, max_stall_s: float) -> None:
    """Whatever was measured."""
    pace = Pace(max_stall_s)
    for tokens, seconds in past:
        run(pace, tokens, seconds)
    room = pace.prompt_tokens(decodes)
    assert room is not None
    assert room >= MIN_TOKENS


def test_a_steady_device_is_learned() -> None:
    """After some iterations parts take the time that they may take, whatever was measured first."""
    pace = Pace(STALL_S)
    run(pace, 1024, 60.0, now=0.0)  # a cold start
    for second in range(60):
        tokens = pace.prompt_tokens(decodes=1) or 0
        run(pace, tokens, tokens * TOKEN_S, now=100.0 + second)
    assert pace.prompt_tokens(decodes=1) in (62, 63)  # from above, and for ever a little above


class TestInAWorker:
    """What a worker's iterations make of it."""

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

    def test_a_prompt_alone_is_whole_and_teaches_what_a_token_costs(self) -> None:
        """So the next one, beside a decode, needs no guess."""
        bench = self.bench()
        assert row_of(bench.prefill("p", prompt=200), "p") == (0, 200)
        bench.decode("d")
        bench.prefill("q", prompt=100)
        assert row_of(bench.iterate(after_s=200 * TOKEN_S, p=50), "q") == (0, 63)


def test_a_bound_of_nothing_is_refused() -> None:
    """It would allow no prompt at all."""
    with pytest.raises(ValueError, match="max_stall_s"):
        WorkerPolicy(max_stall_s=0.0)
