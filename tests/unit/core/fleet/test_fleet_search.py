"""What is fast enough for a fleet's requests where no target is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.search import FleetSearch
from spotwise.core.fleet.types import FleetType
from spotwise.core.parallel.instances import Supply
from spotwise.core.parallel.policy import ServiceDemand
from tests.unit.core.fleet.fake_cloud import FAST, LOAD, SHAPE, SLOW, fleet_type

#: Two of them hold the model, and six do.
HALF, SIXTH = (fleet_type(f"of {gib} GiB", memory_bytes=gib * 2**30) for gib in (100, 25))
USUAL = FleetPolicy()
TINY = fleet_type("tiny", memory_bytes=2**20)


def measured(*types: FleetType, policy: FleetPolicy = USUAL, demand: ServiceDemand = LOAD) -> FleetSearch:
    search = FleetSearch(types, policy)
    assert search.measure(SHAPE, demand) is None
    return search


def unloaded_s(fleet_type: FleetType, instances: int) -> float:
    """Seconds of a request on so many instances, without load; they hold the model, and one less does not."""
    search = measured(fleet_type)
    priced = replace(search.types[0], spot_price_per_h=1.0)
    idle = replace(LOAD, arrival_rate=0.0)
    fewer = instances > 1 and search.choose(idle, [Supply(priced, instances - 1)], None)
    choice = search.choose(idle, [Supply(priced, instances)], None)
    assert not fewer and choice is not None
    return choice.request_s


@pytest.mark.parametrize(("holding", "instances"), [(FAST, 1), (SLOW, 1), (HALF, 2), (SIXTH, 6)])
def test_by_default_twice_a_request_without_load_on_the_fewest_instances_is_enough(
    holding: FleetType, instances: int
) -> None:
    least_s = unloaded_s(holding, instances)
    assert measured(holding).latency_target_s == pytest.approx(2 * least_s)
    assert measured(holding, policy=FleetPolicy(latency_factor=3.0)).latency_target_s == pytest.approx(3 * least_s)


def test_the_slowest_type_that_holds_the_model_counts() -> None:
    """Whichever is the cheapest, it is fast enough without load."""
    for types in ((FAST, SLOW), (SLOW, FAST), (TINY, SLOW)):
        assert measured(*types).latency_target_s == measured(SLOW).latency_target_s
    assert measured(TINY).latency_target_s == 0.0


def test_the_default_follows_the_size_of_requests() -> None:
    long = measured(FAST, demand=replace(LOAD, output_tokens=2 * LOAD.output_tokens)).latency_target_s
    usual = measured(FAST).latency_target_s
    assert long is not None and usual is not None and long > 1.5 * usual


@pytest.mark.parametrize("target_s", [0.0, 5.0])
def test_a_target_stays_as_it_is_given(target_s: float) -> None:
    """Until a load comes any latency is enough."""
    search = measured(FAST, SLOW, policy=FleetPolicy(latency_target_s=target_s))
    assert search.latency_target_s == search.policy(LOAD, None).latency_target_s == target_s
    assert search.policy(replace(LOAD, arrival_rate=0.0), None).latency_target_s == 1e9


def test_without_a_model_there_is_no_default() -> None:
    assert FleetSearch([FAST], USUAL).latency_target_s is None


def test_another_number_of_pipelines_of_a_shape() -> None:
    """Of two instances a pipeline: on five two of them, on three one, and none on one; another shape may be faster there."""
    search = measured(HALF, policy=FleetPolicy(latency_target_s=0.0))
    priced, heavy = replace(search.types[0], spot_price_per_h=1.0), replace(LOAD, arrival_rate=1e3)
    most = search.choose(heavy, [Supply(priced, 2)], None)
    assert most is not None and most.config.pipeline_devices == 2
    found = {spot: search.alike(most, heavy, [Supply(priced, spot)], None) for spot in (5, 3, 1)}
    assert {spot: each and each.config.data for spot, each in found.items()} == {5: 2, 3: 1, 1: None}
    assert {each.config.shape for each in found.values() if each is not None} == {
        replace(most.config.shape, max_batch=each.config.max_batch) for each in found.values() if each is not None
    }
