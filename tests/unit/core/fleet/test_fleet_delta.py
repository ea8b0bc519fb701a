"""Which instances are requested and which are released."""

from __future__ import annotations

from spotwise.core.parallel.choice import ConfigChoice, InstanceShare
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.fleet import FleetDelta, fleet_delta
from spotwise.core.parallel.instances import Supply
from tests.unit.core.parallel.builders import machine

A, B = machine("a"), machine("b")


def taking(*shares: InstanceShare) -> ConfigChoice:
    return ConfigChoice(ParallelConfig(1, 1, 1), shares, 1.0, 1.0, 1.0, 1.0, meets_demand=True)


def of_a(instances: int) -> ConfigChoice:
    return taking(InstanceShare(A, 0, 1, instances, 0))


def test_missing_instances_are_requested_in_both_markets_at_once() -> None:
    """Three lack: three as spot and three on demand; the two spares as spot only."""
    supply = Supply(A, spot=20, on_demand=20, held_spot=4, held_on_demand=1)
    assert fleet_delta(of_a(8), [supply]) == (FleetDelta("a", request_spot=5, request_on_demand=3),)


def test_spares_alone_are_requested_as_spot() -> None:
    supply = Supply(A, spot=20, on_demand=20, held_spot=7)
    assert fleet_delta(of_a(6), [supply]) == (FleetDelta("a", request_spot=1),)


def test_spares_come_on_demand_where_there_is_no_spot() -> None:
    """Spares are requested on demand once no more spot instances of the type are available."""
    supply = Supply(A, spot=6, on_demand=20, held_spot=6)
    assert fleet_delta(of_a(6), [supply]) == (FleetDelta("a", request_on_demand=2),)
    assert fleet_delta(of_a(9), [supply]) == (FleetDelta("a", request_on_demand=5),)


def test_no_more_is_requested_than_is_available() -> None:
    """The request is bounded by the available spot instances and by the available on-demand instances."""
    supply = Supply(A, spot=6, on_demand=1, held_spot=5)
    assert fleet_delta(of_a(7), [supply]) == (FleetDelta("a", request_spot=1, request_on_demand=1),)


def test_on_demand_goes_first() -> None:
    """Five are too many, beside what serves and the spares: both that are on demand, and three of spot."""
    supply = Supply(A, spot=20, on_demand=20, held_spot=11, held_on_demand=2)
    assert fleet_delta(of_a(6), [supply]) == (FleetDelta("a", release_spot=3, release_on_demand=2),)


def test_the_spare_pool_is_kept() -> None:
    """Two beyond what serves are not too many; a third is."""
    held = [Supply(A, spot=20, on_demand=20, held_spot=spot, held_on_demand=1) for spot in (6, 7, 8)]
    changes = [fleet_delta(of_a(6), [supply])[0] for supply in held]
    assert changes == [FleetDelta("a", request_spot=1), FleetDelta("a"), FleetDelta("a", release_on_demand=1)]
    assert changes[1].is_nothing
    assert not changes[0].is_nothing
    assert not changes[2].is_nothing


def test_types_without_a_part_are_given_back_and_spares_are_of_the_largest() -> None:
    """The other type serves too, but without spares."""
    choice = taking(InstanceShare(A, 0, 1, 3, 0), InstanceShare(B, 0, 1, 4, 0))
    supplies = [Supply(A, spot=9, held_spot=5), Supply(B, spot=9, held_spot=4), Supply(machine("c"), 2, held_spot=2)]
    changes = fleet_delta(choice, supplies)
    assert changes == (
        FleetDelta("a", release_spot=2),
        FleetDelta("b", request_spot=2),
        FleetDelta("c", release_spot=2),
    )


def test_asking_twice_ends_with_the_spot_ones() -> None:
    """When both arrived, the on-demand instances are released, and nothing changes after that."""
    came = Supply(A, spot=20, on_demand=20, held_spot=10, held_on_demand=4)
    change = fleet_delta(of_a(8), [came])[0]
    assert change == FleetDelta("a", release_on_demand=4)
    settled = Supply(A, spot=20, on_demand=20, held_spot=10)
    assert fleet_delta(of_a(8), [settled])[0].is_nothing


def test_nothing_changes_without_a_choice() -> None:
    """Without a choice the held instances are kept, since a later choice may use them."""
    assert fleet_delta(None, [Supply(A, 3, held_spot=3)]) == (FleetDelta("a"),)
