"""Moves and groups of the planner keep to numerics classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import Crossing, Numerics
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner import commands as c
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.replacement import refill
from tests.unit.core.builders import AMX, DOT, FMA, worker_member
from tests.unit.core.planner.bench import NOTICE_S, PlannerBench, sequence
from tests.unit.core.planner.reshape_bench import ReshapeBench, group


def evacuated(b: m.Member, worker_c: m.Member, crossing: Crossing = Crossing.COUNT) -> PlannerBench:
    """Worker `a`, of the class DOT, has left with a long sequence."""
    bench = PlannerBench(PlannerPolicy(crossing=crossing))
    for member in (worker_member("a", blocks=100_000, numerics=DOT), b, worker_c):
        bench.workers[member.id] = member
        bench.feed(member)
    bench.held["a"] = [sequence()]
    bench.drain()
    bench.pass_time(NOTICE_S)
    return bench


def target(name: str, numerics: Numerics, *, blocks: int = 100_000, owed: int = 0) -> m.Member:
    return worker_member(name, numerics=numerics, blocks=blocks, owed=owed)


def test_a_request_moves_within_its_class() -> None:
    """Though another has the shorter queue."""
    bench = evacuated(target("b", AMX), target("c", DOT, owed=10**6))
    assert {target_id for _, _, target_id in bench.moves} == {"c"}


def test_a_request_that_has_to_leave_crosses_into_the_same_kv() -> None:
    bench = evacuated(target("b", AMX), target("c", DOT, blocks=10))
    assert {target_id for _, _, target_id in bench.moves} == {"b"}


@pytest.mark.parametrize(
    ("other", "crossing"),
    [(AMX, Crossing.REFUSE), (FMA, Crossing.COUNT)],
    ids=["crossings are refused", "no worker has such KV"],
)
def test_a_request_without_a_target_is_given_back(other: Numerics, crossing: Crossing) -> None:
    """The scheduler decides where it is computed again."""
    bench = evacuated(target("b", other), target("c", DOT, blocks=10), crossing)
    assert bench.moves == []
    assert [choice_id for _, choice_id, _ in bench.given_back] == ["r"]


def devices(**classes: Numerics) -> ReshapeBench:
    """Devices without a group, of these classes."""
    bench = ReshapeBench()
    for name, numerics in classes.items():
        bench.join_device(name, numerics)
    return bench


def ordered(bench: ReshapeBench, config: ParallelConfig) -> m.ReshapeReply:
    bench.feed(c.ReshapeRequested(1, m.ReshapeMesh(config)))
    bench.pass_time(3.0)
    return bench.answers[-1].reply


def test_a_reshape_takes_the_devices_of_one_class() -> None:
    """That of most devices."""
    bench = devices(d0=FMA, d1=DOT, d2=FMA, d3=DOT, d4=DOT)
    assert ordered(bench, ParallelConfig(1, 1, 3)).accepted
    assert {each for some in bench.groups.values() for each in some.device_ids} == {"d1", "d3", "d4"}


@pytest.mark.parametrize(
    ("crossing", "devices", "chosen"),
    [
        (Crossing.COUNT, 2, {"d0", "d1"}),
        (Crossing.COUNT, 3, {"s0", "s1", "s2"}),
        (Crossing.REFUSE, 2, {"d0", "d1"}),
        (Crossing.REFUSE, 3, None),
    ],
)
def test_a_reshape_keeps_to_the_class_that_serves(crossing: Crossing, devices: int, chosen: set[str] | None) -> None:
    """Though another has more devices; where it has too few, running requests cross, or the order is refused."""
    bench = ReshapeBench(policy=PlannerPolicy(crossing=crossing))
    for name in ("d0", "d1"):
        bench.join_device(name, DOT)
    bench.serve(group("mixed-0", "d0"))
    for name in ("s0", "s1", "s2"):
        bench.join_device(name, FMA)
    reply = ordered(bench, ParallelConfig(1, devices, 1))
    assert reply.accepted is (chosen is not None)
    if chosen is None:
        assert "s0, s1, s2 compute in another numerics class" in reply.detail
    else:
        assert {each for some in bench.groups.values() if some.stages == devices for each in some.device_ids} == chosen


def test_a_reshape_that_would_need_two_classes_is_refused() -> None:
    """The answer names the devices that cannot take part, and why."""
    reply = ordered(devices(d0=FMA, d1=DOT, d2=DOT), ParallelConfig(1, 1, 3))
    assert not reply.accepted
    assert "d0 compute in another numerics class" in reply.detail


@pytest.mark.parametrize(
    ("usable", "crossing", "expected"),
    [
        (("d0", "a1", "d9"), Crossing.COUNT, ("d0", "d9")),
        (("d0", "a1"), Crossing.COUNT, None),
        (("d0", "a1", "a2"), Crossing.COUNT, ("a1", "a2")),
        (("d0", "a1", "a2"), Crossing.REFUSE, None),
        (("a1", "a2"), Crossing.REFUSE, ("a1", "a2")),
    ],
    ids=["its own class", "too few of any class", "wholly another class", "its own or none", "its own is gone"],
)
def test_a_short_group_is_filled_within_one_class(
    usable: tuple[str, ...], crossing: Crossing, expected: tuple[str, ...] | None
) -> None:
    """Devices are named after their classes here; `d1` is lost."""
    groups = (group("mixed-0", "d0", "d1"),)
    found = refill(groups, (), usable, lambda each: each == "d1", lambda _: True, 3, lambda each: each[0], crossing)
    assert [each.device_ids for each in found.new] == ([expected] if expected else [])


def test_a_spare_device_of_another_class_takes_no_place() -> None:
    bench = devices(d0=DOT, d1=DOT, s0=FMA)
    bench.serve(group("mixed-0", "d0", "d1"))
    bench.workers["mixed-0"] = replace(bench.workers["mixed-0"], numerics=DOT)
    bench.drain("d1", 30.0)
    bench.pass_time(5.0)
    assert "s0" not in {each for some in bench.groups.values() for each in some.device_ids}
    bench.join_device("s1", DOT)
    bench.pass_time(5.0)
    assert ("d0", "s1") in {some.device_ids for some in bench.groups.values()}
