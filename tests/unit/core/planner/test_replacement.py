"""What the planner changes by itself: devices that have to leave, or are gone, get no position, and spare ones take theirs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.plan import ReshapeStage
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.replacement import LONGEST_REST_S, described, stopgap_config
from tests.unit.core.planner.bench import notice, sequence
from tests.unit.core.planner.reshape_bench import MODEL, PARTITION, ReshapeBench, group

FORMING, MOVING, DONE, ABANDONED = ReshapeStage
NOTICE_S = 30.0
REPLACE_AFTER_S = PlannerPolicy().replace_after_s


def withdrawn(device_id: str) -> m.InterruptionReported:
    """A watcher's report that a notice does not hold any more."""
    return notice(device_id, 0.0, m.InterruptionKind.WITHDRAWN)


def shapes(bench: ReshapeBench) -> dict[str, tuple[str, ...]]:
    """The devices of each worker that serves."""
    return {each: bench.groups[each].device_ids for each in sorted(bench.workers) if each in bench.groups}


def die(bench: ReshapeBench, *device_ids: str) -> None:
    """End devices without notice; the workers that they lead end with them."""
    for device_id in device_ids:
        for worker_id, held in shapes(bench).items():
            if held[0] == device_id:
                bench.leave(worker_id, m.MemberState.LOST)
        bench.leave(device_id, m.MemberState.LOST)
        del bench.devices[device_id]


@pytest.mark.parametrize("leaving", [0, 2], ids=["the leader's", "another one's"])
@pytest.mark.parametrize("by", ["watcher", "heartbeat"])
def test_a_spare_device_takes_the_place_of_one_that_has_to_leave(leaving: int, by: str) -> None:
    """The others keep their positions; requests move at once, and before the deadline."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1", "d2"), spare=("s0",))
    bench.held["mixed-0"] = [sequence("r")]
    if by == "watcher":
        bench.feed(notice(f"d{leaving}", bench.now + NOTICE_S))
    else:
        bench.drain(f"d{leaving}", NOTICE_S)
        bench.held.pop(f"d{leaving}", None)
    ids = ["d0", "d1", "d2"]
    ids[leaving] = "s0"
    bench.pass_time(2.0)
    assert {(choice_id, target) for _, choice_id, target in bench.moves} == {("r", "mixed-c3-0")}
    ((_, drain),) = [each for each in bench.drains if each[1].worker_id == "mixed-0"]
    assert drain.devices_stay and drain.deadline_s == pytest.approx(1000.0 + NOTICE_S, abs=0.01)
    bench.held["mixed-0"] = []
    bench.pass_time(2.0)
    assert shapes(bench) == {"mixed-c3-0": tuple(ids)}
    assert bench.stages == [FORMING, MOVING, DONE]
    assert bench.deployment.cause == f"d{leaving} to leave"


def test_groups_that_need_not_change_go_on_and_shapes_may_differ() -> None:
    bench = ReshapeBench(
        group("prompt-0", "d0", "d1", "d2", pool=Pool.PROMPT),
        group("token-0", "d3", "d4", stages=2, pool=Pool.TOKEN),
        spare=("s0",),
    )
    bench.feed(notice("d4", bench.now + NOTICE_S))
    bench.pass_time(4.0)
    assert shapes(bench) == {"prompt-0": ("d0", "d1", "d2"), "token-c3-1": ("d3", "s0")}
    assert bench.deployment.config == "1,1,3+1,2,1"


def test_without_spare_devices_another_group_gives_up_its_own() -> None:
    """Two groups that each lose a device have enough for one; the other one's worker drains at once, and is missed."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), group("mixed-1", "d2", "d3"))
    bench.feed(notice("d1", bench.now + NOTICE_S))
    bench.feed(notice("d3", bench.now + NOTICE_S))
    bench.pass_time(5.0)
    assert shapes(bench) == {"mixed-c3-0": ("d0", "d2")}
    assert [each.worker_id for each in bench.deployment.groups] == ["mixed-1", "mixed-c3-0"]
    bench.join_device("s0")
    bench.join_device("s1")
    bench.pass_time(5.0)
    assert shapes(bench) == {"mixed-c3-0": ("d0", "d2"), "mixed-c4-0": ("s0", "s1")}


def test_where_no_device_is_left_the_group_drains_until_its_deadline() -> None:
    """As without devices; when machines come, it is formed on them, whatever was served before."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"))
    bench.held["mixed-0"] = [sequence("r")]
    for device_id in ("d0", "d1"):
        bench.feed(notice(device_id, bench.now + NOTICE_S))
    bench.pass_time(1.0)
    ((_, drain),) = bench.drains
    assert drain.worker_id == "mixed-0" and drain.deadline_s == 1000.0 + NOTICE_S and drain.devices_stay
    bench.pass_time(NOTICE_S)
    assert [choice_id for _, choice_id, _ in bench.given_back] == ["r"]
    bench.held["mixed-0"] = []
    bench.pass_time(0.2)
    die(bench, "d0", "d1")
    bench = bench.successor()
    bench.join_device("n0")
    bench.join_device("n1")
    bench.pass_time(REPLACE_AFTER_S + 5.0)
    assert list(shapes(bench).values()) == [("n0", "n1")]


def test_with_one_spare_device_a_smaller_group_serves_until_there_are_more() -> None:
    bench = ReshapeBench(group("mixed-0", "d0", "d1", "d2"), spare=("s0",))
    for device_id in ("d0", "d1", "d2"):
        bench.feed(notice(device_id, bench.now + NOTICE_S))
    bench.pass_time(5.0)
    assert shapes(bench) == {"mixed-c3-0": ("s0",)}
    assert bench.deployment.stopgap_ids == ("mixed-c3-0",)
    die(bench, "d0", "d1", "d2")
    bench.pass_time(5.0)
    bench.join_device("s1")
    bench.join_device("s2")
    bench.pass_time(5.0)
    assert list(shapes(bench).values()) == [("s0", "s1", "s2")]
    assert [each.worker_id for each in bench.deployment.groups] == ["mixed-c4-0"]
    bench.join_device("t0")
    for device_id in ("s0", "s1", "s2"):
        bench.feed(notice(device_id, bench.now + NOTICE_S))
    bench.pass_time(5.0)
    (second,) = shapes(bench)
    assert bench.deployment.stopgap_ids == (second,)  # the first one is gone


def test_a_second_notice_in_the_midst_of_a_change_takes_its_device_too() -> None:
    """Of a new group's device: the change is abandoned, and another one made; a deadline that moves counts as it is."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0", "s1"))
    bench.forms = False
    bench.feed(notice("d1", bench.now + NOTICE_S))
    bench.pass_time(1.0)
    assert [each.device_ids for each in bench.deployment.new] == [("d0", "s0")]
    bench.feed(notice("s0", bench.now + 20.0))
    bench.feed(notice("d1", bench.now + 10.0))
    bench.pass_time(1.0)
    assert bench.stages == [FORMING, ABANDONED, FORMING]
    bench.forms = True
    bench.pass_time(4.0)
    assert list(shapes(bench).values()) == [("d0", "s1")]


def test_a_notice_while_requests_move_begins_the_next_change_at_once() -> None:
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0", "s1"))
    bench.held["mixed-0"] = [sequence("r")]
    bench.feed(notice("d1", bench.now + NOTICE_S))
    bench.pass_time(1.5)
    assert bench.stages == [FORMING, MOVING]
    bench.feed(notice("s0", bench.now + NOTICE_S))
    bench.pass_time(2.0)
    assert bench.stages == [FORMING, MOVING, FORMING, MOVING]
    assert {each.worker_id for each in bench.deployment.retiring} == {"mixed-0", "mixed-c3-0"}
    bench.held["mixed-0"] = []
    bench.pass_time(2.0)
    assert list(shapes(bench).values()) == [("d0", "s1")]


def test_a_change_that_is_abandoned_does_not_bring_back_what_had_left() -> None:
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0", "s1"))
    bench.held["mixed-0"] = [sequence("r")]
    bench.feed(notice("d1", bench.now + NOTICE_S))
    bench.pass_time(1.5)
    bench.forms = False
    bench.feed(notice("s0", bench.now + NOTICE_S))
    bench.pass_time(1.0)
    bench.feed(notice("s1", bench.now + NOTICE_S))
    bench.pass_time(1.0)
    assert "mixed-0" not in [each.worker_id for each in bench.deployment.groups]


def test_a_group_of_an_abandoned_change_leaves_also_while_the_next_one_forms() -> None:
    """Its leader had the order before it was abandoned: it joins later, and no deployment has it."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0", "s1"))
    bench.forms = False
    bench.feed(notice("d1", bench.now + NOTICE_S))
    bench.pass_time(1.0)
    (late,) = bench.deployment.new
    bench.feed(notice("s0", bench.now + NOTICE_S))
    bench.pass_time(1.0)
    assert bench.stages == [FORMING, ABANDONED, FORMING]
    bench.serve(late)
    bench.held["mixed-0"] = [sequence("r")]
    bench.pass_time(2.0)
    assert bench.stages == [FORMING, ABANDONED, FORMING]
    assert set(shapes(bench)) == {"mixed-0"}
    bench.forms = True
    bench.pass_time(3.0)
    assert {target for _, _, target in bench.moves} == {bench.deployment.new[0].worker_id}


def test_an_operators_re_shape_goes_on_where_what_an_earlier_change_began_is_lost() -> None:
    """It was to leave anyway."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0", "s1"))
    bench.forms = False
    bench.accepted("1,2,1")
    (late,) = bench.deployment.new
    bench.pass_time(PlannerPolicy().form_s + 1.0)
    bench.accepted("2,1,1")
    bench.drains_reach = False
    bench.serve(late)
    bench.pass_time(0.2)
    bench.leave(late.worker_id, m.MemberState.LOST)
    bench.pass_time(1.0)
    assert bench.stages == [FORMING, ABANDONED, FORMING]


def test_a_worker_whose_new_group_is_late_drains_in_time() -> None:
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0",))
    bench.forms = False
    bench.feed(notice("d1", bench.now + NOTICE_S))
    bench.pass_time(NOTICE_S - 4.0)
    assert bench.drains == []
    bench.held["mixed-0"] = [sequence("r")]
    bench.pass_time(3.0)
    ((at_s, drain),) = bench.drains
    assert drain.worker_id == "mixed-0" and at_s < drain.deadline_s == pytest.approx(1000.0 + NOTICE_S)


def test_a_change_that_cannot_be_is_tried_less_and_less_often() -> None:
    policy = PlannerPolicy(replace_after_s=1.0)
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), group("mixed-1", "d2", "d3"), spare=("s0",), policy=policy)
    bench.forms = False
    die(bench, "d3")
    bench.pass_time(600.0)
    tries = {each.change: each for plan in bench.plans if (each := plan.deployment) is not None and each.new_ids}
    ends_s = [(each.began_s, each.ended_s or 0.0) for each in tries.values()]
    rests_s = [began_s - ended_s for (_, ended_s), (began_s, _) in itertools.pairwise(ends_s)]
    assert rests_s[:5] == pytest.approx([5, 10, 20, 40, 60], abs=1)
    assert rests_s[5:] == pytest.approx([LONGEST_REST_S] * len(rests_s[5:]), abs=1)
    bench.forms = True
    bench.join_device("s1")
    bench.pass_time(LONGEST_REST_S + 10.0)
    assert all(each.state is m.MemberState.READY for each in bench.workers.values())


def test_a_notice_that_is_withdrawn_keeps_the_group() -> None:
    """Before anything could be planned."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0",))
    bench.feed(notice("d1", bench.now + NOTICE_S))
    bench.feed(withdrawn("d1"))
    bench.pass_time(5.0)
    assert (bench.led, bench.drains, shapes(bench)) == ([], [], {"mixed-0": ("d0", "d1")})
    assert bench.role.leaving == frozenset()


def test_a_draining_device_leaves_whatever_is_withdrawn() -> None:
    """It has told itself so."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0",))
    bench.drain("d1", NOTICE_S)
    bench.held.pop("d1", None)
    bench.feed(withdrawn("d1"))
    bench.pass_time(4.0)
    assert list(shapes(bench).values()) == [("d0", "s0")]


def test_a_device_that_is_gone_is_replaced_unless_it_comes_back_in_time() -> None:
    """Its supervisor starts it again; the group waits for it meanwhile."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0",))
    bench.pass_time(1.0)
    for back in (True, False):
        die(bench, "d1")
        bench.pass_time(REPLACE_AFTER_S - 1.0)
        assert bench.led == []
        if back:
            bench.join_device("d1")
        bench.pass_time(5.0)
    assert list(shapes(bench).values()) == [("d0", "s0")]
    assert bench.deployment.cause == "d1 gone"


def test_a_device_that_joins_takes_the_place_of_one_that_is_gone() -> None:
    """Without it a smaller group serves; an acquisition changes that."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"))
    bench.pass_time(1.0)
    die(bench, "d1")
    bench.pass_time(REPLACE_AFTER_S + 5.0)
    assert shapes(bench)["mixed-c2-0"] == ("d0",)
    bench.join_device("n0")
    bench.pass_time(5.0)
    assert list(shapes(bench).values()) == [("d0", "n0")]


def test_an_operators_re_shape_leaves_out_a_device_that_has_to_leave() -> None:
    """And is refused with that reason where too few are left."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0",))
    bench.feed(notice("s0", bench.now + NOTICE_S))
    assert bench.refusal("1,3,1").startswith("1,3,1 needs 3 devices, and 2 answer, and s0 has to leave;")
    _, prediction = bench.accepted("1,2,1")
    assert prediction.groups[0].device_ids == ("d0", "d1")


def test_a_planner_that_takes_over_learns_of_the_notice_and_continues() -> None:
    """From the device's heartbeats; the deployment is in the plan."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("s0",))
    bench.forms = False
    bench.drain("d1", NOTICE_S)
    bench.held.pop("d1", None)
    bench.pass_time(1.0)
    other = bench.successor()
    other.forms = True
    other.pass_time(5.0)
    assert list(shapes(other).values()) == [("d0", "s0")]
    assert other.deployment.stage is DONE


def test_devices_of_a_worker_that_the_deployment_does_not_know_are_not_taken() -> None:
    """It was not whole when the deployment was made, and serves."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"))
    bench.feed(notice("d1", bench.now + NOTICE_S))
    bench.pass_time(1.0)
    bench.join_device("s0")
    bench.serve(group("mixed-9", "s0"))
    bench.pass_time(10.0)
    assert shapes(bench)["mixed-9"] == ("s0",)
    assert all("s0" not in held for worker_id, held in shapes(bench).items() if worker_id != "mixed-9")


@pytest.mark.parametrize(
    ("devices", "shards", "config"),
    [(1, 3, "1,1,1"), (2, 3, "1,2,1"), (3, 3, "1,1,3"), (3, 1, "1,3,1"), (0, 1, None)],
)
def test_a_stopgap_has_as_many_devices_as_can_be(devices: int, shards: int, config: str | None) -> None:
    found = stopgap_config(devices, shards, replace(MODEL, partition=PARTITION))
    assert found == (None if config is None else ParallelConfig.parse(config))


def test_shapes_are_written_as_an_operator_writes_them() -> None:
    groups = (group("p", "a", "b", "c", pool=Pool.PROMPT), group("t", "d", pool=Pool.TOKEN), group("u", "e"))
    assert described(groups) == "1,1,3+2,1,1"


@pytest.mark.parametrize("sooner", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
def test_requests_of_the_device_that_leaves_first_move_first(sooner: int, first: int) -> None:
    """They get room at the new groups, and their orders, before those of one with more time."""
    bench = ReshapeBench(group("mixed-0", "d0"), group("mixed-1", "d1"), spare=("s0", "s1"))
    bench.held = {f"mixed-{each}": [sequence("sooner" if each == sooner else "later")] for each in (0, 1)}
    for each in (first, 1 - first):
        bench.feed(notice(f"d{each}", bench.now + (20.0 if each == sooner else 60.0)))
    bench.pass_time(3.0)
    assert [choice_id for _, choice_id, _ in bench.moves[:2]] == ["sooner", "later"]
    assert bench.moves[0][0] == bench.moves[1][0]
