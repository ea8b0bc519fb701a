"""What a change of groups moves, and who gives it: as the plan of the migration says, in its order."""

from __future__ import annotations

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.group_migration import migration_of, same_shape_map
from tests.unit.core.planner.bench import notice
from tests.unit.core.planner.reshape_bench import MODEL, ReshapeBench, group

COST = ChangeCost(0.05, 1e-4)


def weights_of(bench: ReshapeBench, device_id: str) -> list[tuple[str, int, int]]:
    """What orders to lead had a device get."""
    orders = {
        send.message.worker_id: send.message
        for _, send in bench.orders(m.LeadGroup)
        if isinstance(send.message, m.LeadGroup)
    }
    return [
        (each.source_id, each.first_layer, each.layers)
        for order in orders.values()
        for each in order.weights
        if each.device_id == device_id
    ]


def test_orders_to_lead_say_who_gives_what() -> None:
    """Each device gets what it lacks, once: the layers of the other stage, with the embedding or the head."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1", stages=2))
    bench.reshape("2,1,1")
    bench.pass_time(3.0)
    assert weights_of(bench, "d0") == [("d1", 3, 4)]
    assert weights_of(bench, "d1") == [("d0", -1, 4)]
    assert {
        send.message.planner_id for _, send in bench.orders(m.LeadGroup) if isinstance(send.message, m.LeadGroup)
    } == {"planner"}


def test_what_new_groups_tell_is_counted_once_for_the_change() -> None:
    bench = ReshapeBench(group("mixed-0", "d0", "d1", stages=2))
    bench.reshape("2,1,1")
    bench.pass_time(1.0)
    change = bench.deployment.change
    bench.feed(m.GroupFormed(f"mixed-c{change}-0", change, 7, 2, 1))
    bench.feed(m.GroupFormed(f"mixed-c{change}-1", change, 3, 0, 0))
    bench.feed(m.GroupFormed("mixed-0", change, 100, 0, 0))
    bench.feed(m.GroupFormed(f"mixed-c{change}-0", change - 1, 100, 0, 0))
    bench.pass_time(3.0)
    deployment = bench.deployment
    assert (deployment.fetched_bytes, deployment.unplanned_bytes, deployment.read_bytes) == (10, 2, 1)


def test_a_group_beside_which_nothing_serves_need_not_wait_for_all_its_weights() -> None:
    """Another one does: streams go on in the old groups meanwhile."""
    bench = ReshapeBench(group("mixed-0", "d0", "d1", stages=2), spare=("d2",))
    bench.reshape("3,1,1")
    bench.pass_time(3.0)
    bench.leave("mixed-c1-0", m.MemberState.LOST)
    bench.forms = False
    bench.pass_time(5.0)
    orders = [send.message for _, send in bench.orders(m.LeadGroup) if isinstance(send.message, m.LeadGroup)]
    assert not any(each.serves_early for each in orders)
    bench.leave("mixed-c1-1", m.MemberState.LOST)
    bench.leave("mixed-c1-2", m.MemberState.LOST)
    bench.pass_time(5.0)
    last = bench.orders(m.LeadGroup)[-1][1].message
    assert isinstance(last, m.LeadGroup) and last.serves_early


def test_a_spare_device_gets_its_part_from_the_one_that_leaves() -> None:
    bench = ReshapeBench(group("mixed-0", "d0", "d1", stages=2), spare=("d2",))
    bench.feed(notice("d1", bench.now + 60.0))
    bench.pass_time(3.0)
    assert weights_of(bench, "d2") == [("d1", 3, 4)]
    assert weights_of(bench, "d0") == []


def test_sources_are_those_of_the_plan() -> None:
    """Who has it gives it, also under notice; of several, each gives a share."""
    before = [group("w", "d0", "d1", "d2", stages=3)]
    device_map = same_shape_map(
        before, [group("v", "d3", "d4", "d5", stages=3)], [f"d{n}" for n in range(6)], {"d2": 60.0}
    )
    assert device_map is not None
    migration = migration_of(device_map, MODEL, COST, now=50.0)
    assert [(each.device_id, each.source_id) for each in migration.weights] == [
        ("d3", "d0"),
        ("d4", "d1"),
        ("d5", "d2"),
    ]
    whole = same_shape_map(
        [group("w", "d0"), group("u", "d1")], [group("v", "d2"), group("u", "d1")], ["d0", "d1", "d2"], {}
    )
    assert whole is not None
    shared = migration_of(whole, MODEL, COST, now=50.0).weights
    assert sum(each.layers for each in shared) == MODEL.layers + 2 and {each.source_id for each in shared} == {
        "d0",
        "d1",
    }


def test_there_is_no_plan_for_groups_of_unequal_shapes() -> None:
    """Nor where all groups compute prompts."""
    assert same_shape_map([group("w", "d0", "d1")], [group("v", "d0", "d1", stages=2)], ["d0", "d1"], {}) is None
    prompts = [group("w", "d0", pool=Pool.PROMPT)]
    assert same_shape_map(prompts, [group("v", "d1", pool=Pool.PROMPT)], ["d0", "d1"], {}) is None


def test_a_device_that_is_gone_gives_nothing() -> None:
    lost = same_shape_map([group("w", "d0", "d1", stages=2)], [group("v", "d0", "d2", stages=2)], ["d0", "d2"], {})
    assert lost is not None
    migration = migration_of(lost, MODEL, COST, now=50.0)
    assert migration.weights == () and migration.moved_bytes == migration.storage_bytes > 0


def test_a_device_that_is_silent_for_a_moment_needs_nothing() -> None:
    """Its group goes on."""
    before = [group("w", "d0"), group("u", "d1")]
    found = same_shape_map(before, [before[1], group("v", "d2")], ["d0", "d2"], {"d0": 90.0})
    assert found is not None
    assert {each.device_id for each in migration_of(found, MODEL, COST, now=50.0).weights} == {"d2"}


def test_what_the_plan_relays_comes_from_the_device_that_has_it() -> None:
    """A device that gets it in the same moment could not give it yet."""
    before = [group("w", "d0")]
    after = [*before, *(group(f"v{number}", f"d{number}") for number in (1, 2, 3))]
    found = same_shape_map(before, after, ["d0", "d1", "d2", "d3"], {})
    assert found is not None
    weights = migration_of(found, MODEL, COST, now=50.0).weights
    assert {each.source_id for each in weights} == {"d0"}
    assert {each.device_id for each in weights} == {"d1", "d2", "d3"}


def test_what_no_device_can_give_in_time_each_newcomer_reads_by_itself() -> None:
    """The only holder is gone in a moment: two newcomers read all of it each, and none waits for the other."""
    before, after = [group("mixed-0", "d0")], [group("mixed-1", "d1"), group("mixed-2", "d2")]
    device_map = same_shape_map(before, after, ("d0", "d1", "d2"), {"d0": 100.000001})
    assert device_map is not None
    migration = migration_of(device_map, MODEL, COST, now=100.0)
    whole = MODEL.group_bytes(1)
    assert (migration.storage_bytes, migration.moved_bytes) == (2 * whole, 2 * whole)
    assert migration.weights == ()
