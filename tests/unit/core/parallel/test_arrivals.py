"""How fast requests come, and how unevenly."""

from __future__ import annotations

import pytest

from spotwise.core.parallel.arrivals import ArrivalWindow


def filled(*at_s: float, expected_rate: float | None = None) -> ArrivalWindow:
    window = ArrivalWindow(30.0, started_s=0.0, expected_rate=expected_rate)
    for moment_s in at_s:
        window.add(moment_s)
    return window


def test_only_the_last_half_minute_counts() -> None:
    """A request of just thirty seconds ago has left; the window is (now - 30, now]."""
    window = filled(*range(0, 100, 2))
    assert window.rate(98.0) == pytest.approx(15 / 30)


def test_an_empty_window_has_no_rate() -> None:
    window = filled(1.0, 2.0)
    assert (window.rate(40.0), window.cv(40.0)) == (0.0, None)


def test_a_window_that_is_younger_counts_over_its_age() -> None:
    """Ten requests in ten seconds are one a second, not a third."""
    assert filled(*range(1, 11)).rate(10.0) == pytest.approx(1.0)


def test_the_first_request_alone_is_no_flood() -> None:
    assert filled(0.1).rate(0.1) == pytest.approx(0.2)


def test_what_has_not_been_watched_counts_as_expected() -> None:
    """The expected rate counts for the unobserved part of the window: all of it at the start, none after 30 s."""
    window = ArrivalWindow(30.0, started_s=100.0, expected_rate=2.0)
    assert window.rate(100.0) == pytest.approx(2.0)
    assert window.rate(115.0) == pytest.approx(1.0)
    assert window.rate(130.0) == 0.0


def test_a_clock_has_no_variation_and_two_that_come_at_once_have_some() -> None:
    """Gaps of 1 s have a variation of 0; gaps of 0 s and 2 s in turn have a deviation equal to their mean."""
    assert filled(*range(1, 20)).cv(20.0) == pytest.approx(0.0)
    assert filled(1, 1, 3, 3, 5, 5, 7, 7, 9).cv(9.0) == pytest.approx(1.0)


def test_few_requests_have_no_variation() -> None:
    """Four gaps do; requests that all came at once do not, since their gaps have no mean."""
    assert filled(1, 2, 3, 4).cv(4.0) is None
    assert filled(1, 2, 3, 4, 5).cv(5.0) is not None
    assert filled(*[3.0] * 9).cv(4.0) is None


def test_a_request_that_is_counted_late_counts_at_its_own_time() -> None:
    """It leaves before the later one that was counted first, and the gaps are as if they had been counted in order."""
    window = filled(5.0, 4.0)
    assert window.rate(33.9) == pytest.approx(2 / 30)
    assert window.rate(34.5) == pytest.approx(1 / 30)
    assert window.rate(35.0) == 0.0
    assert filled(1, 3, 2, 5, 4).cv(5.0) == pytest.approx(0.0)


def test_merged_requests_count_in_any_order() -> None:
    """What has left the window by now is dropped, and what came before the watch began."""
    window = ArrivalWindow(30.0, started_s=100.0)
    window.merge([104.0, 102.0, 99.9], 105.0)
    window.merge([103.0, 101.0, 105.0], 105.0)
    assert window.rate(105.0) == pytest.approx(5 / 5)
    assert window.cv(105.0) == pytest.approx(0.0)
    window.merge([106.0, 140.0], 140.0)
    assert window.rate(140.0) == pytest.approx(1 / 30)
