"""Requests by time, figures of their answers, and shapes of models."""

from __future__ import annotations

import pytest

from spotwise.cli.plan.model_shapes import PAPER_SHAPES
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.serving import figures_of


def test_arrivals_made_by_hand_are_in_order() -> None:
    with pytest.raises(ValueError, match="not in order"):
        SpotArrivals("back", (2.0, 1.0))
    with pytest.raises(ValueError, match="at least one token"):
        SpotArrivals("empty", (1.0,), 0, 1)
    assert SpotArrivals("one", (1.0,)).cv is None
    assert SpotArrivals("none", ()).rate == 0.0


def test_requests_may_differ_in_size() -> None:
    arrivals = SpotArrivals("mixed", (0.0, 1.0, 2.0), 20, 5, ((10, 5), (30, 4), (20, 6)))
    assert arrivals.until(1.5).request_sizes() == ((10, 5), (30, 4))
    assert arrivals.largest_tokens == 34
    assert SpotArrivals("one size", (0.0, 1.0), 20, 5).request_sizes() == ((20, 5), (20, 5))
    with pytest.raises(ValueError, match="3 requests, and sizes of 1"):
        SpotArrivals("mixed", (0.0, 1.0, 2.0), 20, 5, ((10, 5),))
    with pytest.raises(ValueError, match="at least one token"):
        SpotArrivals("mixed", (0.0,), 20, 5, ((10, 0),))


def test_nothing_has_no_figures() -> None:
    assert figures_of([]) == {}
    assert figures_of([1.0, 3.0]) == {
        "mean": 2.0,
        "p50": 2.0,
        "p90": pytest.approx(2.8),
        "p99": pytest.approx(2.98),
        "max": 3.0,
    }


@pytest.mark.parametrize(
    ("shape", "billions"),
    list(zip(PAPER_SHAPES, (6.7, 20.0, 30.0), strict=True)),
    ids=[each.name for each in PAPER_SHAPES],
)
def test_shapes_have_as_many_weights_as_their_names_state(shape: ModelShape, billions: float) -> None:
    assert f"{billions:g}B" in shape.name
    assert shape.weight_bytes / 4 / 1e9 == pytest.approx(billions, rel=0.06)
