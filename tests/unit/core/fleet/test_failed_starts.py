"""Offers whose instances do not start rest, longer each time, and are tried with one instance at a time."""

from __future__ import annotations

from spotwise.core.fleet.keeper.failed_starts import BREAKER, LONGEST_S, FailedStarts
from spotwise.core.messages.fleet import Market

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
KEY = ("small", SPOT, "a")


def test_an_offer_rests_as_long_as_the_instance_was_paid_and_then_twice_as_long() -> None:
    """Instances that were launched together are one failure of it."""
    failed, now = FailedStarts(30.0), 1000.0
    for launched_s in (900.0, 900.5):
        failed.failed("small", SPOT, "a", launched_s, now)
    assert failed.until(KEY, now)[0] == now + 100.0
    assert failed.until(KEY, now + 100.0) == (0.0, "")
    failed.failed("small", SPOT, "a", 1100.0, 1200.0)
    assert failed.until(KEY, 1200.0)[0] == 1400.0


def test_one_that_ends_at_once_rests_as_after_a_refusal() -> None:
    failed = FailedStarts(30.0)
    failed.failed("small", SPOT, "a", 999.0, 1000.0)
    assert failed.until(KEY, 1000.0)[0] == 1030.0


def test_the_rest_has_a_longest() -> None:
    failed, now = FailedStarts(30.0), 1000.0
    for _ in range(50):
        failed.failed("small", SPOT, "a", now, now + 1)
        now = failed.until(KEY, now + 1)[0] + 1
    failed.failed("small", SPOT, "a", now, now + 1)
    assert failed.until(KEY, now + 1)[0] == now + 1 + LONGEST_S


def test_another_zone_or_market_is_tried_until_enough_have_failed_in_a_row() -> None:
    """Then all offers of the type rest, and other types do not."""
    failed, now = FailedStarts(30.0), 1000.0
    for number in range(BREAKER):
        assert failed.until(("small", SPOT, "b"), now) == (0.0, "")
        assert not failed.is_open("small")
        failed.failed("small", SPOT, "a", now - 10 + number, now)
    assert failed.is_open("small")
    for key in (("small", SPOT, "b"), ("small", ON_DEMAND, "")):
        until_s, words = failed.until(key, now)
        assert until_s > now
        assert f"late: {BREAKER} in a row were not ready" in words
    assert failed.until(("other", SPOT, "a"), now) == (0.0, "")


def test_an_offer_without_zones_rests_with_any_of_them_and_one_of_a_zone_for_a_place_that_is_not_known() -> None:
    failed = FailedStarts()
    failed.failed("small", SPOT, "a", 999.0, 1000.0)
    assert failed.until(("small", SPOT, ""), 1000.0)[0] > 1000.0
    failed = FailedStarts()
    failed.failed("small", SPOT, "", 999.0, 1000.0)
    assert failed.until(("small", SPOT, "b"), 1000.0)[0] > 1000.0


def test_an_instance_that_becomes_ready_ends_it() -> None:
    failed, now = FailedStarts(), 1000.0
    for _ in range(BREAKER):
        failed.failed("small", SPOT, "a", now - 1, now)
    failed.started("small", SPOT, "a")
    assert failed.in_a_row("small") == 0
    assert failed.until(KEY, now) == (0.0, "")
    assert failed.kept() == ()


def test_a_successor_knows_the_same() -> None:
    failed, now = FailedStarts(), 1000.0
    for number in range(BREAKER):
        failed.failed("small", SPOT, "a", now - 10 + number, now)
    after = FailedStarts(kept=failed.kept())
    assert after.kept() == failed.kept()
    assert after.is_open("small")
    assert after.until(KEY, now) == failed.until(KEY, now)
