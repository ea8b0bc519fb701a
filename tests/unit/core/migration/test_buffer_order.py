"""The order that keeps buffers small."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.migration.planning.buffer_order import Cut, Flow, FlowOf, MemoryRegions, gates, order_loads


def flows_of(loads: list[tuple[dict[int, int], dict[int, int]]]) -> FlowOf:
    """Return the effect of cuts of loads: (received, freed) by region."""

    def flow_of(cut: Cut) -> Flow:
        def share(num_bytes: int) -> int:
            return num_bytes * (cut.number + 1) // cut.of - num_bytes * cut.number // cut.of

        received, freed = loads[cut.load]
        return Flow(
            {room: share(num_bytes) for room, num_bytes in received.items()},
            {room: share(num_bytes) for room, num_bytes in freed.items()},
        )

    return flow_of


def rooms_for(
    loads: list[tuple[dict[int, int], dict[int, int]]], instance_of: dict[int, int] | None = None
) -> MemoryRegions:
    owners = instance_of or {room: room for load in loads for changes in load for room in changes}
    flow_of = flows_of(loads)
    return MemoryRegions.at_start(owners, [flow_of(Cut(number)) for number in range(len(loads))], {}, {})


def peak_of(order: list[Cut], loads: list[tuple[dict[int, int], dict[int, int]]]) -> int:
    """Return the largest buffer of any region, counted by hand: usage above the larger of start and end."""
    flow_of = flows_of(loads)
    regions = {room for load in loads for changes in load for room in changes}
    grows = {room: sum(load[0].get(room, 0) - load[1].get(room, 0) for load in loads) for room in regions}
    level, peak = dict.fromkeys(regions, 0), 0
    for cut in order:
        received, freed = flow_of(cut)
        for room in regions:
            level[room] += received.get(room, 0)
            peak = max(peak, level[room] - max(0, grows[room]))
            level[room] -= freed.get(room, 0)
    return peak


#: Two regions that swap four layers: 0 and 1 move from region 0 to 1, 2 and 3 the other way.
SWAP: list[tuple[dict[int, int], dict[int, int]]] = [
    ({1: 10}, {0: 10}),
    ({1: 10}, {0: 10}),
    ({0: 10}, {1: 10}),
    ({0: 10}, {1: 10}),
]


class TestOrder:
    """Front to back, as long as memory suffices."""

    def test_without_a_limit_they_go_from_the_front(self) -> None:
        order = order_loads(range(4), flows_of(SWAP), rooms_for(SWAP), None)
        assert order == [Cut(0), Cut(1), Cut(2), Cut(3)]
        assert peak_of(order, SWAP) == 20

    def test_a_load_that_has_no_room_waits_until_something_has_gone(self) -> None:
        """A load that does not fit waits: layer 1 would be the second in region 1, so layers 2 and 3 pass it."""
        order = order_loads(range(4), flows_of(SWAP), rooms_for(SWAP), 10)
        assert [cut.load for cut in order] == [0, 2, 3, 1]
        assert peak_of(order, SWAP) == 10

    def test_an_urgent_load_waits_no_longer_than_it_must(self) -> None:
        """An urgent load moves as soon as it fits: with layers 0 and 1 on a dying machine, 1 moves once 2 has freed memory."""
        order = order_loads(range(4), flows_of(SWAP), rooms_for(SWAP), 10, urgent=2)
        assert [cut.load for cut in order] == [0, 2, 1, 3]

    def test_a_load_that_fits_no_buffer_is_cut(self) -> None:
        order = order_loads(range(4), flows_of(SWAP), rooms_for(SWAP), 5)
        assert order[0] == Cut(0, 0, 2)
        assert {cut.of for cut in order} == {1, 2}
        assert peak_of(order, SWAP) == 5

    def test_of_deferred_loads_the_one_that_fills_buffers_least_goes(self) -> None:
        # region 9 ends 3 larger than it began; after loads 0 and 3 it is 1 over that, so that 1 makes 4 of it, and 2 makes 3
        loads: list[tuple[dict[int, int], dict[int, int]]] = [
            ({9: 6}, {}),
            ({9: 3}, {}),
            ({9: 2}, {9: 6}),
            ({}, {9: 2}),
        ]
        order = order_loads(range(4), flows_of(loads), rooms_for(loads), 4)
        assert [cut.load for cut in order] == [0, 3, 2, 1]

    def test_a_machine_that_only_receives_needs_no_buffer(self) -> None:
        """The machine's regions are empty, so parts are written where they stay."""
        loads: list[tuple[dict[int, int], dict[int, int]]] = [({5: 100}, {}), ({5: 100}, {})]
        assert order_loads(range(2), flows_of(loads), rooms_for(loads), 1) == [Cut(0), Cut(1)]

    def test_buffers_of_an_instances_devices_add_up(self) -> None:
        loads: list[tuple[dict[int, int], dict[int, int]]] = [
            ({0: 10, 1: 10}, {2: 10, 3: 10}),
            ({2: 10, 3: 10}, {0: 10, 1: 10}),
        ]
        apart = order_loads(range(2), flows_of(loads), rooms_for(loads, {0: 0, 1: 1, 2: 2, 3: 3}), 10)
        together = order_loads(range(2), flows_of(loads), rooms_for(loads, {0: 0, 1: 0, 2: 2, 3: 2}), 10)
        assert {cut.of for cut in apart} == {1}
        assert together[0] == Cut(0, 0, 2)

    def test_cuts_of_loads_that_need_one_anothers_room_take_turns(self) -> None:
        """Two regions swap what fills them in turns, with free memory for a third of it."""
        loads: list[tuple[dict[int, int], dict[int, int]]] = [({0: 9}, {1: 9}), ({1: 9}, {0: 9})]
        order = order_loads(range(2), flows_of(loads), rooms_for(loads), 3)
        assert peak_of(order, loads) == 3
        assert [{cut.load for cut in order[turn : turn + 2]} for turn in (0, 2, 4)] == [{0, 1}] * 3

    def test_where_nothing_fits_any_more_the_order_goes_back_and_cuts_finer(self) -> None:
        """Load 0 fills region 2 until load 1 frees memory there, and load 1 brings more into it first: the order backtracks."""
        loads: list[tuple[dict[int, int], dict[int, int]]] = [
            ({1: 40, 2: 40}, {3: 40, 1: 30}),
            ({2: 60, 3: 10}, {2: 80, 1: 30}),
        ]
        order = order_loads(range(2), flows_of(loads), rooms_for(loads), 30)
        assert peak_of(order, loads) <= 30
        assert max(cut.of for cut in order) > 3  # so many would do if each were looked at alone

    def test_a_limit_below_all_rounding_is_refused_with_what_to_do(self) -> None:
        """One byte cannot be shared out over so many."""
        loads: list[tuple[dict[int, int], dict[int, int]]] = [({0: 10**6}, {1: 10**6}), ({1: 10**6}, {0: 10**6})]
        with pytest.raises(ValueError, match="larger buffer"):
            order_loads(range(2), flows_of(loads), rooms_for(loads), 1)


@st.composite
def some_loads(draw: st.DrawFn) -> list[tuple[dict[int, int], dict[int, int]]]:
    regions = st.dictionaries(st.integers(0, 3), st.integers(1, 9), max_size=2)
    return draw(st.lists(st.tuples(regions, regions), min_size=1, max_size=5))


@settings(max_examples=60)
@given(some_loads(), st.integers(16, 40))
def test_where_some_order_of_whole_loads_keeps_the_limit_so_does_ours(
    loads: list[tuple[dict[int, int], dict[int, int]]], limit_bytes: int
) -> None:
    """The order's peak is compared with every order; cuts keep limits that no order of whole loads keeps."""
    order = order_loads(range(len(loads)), flows_of(loads), rooms_for(loads), limit_bytes)
    best = min(peak_of([Cut(load) for load in each], loads) for each in permutations(range(len(loads))))
    assert peak_of(order, loads) <= limit_bytes
    if len(order) == len(loads):
        assert best <= peak_of(order, loads)
    assert sorted(order) == sorted({*order})
    for load in range(len(loads)):
        cuts = [cut for cut in order if cut.load == load]
        assert sum(sum(flows_of(loads)(cut).received.values()) for cut in cuts) == sum(loads[load][0].values())


@settings(max_examples=60)
@given(some_loads())
def test_with_the_least_limit_that_any_order_keeps_loads_are_moved_within_it(
    loads: list[tuple[dict[int, int], dict[int, int]]],
) -> None:
    """The exhaustive optimum of whole loads is a limit that we keep too."""
    best = min(peak_of([Cut(load) for load in each], loads) for each in permutations(range(len(loads))))
    order = order_loads(range(len(loads)), flows_of(loads), rooms_for(loads), max(best, 12))
    assert peak_of(order, loads) <= max(best, 12)


class TestGates:
    """No load waits longer than it must."""

    def test_a_load_waits_for_the_memory_that_it_needs_and_no_other(self) -> None:
        moves = [Flow({0: 10}, {0: 10}) for _ in range(4)]
        owners = {0: 7}
        assert gates(moves, MemoryRegions.at_start(owners, moves, {}, {}), 20) == [{}, {}, {7: 0}, {7: 1}]
        assert gates(moves, MemoryRegions.at_start(owners, moves, {}, {}), 10) == [{}, {7: 0}, {7: 1}, {7: 2}]
        assert gates(moves, MemoryRegions.at_start(owners, moves, {}, {}), 40) == [{}, {}, {}, {}]

    def test_a_move_does_not_wait_for_memory_that_it_frees_itself(self) -> None:
        """That memory is free only when the move is over, so that it would never begin."""
        moves = [Flow({0: 10}, {0: 10})]
        with pytest.raises(ValueError, match="order the moves first"):
            gates(moves, MemoryRegions.at_start({0: 0}, moves, {}, {}), 5)

    def test_an_order_that_cannot_keep_the_limit_is_refused(self) -> None:
        """An order over the limit is refused: gates delay loads, and do not reorder them."""
        moves = [Flow({0: 10}, {}), Flow({}, {0: 10})]
        with pytest.raises(ValueError, match="order the moves first"):
            gates(moves, MemoryRegions.at_start({0: 0}, moves, {}, {}), 5)


def test_room_for_what_is_computed_again_is_room_until_then() -> None:
    """Five bytes come before five go: where five more are to be there in the end, no buffer is needed."""
    moves = [Flow({0: 5}, {0: 5})]
    for kept_free, buffer_bytes in (({}, 5), ({0: 5}, 0)):
        regions = MemoryRegions.at_start({0: 0}, moves, {}, kept_free)
        regions.receive({0: 5})
        assert regions.buffer == {0: buffer_bytes}
