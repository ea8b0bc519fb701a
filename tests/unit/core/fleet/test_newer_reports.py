"""Which of two reports of the fleet is the newer one."""

from __future__ import annotations

from spotwise.core.messages.fleet import FleetReported


def report(watcher_id: str, incarnation: int, at_s: float) -> FleetReported:
    return FleetReported(watcher_id, incarnation, at_s, "fake")


def test_of_one_watcher_the_later_incarnation_is_newer_whatever_its_clock_says() -> None:
    assert report("a", 2, 100.0).is_newer_than(report("a", 1, 200.0))
    assert not report("a", 1, 200.0).is_newer_than(report("a", 2, 100.0))


def test_of_two_watchers_the_later_report_is_newer_whatever_their_incarnations() -> None:
    """Watchers count their incarnations apart from each other."""
    assert report("a", 1, 200.0).is_newer_than(report("b", 2, 100.0))
    assert not report("b", 2, 100.0).is_newer_than(report("a", 1, 200.0))
