"""Requests by time."""

from __future__ import annotations

import pytest

from spotwise.simulator.spotserve.arrivals import SpotArrivals


def test_arrivals_made_by_hand_are_in_order() -> None:
    """Arrivals must be in order and have tokens; without two gaps they have no coefficient of variation."""
    with pytest.raises(ValueError, match="not in order"):
        SpotArrivals("back", (2.0, 1.0))
    with pytest.raises(ValueError, match="at least one token"):
        SpotArrivals("empty", (1.0,), 0, 1)
    assert SpotArrivals("one", (1.0,)).cv is None
    assert SpotArrivals("none", ()).rate == 0.0


def test_requests_may_differ_in_size() -> None:
    """Each keeps its own size where the arrivals are cut; all have sizes, or none."""
    arrivals = SpotArrivals("mixed", (0.0, 1.0, 2.0), 20, 5, ((10, 5), (30, 4), (20, 6)))
    assert arrivals.until(1.5).request_sizes() == ((10, 5), (30, 4))
    assert arrivals.largest_tokens == 34
    assert SpotArrivals("one size", (0.0, 1.0), 20, 5).request_sizes() == ((20, 5), (20, 5))
    with pytest.raises(ValueError, match="3 requests, and sizes of 1"):
        SpotArrivals("mixed", (0.0, 1.0, 2.0), 20, 5, ((10, 5),))
    with pytest.raises(ValueError, match="at least one token"):
        SpotArrivals("mixed", (0.0,), 20, 5, ((10, 0),))
