"""Tests of position groups: the positions that share one instance."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.migration.mapping.position_groups import (
    Groups,
    InstanceSlots,
    groupings,
    tensor_groups_of,
    with_fewest_cuts,
)
from spotwise.core.parallel.config import ParallelConfig, Position


def slots(*devices: int) -> list[InstanceSlots]:
    return [InstanceSlots(count) for count in devices]


def positions(written: str) -> list[Position]:
    return list(ParallelConfig.parse(written).positions())


def best(written: str, *devices: int) -> list[Groups]:
    places = positions(written)
    return with_fewest_cuts(groupings(places, slots(*devices)), places)


class TestWays:
    """The ways to group positions."""

    def test_instances_that_fit_tensor_groups_have_one_way(self) -> None:
        """Neighbours, as many as an instance has devices."""
        assert best("2,2,4", 4, 4, 4, 4) == [((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))]
        assert best("2,2,2", 4, 4) == [((0, 1, 2, 3), (4, 5, 6, 7))]

    def test_a_tensor_group_larger_than_an_instance_is_sliced_or_dealt_out(self) -> None:
        """A tensor group is either sliced or dealt out over the instances, in as many pieces."""
        assert best("1,1,8", 4, 4) == [((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 2, 4, 6), (1, 3, 5, 7))]

    def test_a_tensor_group_is_whole_where_it_can_be(self) -> None:
        """Three devices for groups of two: one stays free on each, if there are instances enough."""
        assert best("1,3,2", 3, 3, 3) == [((0, 1), (2, 3), (4, 5))]
        assert ((0, 1, 2), (3, 4, 5)) in best("1,3,2", 3, 3)

    def test_pipelines_are_not_mixed_where_there_is_room(self) -> None:
        """Three stages on four devices: one way has a pipeline on each instance, others fill instances up."""
        assert ((0, 1, 2), (3, 4, 5)) in best("2,3,1", 4, 4)
        assert ((0, 1, 2, 3), (4, 5)) in best("2,3,1", 4, 4)
        assert ((0, 1), (2,), (3, 4), (5,)) in best("2,3,1", 2, 2, 2, 2)

    def test_instances_of_different_sizes_come_in_several_orders(self) -> None:
        stand = [InstanceSlots(1, Position(0, 1, 0)), InstanceSlots(3), InstanceSlots(2, Position(0, 0, 0))]
        ways = groupings(positions("1,6,1"), stand)
        assert [[len(group) for group in way] for way in ways] == [[3, 2, 1], [1, 3, 2], [2, 1, 3]]

    def test_running_pipelines_can_stay(self) -> None:
        """Whatever it is, if that cuts no more tensor groups than must be."""
        stand = [
            InstanceSlots(2, Position(0, 0, 0), (0, 3)),
            InstanceSlots(2, Position(0, 1, 0), (1,)),
            InstanceSlots(2),
        ]
        assert ((0, 3), (1,), (2,)) in groupings(positions("1,4,1"), stand)

    def test_running_pipelines_take_more_where_the_others_do_not_fit(self) -> None:
        """A group that stays takes more positions where the others cannot: every position must have a device."""
        stand = [InstanceSlots(2, Position(0, 0, 0), (3,)), InstanceSlots(2, Position(0, 1, 0), (1,))]
        assert ((0, 3), (1, 2)) in groupings(positions("1,4,1"), stand)

    def test_too_few_seats_are_refused(self) -> None:
        with pytest.raises(ValueError, match="smaller configuration"):
            groupings(positions("1,4,1"), slots(2, 1))


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 8),
    st.lists(st.integers(1, 8), min_size=1, max_size=9),
    st.data(),
)
def test_every_way_has_each_position_once_and_room_for_each_group(
    data: int, pipeline: int, tensor: int, devices: list[int], draw: st.DataObject
) -> None:
    """Whatever the sizes; tensor groups are cut only where there are not enough instances to keep them whole."""
    places = list(ParallelConfig(data, pipeline, tensor).positions())
    devices += [8] * -(-max(0, len(places) - sum(devices)) // 8)
    free = draw.draw(st.permutations(range(len(places))))
    given_seats: list[InstanceSlots] = []
    for count in devices:
        kept = draw.draw(st.integers(0, min(count, len(free))))
        given_seats.append(InstanceSlots(count, places[free[0]] if kept else None, tuple(free[:kept])))
        free = free[kept:]
    ways = groupings(places, given_seats)
    for way in ways:
        assert sorted(index for group in way for index in group) == list(range(len(places)))
        lengths = sorted((len(group) for group in way), reverse=True)
        room = sorted(devices, reverse=True)
        assert len(lengths) <= len(room)
        assert all(length <= count for length, count in zip(lengths, room, strict=False))
    chosen = with_fewest_cuts(ways, places)
    assert chosen
    if sum(count // tensor for count in devices) >= data * pipeline:
        for way in chosen:
            for whole in tensor_groups_of(places):
                assert any(set(whole) <= set(group) for group in way)
