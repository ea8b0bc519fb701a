"""Where a request is placed if instances go."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.lives.survival import PiecewiseHazard, Place, cheapest, expected_cost_s, interruption_chance

#: Young ones go ten times as often.
HAZARD = PiecewiseHazard((0.0, 600.0), (0.001, 0.0001))


def in_order(places: list[Place], remaining_s: float, interruption_s: float) -> list[str]:
    """The names of places, the cheapest first."""
    left, names = list(places), []
    while left:
        best = cheapest(left, [remaining_s], interruption_s)
        left.remove(best)
        names.append(best.name)
    return names


def test_the_chance_is_that_of_the_instances_age() -> None:
    """The chance of interruption follows from the instance's age, and a staying instance has none."""
    assert interruption_chance(Place("young", 0.0, HAZARD, 0.0), [100.0]) == pytest.approx(1 - math.exp(-0.1))
    assert interruption_chance(Place("old", 600.0, HAZARD, 0.0), [100.0]) == pytest.approx(1 - math.exp(-0.01))
    assert interruption_chance(Place("stays", 0.0, None, 0.0), [100.0]) == 0.0


def test_lengths_that_may_be_are_averaged() -> None:
    """The mean length alone would give 0.39; averaged, one of the two long ones is all but sure to be interrupted."""
    hazard = PiecewiseHazard((0.0,), (0.001,))
    chance = interruption_chance(Place("a", 0.0, hazard, 0.0), [0.0, 1_000.0])
    assert chance == pytest.approx((1 - math.exp(-1)) / 2)


def test_long_requests_go_where_instances_live_long_and_short_ones_where_load_is_low() -> None:
    places = [Place("young", 0.0, HAZARD, 0.0), Place("old", 600.0, HAZARD, 0.5), Place("stays", 0.0, None, 1.0)]
    assert in_order(places, 1.0, 20.0) == ["young", "old", "stays"]
    assert in_order(places, 60.0, 20.0) == ["old", "stays", "young"]
    assert in_order(places, 600.0, 20.0) == ["stays", "old", "young"]


def test_the_cost_is_chance_times_interruption_and_load() -> None:
    place = Place("young", 0.0, HAZARD, 2.0)
    assert expected_cost_s(place, [100.0], 10.0) == pytest.approx(10 * (1 - math.exp(-0.1)) + 2.0)


def test_a_request_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one length"):
        interruption_chance(Place("a", 0.0, None, 0.0), [])
    with pytest.raises(ValueError, match="at least one place"):
        cheapest([], [1.0], 1.0)


@given(
    st.lists(st.tuples(st.floats(0, 2_000), st.sampled_from([None, HAZARD]), st.floats(0, 30)), min_size=1, max_size=8),
    st.lists(st.floats(0, 2_000), min_size=1, max_size=4),
    st.floats(0, 100),
)
def test_the_cheapest_is_the_first_of_the_least_cost(
    seen: list[tuple[float, PiecewiseHazard | None, float]], remaining_s: list[float], interruption_s: float
) -> None:
    """In any order of the loads, though places of a high load are not examined."""
    places = [Place(f"i{i}", age_s, hazard, load_s) for i, (age_s, hazard, load_s) in enumerate(seen)]
    costs = [expected_cost_s(place, remaining_s, interruption_s) for place in places]
    assert cheapest(places, remaining_s, interruption_s) is places[costs.index(min(costs))]
