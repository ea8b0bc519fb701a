"""How long answers take."""

from __future__ import annotations

import pytest

from spotwise.core.scheduler.answer_times import ENOUGH, REMEMBERED, AnswerTimes


def test_any_length_up_to_the_longest_is_likely_until_answers_have_ended() -> None:
    """Their mean is half of the longest."""
    times = AnswerTimes(0.05)
    assert times.lengths(1000).seconds == pytest.approx((6.25, 18.75, 31.25, 43.75))
    for _ in range(ENOUGH - 1):
        times.ended(1000, 1.0)
    assert times.lengths(1000).seconds == pytest.approx((6.25, 18.75, 31.25, 43.75))


def test_answers_that_ended_tell_the_times_of_those_to_come() -> None:
    """Of requests with about as many new tokens; others are unknown."""
    times = AnswerTimes(0.05)
    for number in range(ENOUGH):
        times.ended(1000, float(number))
    assert times.lengths(600).seconds == (2.0, 6.0, 10.0, 14.0)
    assert times.lengths(10).seconds == pytest.approx((0.0625, 0.1875, 0.3125, 0.4375))


def test_only_the_last_answers_count() -> None:
    """A mesh that has become slower is believed."""
    times = AnswerTimes(0.05)
    for seconds in [1.0] * REMEMBERED + [9.0] * REMEMBERED:
        times.ended(1000, seconds)
    assert times.lengths(1000).seconds == (9.0, 9.0, 9.0, 9.0)


def test_a_clock_that_was_set_back_gives_no_time_below_zero() -> None:
    times = AnswerTimes(0.05)
    for _ in range(ENOUGH):
        times.ended(8, -3.0)
    assert times.lengths(8).seconds == (0.0, 0.0, 0.0, 0.0)
