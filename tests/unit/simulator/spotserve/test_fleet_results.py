"""Figures of a fleet's answers."""

from __future__ import annotations

import pytest

from spotwise.simulator.spotserve.serving import figures_of


def test_nothing_has_no_figures() -> None:
    """An empty list has no figures; otherwise mean, percentiles and maximum are given."""
    assert figures_of([]) == {}
    assert figures_of([1.0, 3.0]) == {
        "mean": 2.0,
        "p50": 2.0,
        "p90": pytest.approx(2.8),
        "p99": pytest.approx(2.98),
        "max": 3.0,
    }
