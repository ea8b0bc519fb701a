"""Orders of re-shapes: what is planned, what is refused, and when they are answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner import commands as c
from spotwise.core.planner.plan import ReshapeStage
from spotwise.core.planner.policy import PlannerPolicy
from tests.unit.core.planner.bench import notice
from tests.unit.core.planner.reshape_bench import MODEL, PARTITION, ReshapeBench, group

THREE_SHARDS = ParallelConfig(1, 1, 3)


def test_an_accepted_order_names_its_change_and_what_it_moves() -> None:
    """Devices keep the most of what they have: the first stage's device stays the first of a pipeline of two."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1", stages=2), group("mixed-1", "d2", "d3", stages=2))
    reply, prediction = bench.accepted("4,1,1")
    assert reply.change == 1
    assert reply.detail == "4,1,1: 4 groups are formed, 0 groups go on, 2 groups retire"
    assert prediction.new_ids == ("mixed-c1-0", "mixed-c1-1", "mixed-c1-2", "mixed-c1-3")
    assert prediction.retiring_ids == ("mixed-0", "mixed-1")
    assert prediction.kept_bytes + prediction.moved_bytes == 4 * MODEL.weight_bytes
    assert prediction.kept_bytes == 2 * MODEL.weight_bytes
    assert prediction.forming_s > 0 and prediction.pause_s > 0
    assert bench.plans[0].change == 1


def test_groups_that_need_not_change_go_on() -> None:
    """They keep their ids and are not drained; only the spare devices form a new one."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("d2", "d3"))
    _, prediction = bench.accepted("2,1,2")
    assert [each.worker_id for each in prediction.groups] == ["mixed-0", "mixed-c1-1"]
    bench.pass_time(5.0)
    assert bench.stages == [ReshapeStage.FORMING, ReshapeStage.MOVING, ReshapeStage.DONE]
    assert bench.drains == []
    assert [worker_id for _, _, worker_id in bench.led] == ["mixed-c1-1"]


def test_fewer_groups_retire_one_and_form_none() -> None:
    """What is left goes on."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), group("mixed-1", "d2", "d3"))
    reply, _ = bench.accepted("1,1,2")
    assert reply.detail == "1,1,2: 0 groups are formed, 1 group goes on, 1 group retires"
    bench.pass_time(3.0)
    assert [drain.worker_id for _, drain in bench.drains] == ["mixed-1"]
    assert bench.led == []
    assert bench.deployment.stage is ReshapeStage.DONE


def test_phases_can_be_split_and_put_together_again() -> None:
    """A group of another pool is another group, on the same devices."""
    bench = ReshapeBench(group("prompt-0", "d0", "d1", pool=Pool.PROMPT), group("token-0", "d2", "d3", pool=Pool.TOKEN))
    bench.reshape("1+1,2,1")
    bench.pass_time(5.0)
    assert {(each.pool, each.stages) for each in bench.deployment.groups} == {(Pool.PROMPT, 2), (Pool.TOKEN, 2)}
    _, prediction = bench.accepted("2,2,1")
    assert {each.pool for each in prediction.groups} == {Pool.MIXED}
    assert prediction.moved_bytes == 0
    bench.pass_time(5.0)
    assert sorted(bench.workers) == ["d0", "d1", "d2", "d3", "mixed-c3-0", "mixed-c3-1"]


def test_groups_of_unequal_shapes_are_mapped_without_what_they_hold() -> None:
    """No configuration describes them."""
    bench = ReshapeBench(
        group("prompt-0", "d0", "d1", "d2", pool=Pool.PROMPT), group("token-0", "d3", "d4", stages=2, pool=Pool.TOKEN)
    )
    _, prediction = bench.accepted("1+1,1,2")
    assert (prediction.kept_bytes, len(prediction.new_ids)) == (0, 2)
    bench.pass_time(5.0)
    assert bench.deployment.stage is ReshapeStage.DONE


def test_a_dry_run_answers_and_changes_nothing() -> None:
    """Nor does it use up a number."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"))
    for _ in range(2):
        reply, prediction = bench.accepted("1,2,1", dry_run=True)
        assert (reply.change, prediction.new_ids) == (0, ("mixed-c1-0",))
    bench.pass_time(5.0)
    assert (bench.plans, bench.led, bench.drains, bench.reshapes) == ([], [], [], [])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("2,1,2", "2,1,2 needs 4 devices, and 3 answer"),
        ("1,1,3", "the mesh has the configuration 1,1,3 already"),
        ("1,7,1", "six cannot be cut into 7 stages of 1 shards: 7 stages for 6 layers"),
        ("1,1,2", "2 shards do not divide its 3 KV heads; possible: 1, 3"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(config: str, words: str) -> None:
    """And with what can, where that is known."""
    model = MODEL if config == "2,1,2" else replace(MODEL, partition=PARTITION)
    bench = ReshapeBench(group("mixed-0", "d0", "d1", "d2"), model=model)
    assert words in bench.refusal(config)
    assert bench.plans == []


def test_workers_without_devices_are_no_groups() -> None:
    bench = ReshapeBench(group("mixed-0", "d0"), spare=("d1",))
    bench.workers["token-0"] = replace(bench.workers["mixed-0"], id="token-0")
    bench.feed(bench.workers["token-0"])
    assert bench.refusal("1,2,1").startswith("no device reports a position in token-0")
    assert ReshapeBench().refusal("1,2,1") == "no device answers; start the mesh with --parallel D,P,M"


def test_devices_of_another_model_are_named() -> None:
    """They could not compute parts of the same one."""
    bench = ReshapeBench(group("mixed-0", "d0"), spare=("d1",))
    bench.devices["d1"] = replace(bench.devices["d1"], model=replace(MODEL, name="other"))
    assert bench.refusal("1,2,1").startswith("d1 and d0 have different models")


def test_a_device_that_is_silent_is_asked_again_and_then_left_out() -> None:
    """It may be one of those that are needed."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("d2",))
    silent = bench.devices.pop("d2")
    assert bench.refusal("1,1,3").endswith("; no answer of d2")
    bench.feed(c.ReshapeRequested(50, m.ReshapeMesh(THREE_SHARDS)))
    bench.pass_time(0.2)
    bench.devices["d2"] = silent
    bench.pass_time(1.0)
    assert bench.answers[-1].number == 50 and bench.answers[-1].reply.accepted


def test_one_order_at_a_time() -> None:
    """While one is planned, carried out, or its workers leave; a repeated order as well."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("d2",))
    silent = bench.devices.pop("d2")
    bench.feed(c.ReshapeRequested(50, m.ReshapeMesh(THREE_SHARDS)))
    assert bench.refusal("1,2,1").startswith("another re-shape is being planned")
    bench.pass_time(2.0)
    bench.devices["d2"] = silent
    bench.forms = False
    first, again = bench.reshape("1,1,3"), bench.reshape("1,1,3")
    assert first is not None and first.accepted
    assert again is not None and again.detail.startswith("the re-shape to 1,1,3 is under way (change 1)")


def test_no_order_is_accepted_while_a_worker_leaves() -> None:
    """Its devices may go with it."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), group("mixed-1", "d2", "d3"))
    bench.held["mixed-0"] = []
    bench.feed(notice("mixed-0", bench.now + 60.0))
    bench.pass_time(0.1)
    assert bench.refusal("1,2,1").startswith("another change of the fleet is under way")
    bench.drain("mixed-0")
    assert bench.refusal("1,2,1").startswith("mixed-0 leaves; ")


def test_a_notice_while_devices_are_surveyed_refuses_the_order() -> None:
    """What they answer is about to change."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("d2",))
    bench.devices.pop("d2")
    bench.feed(c.ReshapeRequested(50, m.ReshapeMesh(THREE_SHARDS)))
    bench.feed(notice("mixed-0", bench.now + 60.0))
    assert [(each.number, each.reply.accepted) for each in bench.answers] == [(50, False)]
    bench.pass_time(5.0)
    assert len(bench.answers) == 1


def test_a_plan_that_the_store_refuses_is_no_re_shape() -> None:
    """The operator orders it again."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"))
    bench.stores = False
    assert bench.refusal("1,2,1").startswith("the plan could not be stored")
    bench.stores = True
    bench.pass_time(5.0)
    assert (bench.led, bench.drains) == ([], [])
    assert bench.plans[-1].deployment is None
    bench.accepted("1,2,1")


@pytest.mark.parametrize("is_stored", [False, True], ids=["planned", "maybe stored"])
@pytest.mark.parametrize("over", [c.TermLost(), c.TermHeld(6, 1e12)], ids=["lost", "a new one"])
def test_an_operator_hears_of_the_end_of_the_term_that_planned(over: c.TermLost | c.TermHeld, is_stored: bool) -> None:
    """A successor knows no operator; what was stored is carried out all the same."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), spare=("d2",))
    bench.store_answers = False
    if not is_stored:
        del bench.devices["d1"]
    bench.feed(c.ReshapeRequested(7, m.ReshapeMesh(ParallelConfig.parse("3,1,1"))))
    bench.pass_time(0.1)
    assert bench.answers == []
    bench.feed(over)
    ((number, reply),) = [(answer.number, answer.reply) for answer in bench.answers]
    assert (number, reply.accepted) == (7, False)
    assert ("may have been stored" in reply.detail) == is_stored
    assert ("order this re-shape again" in reply.detail) != is_stored


def test_only_the_planner_with_the_lease_answers() -> None:
    """Unless moves are switched off, which is why there is none."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), term=None)
    assert bench.reshape("1,2,1") is None
    bench = ReshapeBench(group("mixed-0", "d0", "d1"), policy=PlannerPolicy(moves=False))
    reply = bench.reshape("1,2,1")
    assert reply is not None and "SPOTWISE_MOVES" in reply.detail


def test_a_group_that_waits_for_devices_is_dropped_by_an_order_of_what_serves() -> None:
    """The stopgap that serves is what is to be then, and a device that joins is taken by no group."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1"))
    bench.feed(notice("d1", bench.now + 20.0))
    bench.pass_time(5.0)
    assert [each.worker_id for each in bench.deployment.groups if each.worker_id in bench.workers] == ["mixed-c3-0"]
    assert "mixed-0" in [each.worker_id for each in bench.deployment.groups]
    bench.workers.pop("d1")
    bench.accepted("1,1,1")
    bench.pass_time(2.0)
    (kept,) = bench.deployment.groups
    assert kept.device_ids == ("d0",) and kept.worker_id in bench.workers
    assert bench.deployment.stage is ReshapeStage.DONE
    assert bench.deployment.stopgap_ids == ()
    bench.join_device("d2")
    bench.pass_time(5.0)
    assert bench.deployment.groups == (kept,)


def test_an_order_may_name_the_devices_that_get_positions() -> None:
    """The others stay, and get none; with too few it is refused."""
    bench = ReshapeBench(group("mixed-0", "d0"), spare=("d1", "d2"))
    order = m.ReshapeMesh(ParallelConfig.parse("1,1,2"))
    bench.feed(c.ReshapeRequested(7, order, frozenset({"d1"})))
    bench.pass_time(1.0)
    assert not bench.answers[-1].reply.accepted
    bench.feed(c.ReshapeRequested(8, order, frozenset({"d1", "d2"})))
    bench.pass_time(1.0)
    assert bench.answers[-1].reply.accepted
    (new,) = bench.deployment.new
    assert set(new.device_ids) == {"d1", "d2"}
