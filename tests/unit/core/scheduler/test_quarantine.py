"""Pairs of workers that rest after failed hand-offs, and for how long."""

from __future__ import annotations

import pytest

from spotwise.core.messages.members import QuarantinedPair
from spotwise.core.scheduler.quarantine import FIRST_S, FORGOTTEN_S, LONGEST_S, TRIAL_S, Quarantine

BAD = ("p", "t")


def resting(now: float = 100.0) -> Quarantine:
    """A quarantine in which one pair rests since `now`."""
    quarantine = Quarantine()
    quarantine.failed(BAD, now)
    quarantine.failed(BAD, now)
    return quarantine


@pytest.fixture
def quarantine() -> Quarantine:
    return resting()


def test_one_failure_is_no_bad_pair() -> None:
    """The second failure puts a pair into quarantine for a while, the first does not."""
    quarantine = Quarantine()
    quarantine.failed(BAD, 100.0)
    assert quarantine.avoided(100.0) == frozenset()
    quarantine.failed(BAD, 101.0)
    assert quarantine.avoided(101.0) == {BAD}
    assert quarantine.shown(101.0) == (QuarantinedPair("p", "t", 2, 101.0 + FIRST_S),)
    assert quarantine.avoided(101.0 + FIRST_S) == frozenset()


def test_a_success_in_between_clears_a_pair() -> None:
    quarantine = Quarantine()
    quarantine.failed(BAD, 100.0)
    quarantine.succeeded(BAD, placed_s=99.0)
    assert quarantine
    quarantine.succeeded(BAD, placed_s=101.0)
    assert not quarantine
    quarantine.succeeded(BAD, placed_s=102.0)
    quarantine.failed(BAD, 103.0)
    assert quarantine.avoided(103.0) == frozenset()


def test_attempts_of_before_that_fail_late_prolong_nothing(quarantine: Quarantine) -> None:
    for _ in range(20):
        quarantine.failed(BAD, 105.0)
    assert quarantine.shown(105.0) == (QuarantinedPair("p", "t", 22, 100.0 + FIRST_S),)


def test_a_pair_is_tried_with_one_request_afterwards(quarantine: Quarantine) -> None:
    """During its trial a pair is avoided by other requests; after it, the pair is like any other."""
    now = 100.0 + FIRST_S
    assert quarantine.avoided(now) == frozenset()
    quarantine.tried(BAD, now)
    assert quarantine.avoided(now + 1.0) == {BAD}
    assert quarantine.avoided(now + TRIAL_S) == frozenset()
    quarantine.tried(BAD, now + TRIAL_S)
    assert quarantine.avoided(now + TRIAL_S) == frozenset()


def test_each_rest_is_twice_as_long_up_to_a_bound(quarantine: Quarantine) -> None:
    now, lengths = 100.0, []
    for _ in range(8):
        (shown,) = quarantine.shown(now)
        lengths.append(shown.until_s - now)
        now = shown.until_s
        quarantine.tried(BAD, now)
        now += 1.0
        quarantine.failed(BAD, now)
    assert lengths[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert lengths[-1] == LONGEST_S


def test_a_trial_that_goes_well_ends_it(quarantine: Quarantine) -> None:
    now = 100.0 + FIRST_S
    quarantine.tried(BAD, now)
    quarantine.succeeded(BAD, placed_s=now)
    assert not quarantine


def test_a_worker_that_is_gone_takes_its_pairs_along(quarantine: Quarantine) -> None:
    """The worker's successor has a link of its own, and other pairs stay in quarantine."""
    quarantine.failed(("p", "u"), 100.0)
    quarantine.failed(("p", "u"), 100.0)
    quarantine.forget("t")
    assert quarantine.avoided(100.0) == {("p", "u")}
    quarantine.forget("p")
    assert not quarantine


def test_old_news_is_forgotten(quarantine: Quarantine) -> None:
    """Old failures are forgotten, so that no pair's history is kept for ever."""
    quarantine.expire(100.0 + FIRST_S + FORGOTTEN_S - 1.0)
    assert quarantine
    quarantine.expire(100.0 + FIRST_S + FORGOTTEN_S)
    assert not quarantine
