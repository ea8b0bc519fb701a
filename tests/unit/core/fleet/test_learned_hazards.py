"""How soon the provider may take an instance."""

from __future__ import annotations

import math
from dataclasses import replace

from spotwise.core.fleet.learned_hazards import LearnedHazards
from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages.fleet import FleetInstance, InstanceState, LearnedLives, Market

INSTANCE = FleetInstance("i", "small", Market.SPOT, InstanceState.RUNNING, 900.0, "token", "z1")


def lives(zone: str, per_s: float, type_name: str = "small") -> LearnedLives:
    return LearnedLives(type_name, zone, PiecewiseHazard((0.0,), (per_s,)), lives=2, ends=int(per_s > 0))


def remaining_s(*known: LearnedLives, instance: FleetInstance = INSTANCE) -> float:
    return LearnedHazards(known).remaining_s(instance, 1000.0)


def test_the_zones_lives_count_before_those_without_a_zone() -> None:
    """Of the instance's own type; lives of other zones tell nothing of this one."""
    assert remaining_s(lives("", 0.1), lives("z1", 0.01)) == 100.0
    assert remaining_s(lives("z2", 0.01), lives("", 0.1)) == 10.0
    assert remaining_s(lives("z2", 0.01), lives("z1", 0.1, "wide")) == math.inf


def test_a_zone_without_an_end_counts_as_unknown() -> None:
    """Its instances have only been short of their ends."""
    assert remaining_s(lives("z1", 0.0), lives("", 0.1)) == 10.0
    assert remaining_s(lives("z1", 0.0)) == math.inf


def test_an_instance_on_demand_stays() -> None:
    on_demand = replace(INSTANCE, market=Market.ON_DEMAND)
    assert LearnedHazards([lives("z1", 0.1)]).of(on_demand) is None
    assert remaining_s(lives("z1", 0.1), instance=on_demand) == math.inf


def test_the_hazard_is_that_of_the_instances_age() -> None:
    """One whose launch is ahead of this clock is new."""
    by_age = replace(lives("z1", 0.1), hazard=PiecewiseHazard((0.0, 100.0), (1.0, 0.1)))
    assert remaining_s(by_age) == 10.0
    assert remaining_s(by_age, instance=replace(INSTANCE, launched_s=2000.0)) < 2.0
