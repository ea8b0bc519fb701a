"""The load of several gateways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.fleet.demand import KNOWN_S, DemandWindow
from spotwise.core.messages.fleet import LoadReported
from spotwise.core.parallel.policy import ServiceDemand


def report(
    number: int, *arrivals_s: float, gateway: str = "g", incarnation: int = 1, prompt_tokens: int = 0
) -> LoadReported:
    return LoadReported(gateway, incarnation, number, arrivals_s, prompt_tokens)


def steady(window: DemandWindow, until_s: int) -> None:
    """One request in the middle of each second, reported at its end."""
    for second in range(until_s):
        window.add(report(second + 1, second + 0.5, prompt_tokens=10), second + 1.0)


@pytest.fixture
def window() -> DemandWindow:
    return DemandWindow()


def test_a_window_without_reports_knows_nothing() -> None:
    """Until tokens are known they are as given; arrivals without a variation are Poisson's."""
    window = DemandWindow(input_tokens=700, output_tokens=50)
    assert not window.is_known(1000.0)
    assert window.demand(1000.0) == ServiceDemand(0.0, 1.0, 700, 50)
    assert DemandWindow().demand(1000.0) == ServiceDemand(0.0)


def test_the_load_is_known_for_some_seconds_after_a_report(window: DemandWindow) -> None:
    """An empty report suffices, for an idle gateway is known to be idle."""
    window.add(report(1), 100.0)
    assert window.is_known(100.0 + KNOWN_S)
    assert not window.is_known(100.1 + KNOWN_S)


def test_the_first_seconds_are_not_taken_for_the_whole_window(window: DemandWindow) -> None:
    """A request a second is a rate of one from five seconds on, and of less before, never of a thirtieth."""
    steady(window, 3)
    assert window.rate(3.0) == pytest.approx(3 / 5)
    window = DemandWindow()
    steady(window, 10)
    assert window.rate(10.0) == pytest.approx(1.0)
    window = DemandWindow()
    steady(window, 100)
    assert window.rate(100.0) == pytest.approx(1.0)
    assert window.cv(100.0) == pytest.approx(0.0)


def test_a_repeated_or_overtaken_report_is_ignored(window: DemandWindow) -> None:
    """Numbers ascend within an incarnation; a restarted gateway begins again at 1."""
    window.add(report(2, 9.8), 10.0)
    for number in (1, 2):
        window.add(report(number, 9.9), 10.0)
    window.add(report(1, 9.7, incarnation=2), 10.0)
    window.add(report(3, 9.6), 10.0)
    window.add(report(2, 9.5, gateway="h"), 10.0)
    assert window.rate(10.0) == pytest.approx(3 / 5)


def test_an_ignored_report_does_not_make_the_load_known(window: DemandWindow) -> None:
    window.add(report(1), 100.0)
    window.add(report(1), 109.0)
    assert not window.is_known(111.0)


def test_a_clock_that_is_ahead_keeps_its_gaps(window: DemandWindow) -> None:
    """An hour ahead, the last of its arrivals is now. Within a second, clocks are taken as they are."""
    window.add(report(1), 90.0)
    window.add(report(2, *(3600.0 + 90.0 + step for step in range(9))), 98.0)
    assert window.cv(98.0) == pytest.approx(0.0)
    assert window.rate(98.0 + 29.9) == pytest.approx(1 / 30)
    window = DemandWindow()
    window.add(report(1, 98.9), 98.0)
    assert window.rate(128.5) == pytest.approx(1 / 30)


def test_what_came_before_the_first_report_heard_is_not_counted_over_a_short_time(window: DemandWindow) -> None:
    """Half a minute of requests in a first report is no burst."""
    window.add(report(7, *(70.5 + step for step in range(30))), 100.0)
    assert window.rate(100.0) == pytest.approx(1 / 5)


def test_tokens_are_the_means_of_the_window(window: DemandWindow) -> None:
    """Those that are too old leave when others come; without others, the last ones are kept."""
    window.add(LoadReported("g", 1, 1, (0.5,), 900, 1, 90), 1.0)
    window.add(LoadReported("g", 1, 2, (1.5, 1.6, 1.7), 300, 3, 30), 2.0)
    assert (window.input_tokens, window.output_tokens) == (300, 30)
    window.add(LoadReported("g", 1, 3, (31.0,), 500), 31.5)
    assert (window.input_tokens, window.output_tokens) == (200, 30)
    assert window.demand(500.0) == ServiceDemand(0.0, 1.0, 200, 30)


def test_a_request_has_at_least_one_token(window: DemandWindow) -> None:
    """A sequence that a stop string ends with its first token has few; the optimizer needs one."""
    window.add(LoadReported("g", 1, 1, (0.5,), 0, 1, 0), 1.0)
    assert (window.input_tokens, window.output_tokens) == (1, 1)


def test_late_requests_count_once_more_each_window() -> None:
    """A queue of 60 takes two requests a second for a window of 30 s; a later report, or silence, ends it."""
    window = DemandWindow(30.0)
    window.add(replace(report(1), late=45), 100.0)
    window.add(replace(report(1, gateway="h"), late=15), 100.0)
    assert window.rate(100.0) == pytest.approx(2.0)
    assert window.demand(100.0).arrival_rate == pytest.approx(2.0)
    window.add(report(2), 105.0)
    assert window.rate(105.0) == pytest.approx(0.5)
    assert window.rate(100.1 + KNOWN_S) == 0.0
