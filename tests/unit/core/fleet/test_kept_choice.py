"""When a configuration is replaced."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.fleet.kept_choice import ChangeSeconds, KeptChoice
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ConfigChoice
from spotwise.core.parallel.policy import Policy

POLICY = Policy(latency_slack=0.25)
USUAL = ConfigChoice(ParallelConfig(1, 1, 1), (), 1.0, 2.0, 5.0, 10.0, meets_demand=True)


def kept(choice: ConfigChoice | None = USUAL) -> KeptChoice:
    found = KeptChoice(gain=0.1, hold_s=30.0)
    found.take(choice)
    return found


def test_the_first_choice_is_taken_and_one_that_cannot_be_had_is_replaced() -> None:
    other = replace(USUAL, price_per_h=50.0)
    assert kept(None).update(USUAL, None, POLICY, 0.0) == USUAL
    assert kept().update(other, None, POLICY, 0.0) == other
    assert kept().update(None, None, POLICY, 0.0) is None


def test_a_better_choice_replaces_one_that_serves_after_a_while() -> None:
    """A tenth cheaper for thirty seconds without a break."""
    cheaper = replace(USUAL, price_per_h=8.9)
    choice = kept()
    assert choice.update(cheaper, USUAL, POLICY, 0.0) == USUAL
    assert choice.update(cheaper, USUAL, POLICY, 29.0) == USUAL
    assert choice.update(USUAL, USUAL, POLICY, 29.5) == USUAL
    assert choice.update(cheaper, USUAL, POLICY, 31.0) == USUAL
    assert choice.update(cheaper, USUAL, POLICY, 60.9) == USUAL
    assert choice.update(cheaper, USUAL, POLICY, 61.0) == cheaper
    assert choice.choice == cheaper


def test_a_little_cheaper_is_not_better() -> None:
    choice = kept()
    for at_s in (0.0, 100.0, 200.0):
        assert choice.update(replace(USUAL, price_per_h=9.1), USUAL, POLICY, at_s) == USUAL


def test_faster_at_no_higher_price_is_better() -> None:
    faster = replace(USUAL, request_s=1.75)
    for new, is_taken in ((faster, True), (replace(faster, price_per_h=10.5), False)):
        choice = kept()
        choice.update(new, USUAL, POLICY, 0.0)
        assert (choice.update(new, USUAL, POLICY, 30.0) == new) == is_taken


def test_what_is_too_slow_is_replaced_at_a_higher_price() -> None:
    fast = replace(USUAL, request_s=1.0, price_per_h=30.0)
    for policy, is_taken in ((POLICY, True), (replace(POLICY, latency_target_s=3.0), False)):
        choice = kept()
        choice.update(fast, USUAL, policy, 0.0)
        assert (choice.update(fast, USUAL, policy, 30.0) == fast) == is_taken


def test_one_that_does_not_meet_the_demand_is_replaced_at_once_by_more_throughput() -> None:
    slow = replace(USUAL, meets_demand=False)
    more = replace(USUAL, throughput=6.0, meets_demand=False, price_per_h=90.0)
    assert kept().update(more, slow, POLICY, 0.0) == more
    assert kept().update(replace(more, throughput=5.0), slow, POLICY, 0.0) == slow
    assert kept().update(replace(more, throughput=4.0, price_per_h=1.0), slow, POLICY, 0.0, is_held=False) == slow


def test_one_that_is_not_held_yet_does_not_wait_and_one_out_of_reach_is_not_taken() -> None:
    cheaper = replace(USUAL, price_per_h=5.0)
    assert kept().update(cheaper, USUAL, POLICY, 0.0, is_held=False) == cheaper
    choice = kept()
    for at_s in (0.0, 100.0):
        assert choice.update(cheaper, USUAL, POLICY, at_s, is_reachable=False) == USUAL


#: Fast up to a rate that is exceeded every other minute; slower, for any rate.
FAST = replace(USUAL, request_s=1.6)
AMPLE = replace(USUAL, config=ParallelConfig(1, 2, 1), throughput=9.0)


def alternating(change: ChangeSeconds, minutes: int) -> int:
    """Return how often a choice changes where every other minute's load is too much for the faster one."""
    choice, changes = kept(FAST), 0
    for second in range(0, 60 * minutes, 5):
        is_heavy = second // 60 % 2 == 1
        fast = replace(FAST, meets_demand=not is_heavy)
        before = choice.choice
        assert before is not None
        current = fast if before.config == FAST.config else AMPLE
        after = choice.update(AMPLE if is_heavy else fast, current, POLICY, float(second), change=change)
        assert after is not None and (after.meets_demand or not is_heavy)
        changes += after.config != before.config
    return changes


def test_a_load_that_alternates_does_not_change_it_where_that_does_not_pay() -> None:
    """A fifth of two seconds, for some minutes at most, pays for a pause of a second, and not for one of a minute."""
    assert alternating(ChangeSeconds(pause_s=60.0), 20) == 1
    assert alternating(ChangeSeconds(forms_s=130.0), 20) == 1
    assert alternating(ChangeSeconds(1.0, 1.0), 20) > 10


def test_what_has_been_the_best_for_long_is_expected_to_stay_it() -> None:
    """A gain of 0.4 s pays for a pause of a minute, which costs 60 x (2 + 30) s, once it has lasted for 4800 s."""
    fast = replace(FAST, config=ParallelConfig(1, 2, 1))
    choice, change = kept(None), ChangeSeconds(pause_s=60.0)
    for second in (0.0, 60.0, 120.0):
        choice.update(USUAL if second else fast, None, POLICY, second)
    taken_s = next(
        second
        for second in range(200, 7200, 10)
        if choice.update(fast, USUAL, POLICY, float(second), change=change) == fast
    )
    assert 200 + 4800 + 30 <= taken_s <= 200 + 4800 + 30 + 20
