"""Where each piece comes from."""

from __future__ import annotations

from fractions import Fraction

from spotwise.core.migration.deployment import Deployment, DeviceMap, Instance
from spotwise.core.migration.mapping.parts import Part, PartKind
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.model_parts import NumberedDevices, Piece
from spotwise.core.migration.planning.transfers import SourceChoice, weight_loads
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.shares import PartBytes, Share

LINKS = Links(100.0, 10.0, 5.0)


def devices_of(*counts: int, deadlines_s: dict[int, float] | None = None) -> NumberedDevices:
    """Return devices of instances with so many each, from time 0."""
    instances = tuple(
        Instance(f"i{number}", count, (deadlines_s or {}).get(number)) for number, count in enumerate(counts)
    )
    before = Deployment(ParallelConfig(1, 1, 1), instances)
    return NumberedDevices(DeviceMap(before, ParallelConfig(1, 1, 1), {}, {}, (), 0, 0, {}), 0.0)


def piece(holders: tuple[int, ...], receivers: tuple[int, ...], num_bytes: int = 100, layer: int = 0) -> Piece:
    whole = Share(Fraction(0), Fraction(1))
    part = Part(PartKind.LAYER, layer)
    return Piece(part, 1, whole, PartBytes(num_bytes), 1, holders, len(receivers), receivers, (), num_bytes)


def sources(choice: SourceChoice, each: Piece) -> list[tuple[int | None, int, bool]]:
    return [(move.source, move.target, move.is_relayed) for move in choice.choose(each)]


def test_a_device_of_the_same_instance_comes_before_any_other() -> None:
    """A source on the same instance is chosen even if its port has more to send."""
    choice = SourceChoice(devices_of(2, 2), LINKS)
    for _ in range(9):
        assert sources(choice, piece((0, 2), (3,))) == [(2, 3, False)]


def test_else_the_instance_whose_uplink_has_least_to_send() -> None:
    """The instance with the least to send on its uplink is the source, the first of equal ones."""
    choice = SourceChoice(devices_of(1, 1, 1, 1), LINKS)
    assert sources(choice, piece((0, 1, 2), (3,), 300)) == [(0, 3, False)]
    assert sources(choice, piece((0, 1, 2), (3,), 100)) == [(1, 3, False)]
    assert sources(choice, piece((0, 1), (3,), 100)) == [(1, 3, False)]
    assert sources(choice, piece((0, 1, 2), (3,), 100)) == [(2, 3, False)]


def test_what_several_devices_of_an_instance_lack_crosses_the_network_once() -> None:
    """The first passes it on, to another instance too: its uplink is idle."""
    choice = SourceChoice(devices_of(1, 3, 1), LINKS)
    assert sources(choice, piece((0,), (1, 2, 3, 4))) == [(0, 1, False), (1, 2, True), (1, 3, True), (1, 4, True)]
    assert sources(choice, piece((), (1, 2))) == [(None, 1, False), (1, 2, True)]


def test_many_instances_that_lack_the_same_pass_it_on() -> None:
    """No uplink sends it twice as long as another has not sent it."""
    choice = SourceChoice(devices_of(1, 1, 1, 1), LINKS)
    assert sources(choice, piece((0,), (1, 2, 3))) == [(0, 1, False), (1, 2, True), (2, 3, True)]


def test_a_leaving_instance_is_taken_for_its_idle_uplink_but_not_before_an_equal() -> None:
    """A leaving instance's idle uplink is used for a source, unless a staying instance's is as free."""
    choice = SourceChoice(devices_of(1, 1, 1, deadlines_s={0: 1000.0}), LINKS)
    assert sources(choice, piece((0, 1), (2,))) == [(1, 2, False)]
    assert sources(choice, piece((0, 1), (2,))) == [(0, 2, False)]


def test_a_leaving_instance_sends_no_more_than_it_can() -> None:
    """The instance can send 100 bytes in 10 s, so one layer in 15 s; bytes without another holder come from storage."""
    choice = SourceChoice(devices_of(1, 1, 1, deadlines_s={0: 15.0}), LINKS)
    assert sources(choice, piece((0,), (2,))) == [(0, 2, False)]
    assert sources(choice, piece((0, 1), (2,))) == [(1, 2, False)]
    assert sources(choice, piece((0,), (2,))) == [(None, 2, False)]


def test_pieces_with_one_holder_choose_before_those_that_can_go_around() -> None:
    """Layer 1 is on instance 0 only, so layer 0 comes from instance 1."""
    devices = devices_of(1, 1, 1)
    parts = [(piece((0, 1), (2,), layer=0),), (piece((0,), (2,), layer=1),)]
    loads, urgent = weight_loads(SourceChoice(devices, LINKS), parts, devices)
    assert [move.source for load in loads for move in load.moves] == [1, 0]
    assert urgent == 0


def test_what_leaving_instances_send_is_in_front_and_the_rest_of_the_layer_is_not() -> None:
    """Layer 1 is half on a machine that goes."""
    devices = devices_of(1, 1, 1, deadlines_s={0: 1000.0})
    half = piece((0,), (2,), layer=1)._replace(share=Share(Fraction(0), Fraction(1, 2)))
    other = piece((1,), (2,), layer=1)._replace(share=Share(Fraction(1, 2), Fraction(1)))
    loads, urgent = weight_loads(SourceChoice(devices, LINKS), [(piece((1,), (2,)),), (half, other)], devices)
    assert urgent == 1
    assert [(load.pieces[0].part.layer, load.moves[0].source) for load in loads] == [(1, 0), (0, 1), (1, 1)]


def test_newcomers_share_the_reading_of_what_nobody_holds() -> None:
    """Each instance reads in turn, and passes on what it has read, within and beyond; alone each instance reads all of it."""
    shared = SourceChoice(devices_of(1, 2, 1), LINKS, shares_reads=True)
    assert sources(shared, piece((), (0, 1, 2, 3))) == [(None, 0, False), (0, 1, True), (1, 2, True), (1, 3, True)]
    assert [sources(shared, piece((), (0, 1, 2, 3)))[0] for _ in range(3)] == [
        (None, 1, False),
        (None, 3, False),
        (None, 0, False),
    ]
    each = SourceChoice(devices_of(1, 2, 1), LINKS)
    assert sources(each, piece((), (0, 1, 2, 3))) == [
        (None, 0, False),
        (None, 1, False),
        (1, 2, True),
        (None, 3, False),
    ]


def test_reads_are_not_shared_over_a_network_slower_than_storage() -> None:
    """Each instance reads sooner than it receives."""
    choice = SourceChoice(devices_of(1, 1), Links(100.0, 10.0, 11.0), shares_reads=True)
    assert sources(choice, piece((), (0, 1))) == [(None, 0, False), (None, 1, False)]


def test_what_comes_from_storage_in_place_of_a_leaving_instance_is_shared_too() -> None:
    """The only holder cannot send 1000 bytes in 10 s."""
    for shares, second in ((True, (1, 2, True)), (False, (None, 2, False))):
        choice = SourceChoice(devices_of(1, 1, 1, deadlines_s={0: 10.0}), LINKS, shares_reads=shares)
        assert sources(choice, piece((0,), (1, 2), 1000)) == [(None, 1, False), second]
