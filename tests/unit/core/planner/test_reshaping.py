"""What becomes of a re-shape: its groups form, requests move, old workers leave; and what goes wrong meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from spotwise.core.messages import mesh as m
from spotwise.core.planner import commands as c
from spotwise.core.planner.plan import Plan, ReshapeStage
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.tenure import STORE_AGAIN_S
from tests.unit.core.planner.bench import notice, sequence
from tests.unit.core.planner.reshape_bench import ReshapeBench, group

FORM_S, DRAIN_S = PlannerPolicy().form_s, PlannerPolicy().reshape_drain_s
FORMING, MOVING, DONE, ABANDONED = ReshapeStage


def two_stages(*held: m.SurveyedSequence, forms: bool = True) -> ReshapeBench:
    """A bench whose only group is told to become one of two stages."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"))
    bench.forms = forms
    bench.held["mixed-0"] = list(held)
    bench.accepted("1,2,1")
    return bench


def moved(bench: ReshapeBench, *choice_ids: str) -> None:
    """Requests of the old group have moved."""
    for number, choice_id in enumerate(choice_ids, 1):
        bench.held["mixed-0"] = [each for each in bench.held["mixed-0"] if each.choice_id != choice_id]
        bench.ended(choice_id, "mixed-c1-0", m.MoveOutcome.MOVED, "mixed-0", pause_s=number / 10)


def test_requests_move_at_once_to_the_new_group_and_the_old_one_leaves() -> None:
    """Also those that would end before the drain's deadline, and those that move again after a refusal."""
    bench = two_stages(sequence("short", remaining=5), sequence("long"), sequence("prompt", tokens=0))
    bench.pass_time(1.5)
    assert {(choice_id, target) for _, choice_id, target in bench.moves} == {
        ("short", "mixed-c1-0"),
        ("long", "mixed-c1-0"),
    }
    drained_s, drain = bench.drains[0]
    assert drain == m.Drain("mixed-0", drained_s + DRAIN_S, "re-shape", devices_stay=True, term=5)
    bench.held["mixed-0"][2] = sequence("prompt")
    moved(bench, "short", "long")
    bench.pass_time(0.6)
    assert [choice_id for _, choice_id, _ in bench.moves][-1] == "prompt"
    moved(bench, "prompt")
    bench.pass_time(2.0)
    assert bench.stages == [FORMING, MOVING, DONE]
    assert "mixed-0" not in bench.workers
    deployment = bench.deployment
    assert (deployment.stage, deployment.moved, deployment.given_back) == (DONE, 3, 0)
    assert deployment.ended_s is not None and deployment.ended_s - deployment.began_s < 6.0
    assert deployment.served_s is not None and deployment.began_s <= deployment.served_s < deployment.ended_s
    assert (deployment.pause_s, deployment.longest_pause_s) == (pytest.approx((0.1 + 0.2 + 0.1) / 3), 0.2)


def test_nothing_is_ordered_before_it_is_stored() -> None:
    bench = two_stages(forms=False)
    first = bench.led[0][0]
    assert bench.plans[0].deployment is not None and bench.plans[0].deployment.stage is FORMING
    bench.stores = False
    bench.forms = True
    bench.pass_time(3.0)
    assert first is not None and bench.deployment.stage is MOVING
    assert bench.drains == []
    bench.stores = True
    bench.pass_time(1.0)
    assert len(bench.drains) == 1


def test_the_leader_is_told_every_second_until_its_group_serves() -> None:
    """A lost order costs a second; old groups are not touched meanwhile."""
    bench = two_stages(forms=False)
    bench.pass_time(5.0)
    assert {(device_id, worker_id) for _, device_id, worker_id in bench.led} == {("d0", "mixed-c1-0")}
    assert 5 <= len(bench.led) <= 6
    order = bench.orders(m.LeadGroup)[0][1].message
    assert isinstance(order, m.LeadGroup)
    assert (order.device_ids, order.stages, order.shards, order.term, order.change) == (("d0", "d1"), 2, 1, 5, 1)
    assert bench.drains == []
    bench.serve(group("mixed-c1-0", "d0", "d1", stages=2), m.MemberState.STARTING)
    bench.pass_time(2.0)
    assert bench.drains == [] and len(bench.led) >= 7
    bench.workers["mixed-c1-0"] = replace(bench.workers["mixed-c1-0"], state=m.MemberState.READY)
    bench.pass_time(0.5)
    assert len(bench.drains) == 1


@pytest.mark.parametrize("appears", [False, True], ids=["never seen", "stays starting"])
def test_groups_that_do_not_serve_in_time_are_abandoned(appears: bool) -> None:
    """The old group serves on, and is to be; what there is of the new one leaves at once."""
    bench = two_stages(forms=False)
    if appears:
        bench.serve(group("mixed-c1-0", "d0", "d1", stages=2), m.MemberState.STARTING)
    bench.pass_time(FORM_S + 2.0)
    assert bench.stages == [FORMING, ABANDONED]
    assert bench.deployment.reason == f"mixed-c1-0 did not serve within {FORM_S:g} s"
    assert [each.worker_id for each in bench.deployment.groups] == ["mixed-0"]
    assert [drain.worker_id for _, drain in bench.drains] == (["mixed-c1-0"] if appears else [])
    assert all(drain.deadline_s == at_s and drain.devices_stay for at_s, drain in bench.drains)
    bench.forms = True
    bench.accepted("1,2,1")


def test_a_group_that_forms_after_the_re_shape_was_abandoned_leaves() -> None:
    """With what it got meanwhile: that moves back."""
    bench = two_stages(forms=False)
    bench.pass_time(FORM_S + 1.0)
    bench.held["mixed-c1-0"] = [sequence("stray")]
    bench.serve(group("mixed-c1-0", "d0", "d1", stages=2))
    bench.pass_time(2.0)
    ((at_s, drain),) = bench.drains
    assert (drain.worker_id, drain.deadline_s) == ("mixed-c1-0", at_s + DRAIN_S)
    assert {(choice_id, target) for _, choice_id, target in bench.moves} == {("stray", "mixed-0")}


def test_a_new_group_that_is_lost_while_others_form_is_led_again() -> None:
    bench = ReshapeBench(group("mixed-0", "d0", "d1"))
    bench.refused = {"mixed-c1-1"}
    bench.reshape("2,1,1")
    bench.pass_time(1.0)
    assert "mixed-c1-0" in bench.workers
    bench.forms = False
    bench.leave("mixed-c1-0", m.MemberState.LOST)
    bench.refused = set()
    bench.pass_time(1.0)
    bench.forms = True
    bench.pass_time(2.0)
    assert bench.stages[:2] == [FORMING, MOVING]
    assert bench.led[-1][2] in ("mixed-c1-0", "mixed-c1-1")


@pytest.mark.parametrize("by", ["notice", "loss", "drain"])
def test_an_interruption_while_groups_form_abandons_the_re_shape(by: str) -> None:
    """Nothing has moved yet; what is left is asked for anew."""
    bench = two_stages(sequence("r"), forms=False)
    bench.pass_time(1.0)
    if by == "notice":
        bench.feed(notice("mixed-0", bench.now + 60.0))
    elif by == "drain":
        bench.drain("mixed-0", 60.0)
    else:
        bench.leave("mixed-0", m.MemberState.LOST)
    bench.pass_time(1.0)
    assert bench.stages == [FORMING, ABANDONED]
    assert bench.deployment.reason == f"mixed-0 {'is gone' if by == 'loss' else 'has to leave'}"
    assert [each.worker_id for each in bench.deployment.groups] == ([] if by == "drain" else ["mixed-0"])
    bench.forms = True
    bench.pass_time(3.0)
    assert [worker_id for _, _, worker_id in bench.led][-1] == ("mixed-0" if by == "loss" else "mixed-c1-0")


def test_an_interruption_while_requests_move_does_not_stop_them() -> None:
    """A cloud takes the old group sooner than its drain's deadline."""
    bench = two_stages(sequence("r"))
    while not bench.drains:
        bench.pass_time(0.1)
    bench.feed(notice("mixed-0", bench.now + 10.0))
    bench.pass_time(2.0)
    assert [choice_id for _, choice_id, _ in bench.moves][:1] == ["r"]
    bench.leave("mixed-0", m.MemberState.LOST)
    bench.pass_time(2.0)
    assert bench.stages == [FORMING, MOVING, DONE]


def test_a_lost_drain_is_published_again() -> None:
    """Until the worker shows that it drains."""
    bench = two_stages(sequence("r"))
    bench.drains_reach = False
    bench.pass_time(3.0)
    assert 2 <= len(bench.drains) <= 4
    bench.drains_reach = True
    bench.pass_time(3.0)
    assert 3 <= len(bench.drains) <= 5
    assert bench.stages == [FORMING, MOVING]


def test_targets_are_not_workers_that_retire() -> None:
    """Though those do not drain yet."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), group("mixed-1", "d2", "d3"))
    bench.held = {"mixed-0": [sequence("r")], "mixed-1": [sequence("s")]}
    bench.reshape("2,2,1")
    bench.drains_reach = False
    bench.pass_time(1.5)
    bench.drain("mixed-0", DRAIN_S)
    bench.pass_time(2.0)
    assert {target for _, _, target in bench.moves} <= {"mixed-c1-0", "mixed-c1-1"}
    assert bench.moves


@pytest.mark.parametrize("stage", [FORMING, MOVING])
def test_a_successor_goes_on_where_a_planner_ended(stage: ReshapeStage) -> None:
    """It knows the plan, and learns the rest from the members."""
    first = two_stages(sequence("r"), forms=stage is MOVING)
    first.drains_reach = False
    first.pass_time(1.0)
    assert first.deployment.stage is stage
    second = first.successor()
    second.forms = True
    second.pass_time(3.0)
    assert second.deployment.stage is MOVING
    assert second.plans[0].term == 6 and second.plans[0].change >= first.plans[-1].change
    assert [worker_id for _, _, worker_id in second.led] == (["mixed-c1-0"] if stage is FORMING else [])
    assert [choice_id for _, choice_id, _ in second.moves][:1] == ["r"]
    moved(second, "r")
    second.pass_time(2.0)
    assert second.deployment.stage is DONE
    assert second.deployment.moved == 1


def test_a_successor_that_comes_too_late_abandons_what_is_not_whole() -> None:
    """By the limit of the plan, not by one of its own."""
    first = two_stages(forms=False)
    first.pass_time(1.0)
    first.now += FORM_S
    second = first.successor()
    second.pass_time(1.0)
    assert second.deployment.stage is ABANDONED


def test_a_successor_that_has_heard_of_no_worker_yet_does_not_take_all_for_gone() -> None:
    """Workers' heartbeats come within a second."""
    first = two_stages(sequence("r"))
    first.pass_time(1.0)
    second = first.successor()
    workers, second.workers = second.workers, {}
    second.pass_time(1.0)
    assert second.reshapes == [] and second.led == []
    second.workers = workers
    second.pass_time(1.0)
    assert second.deployment.stage is MOVING


@pytest.mark.parametrize("state", [m.MemberState.LOST, m.MemberState.LEFT])
def test_a_group_that_is_missing_is_led_again(state: m.MemberState) -> None:
    """Long after the re-shape; its devices are told as they were then, by the term of now."""
    bench = two_stages()
    bench.pass_time(4.0)
    assert bench.deployment.stage is DONE
    count = len(bench.led)
    bench.pass_time(100.0)
    assert len(bench.led) == count
    bench.leave("mixed-c1-0", state)
    bench.pass_time(3.0)
    assert bench.led[count][1:] == ("d0", "mixed-c1-0")
    assert "mixed-c1-0" in bench.workers


def test_a_group_that_is_drained_is_dropped() -> None:
    """An operator wants it so; one whose engine failed is led again."""
    for notice_s, led in ((30.0, 0), (0.0, 1)):
        bench = two_stages()
        bench.pass_time(4.0)
        count = len(bench.led)
        bench.held["mixed-c1-0"] = [sequence("r")]
        bench.drain("mixed-c1-0", notice_s)
        bench.pass_time(0.5)
        bench.leave("mixed-c1-0")
        bench.pass_time(3.0)
        assert len(bench.led) - count == led
        assert len(bench.deployment.groups) == led


def test_a_worker_that_was_taken_for_lost_is_drained_when_it_comes_back() -> None:
    """The re-shape has ended without it."""
    bench = two_stages(sequence("r"))
    while not bench.drains:
        bench.pass_time(0.1)
    away = bench.workers.pop("mixed-0")
    bench.pass_time(4.0)
    assert bench.deployment.stage is DONE
    count = len(bench.drains)
    bench.workers["mixed-0"] = replace(away, state=m.MemberState.READY)
    bench.pass_time(1.0)
    assert len(bench.drains) == count + 1


def test_requests_that_cannot_move_are_given_back_at_the_drains_deadline() -> None:
    policy = PlannerPolicy(reshape_drain_s=8.0)
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), policy=policy)
    bench.held["mixed-0"] = [sequence("vast", tokens=10**8)]
    bench.reshape("1,2,1")
    bench.pass_time(9.0)
    assert {choice_id for _, choice_id, _ in bench.given_back} == {"vast"}
    assert bench.moves == []
    assert bench.deployment.given_back >= 1


def test_a_deployment_is_written_again_now_and_then() -> None:
    """The store may have lost its data, and devices read there whether they lead by themselves."""
    bench = two_stages()
    bench.pass_time(5.0)
    count = len(bench.plans)
    bench.pass_time(2 * STORE_AGAIN_S)
    assert 1 <= len(bench.plans) - count <= 3


def test_late_and_unknown_answers_of_devices_change_nothing() -> None:
    """Nor do they without a term, or before any order."""
    bench = ReshapeBench(group("mixed-0", "d0"), term=None)
    bench.feed(bench.devices["d0"])
    bench.feed(c.TermHeld(5, 1e12))
    bench.feed(bench.devices["d0"])
    bench.refusal("1,1,1")


def test_a_plan_survives_the_store() -> None:
    bench = two_stages(sequence("r"))
    bench.pass_time(1.5)
    adapter = TypeAdapter(Plan)
    plan = bench.plans[-1]
    assert plan.deployment is not None and plan.leaves
    assert adapter.validate_json(adapter.dump_json(plan)) == plan
    assert adapter.validate_json(b'{"term":1,"change":2,"version":3,"leaves":[]}') == Plan(1, 2, 3)
