"""What holds of a configuration that is kept, whatever load an adversary brings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.fleet.kept_choice import ChangeSeconds, KeptChoice, LearnedSpan
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ConfigChoice
from spotwise.core.parallel.policy import Policy

POLICY = Policy(latency_slack=0.0)
GAIN, HOLD_S = 0.1, 30.0


@dataclass(frozen=True)
class Fleet:
    """Configurations by the greatest rate that each serves; with a rate a request waits as before one server."""

    greatest_rates: tuple[float, ...]
    execution_s: tuple[float, ...]

    def figures(self, number: int, rate: float) -> ConfigChoice:
        """Return a configuration's figures for a load."""
        most, alone_s = self.greatest_rates[number], self.execution_s[number]
        request_s = alone_s / (1 - rate / most) if rate < most else inf
        return ConfigChoice(ParallelConfig(1, number + 1, 1), (), alone_s, request_s, most, 0.0, rate <= most)

    def best(self, numbers: list[int], rate: float) -> ConfigChoice:
        """Return the optimizer's answer of some: the fastest that keeps up, else the greatest throughput."""
        found = [self.figures(number, rate) for number in numbers]
        keeping_up = [each for each in found if each.meets_demand]
        if keeping_up:
            return min(keeping_up, key=lambda each: each.request_s)
        return max(found, key=lambda each: each.throughput)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Two to four configurations."""
    count = draw(st.integers(2, 4))
    rates = draw(st.lists(st.floats(0.5, 4.0), min_size=count, max_size=count, unique=True))
    seconds = draw(st.lists(st.floats(0.5, 20.0), min_size=count, max_size=count))
    return Fleet(tuple(rates), tuple(seconds))


CHANGES = st.builds(ChangeSeconds, st.floats(0.0, 60.0), st.floats(0.0, 30.0))
#: Seconds between two looks, and the rate at the second.
LOADS = st.lists(st.tuples(st.floats(0.1, 60.0), st.floats(0.0, 5.0)), min_size=1, max_size=80)


@given(fleets(), LOADS, CHANGES)
@settings(max_examples=300)
def test_changes_are_bounded_whatever_the_load_does(
    fleet: Fleet, loads: list[tuple[float, float]], change: ChangeSeconds
) -> None:
    """A change for less latency comes `hold_s` after any other at the earliest; between two such, those for more throughput
    only go up. So in T seconds there are T / `hold_s` + 1 times as many as configurations, at most.
    """
    kept, now, changes = KeptChoice(GAIN, HOLD_S), 0.0, 0
    numbers = list(range(len(fleet.greatest_rates)))
    for seconds, rate in loads:
        now += seconds
        before = kept.choice
        current = None if before is None else fleet.figures(before.config.pipeline - 1, rate)
        after = kept.update(fleet.best(numbers, rate), current, POLICY, now, change=change)
        assert after is not None
        changes += before is not None and after.config != before.config
    assert changes <= len(numbers) * (now / HOLD_S + 1)


@given(fleets(), LOADS, CHANGES, st.data())
@settings(max_examples=200)
def test_nothing_that_cannot_serve_is_kept(
    fleet: Fleet, loads: list[tuple[float, float]], change: ChangeSeconds, data: st.DataObject
) -> None:
    """What cannot be had, or serves too little where another serves more, is replaced at once, however short choices last."""
    kept, now = KeptChoice(GAIN, HOLD_S), 0.0
    numbers = list(range(len(fleet.greatest_rates)))
    for seconds, rate in loads:
        now += seconds
        there = data.draw(st.lists(st.sampled_from(numbers), unique=True))
        new = fleet.best(there, rate) if there else None
        before = kept.choice
        has_it = before is not None and before.config.pipeline - 1 in there
        current = fleet.figures(before.config.pipeline - 1, rate) if before is not None and has_it else None
        after = kept.update(new, current, POLICY, now, change=change)
        assert (after is None) == (new is None)
        if after is not None and new is not None:
            assert after.config.pipeline - 1 in there
            assert after.meets_demand or after.throughput == new.throughput


@given(
    st.floats(1.0, 20.0),
    st.floats(0.1, 0.8),
    CHANGES,
    st.lists(st.floats(0.5, 100.0), max_size=20),
    st.floats(0.5, 10.0),
)
def test_what_stays_better_is_taken_in_the_end(
    current_s: float, gained: float, change: ChangeSeconds, spans_s: list[float], look_s: float
) -> None:
    """However short choices have lasted before: once the load and the fleet stay, the better one comes when it pays."""
    slow = ConfigChoice(ParallelConfig(1, 1, 1), (), current_s, current_s, 5.0, 0.0, meets_demand=True)
    fast = replace(slow, config=ParallelConfig(1, 2, 1), request_s=current_s * (1 - gained - 0.01))
    kept, now = KeptChoice(GAIN, HOLD_S), 0.0
    for span_s in spans_s:
        for best in (fast, slow):
            now += span_s
            kept.update(best, slow if kept.choice == slow else None, POLICY, now, change=change)
    kept.update(slow, None, POLICY, now)
    began_s = now
    pays_s = change.forms_s + change.pause_s * (current_s + change.pause_s / 2) / (current_s - fast.request_s)
    while kept.choice == slow:
        now += look_s
        kept.update(fast, slow, POLICY, now, change=change)
        assert now - began_s <= pays_s + HOLD_S + 3 * look_s


@given(st.lists(st.floats(0.0, 1e4), min_size=2, max_size=30))
def test_a_span_is_expected_within_those_that_were_or_its_own_age(gaps_s: list[float]) -> None:
    span, now = LearnedSpan(), 0.0
    for gap_s in gaps_s:
        now += gap_s
        span.ended(now)
    spans_s = [gap_s for gap_s in gaps_s[1:] if gap_s > 0]
    longest_s = max(spans_s, default=0.0)
    assert span.expected_s(now) <= longest_s * (1 + 1e-9)
    assert span.expected_s(now + 2 * longest_s + 1.0) >= 2 * longest_s + 1.0 - 1e-6
