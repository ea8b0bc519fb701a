"""Groups of devices change while they serve: no client gets another token, or one twice, for it, and every re-shape ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.plan import PlannedDeployment
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.replacement import homes
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.core.worker.policy import WorkerPolicy
from tests.property.devices import POOLS, Devices
from tests.property.mesh_world import MeshWorld
from tests.property.planners import Planners
from tests.property.test_mesh_world import COST, MeshCase, assert_served, meshes, settle

#: Requests run for seconds: re-shapes find them.
PACES = st.sampled_from([(0.3, 0.1), (0.5, 0.5), (1.5, 0.1)])
CONFIGS = ("1,1,2", "2,1,2", "1,2,1", "2,2,1", "1+1,1,1", "1+1,1,2", "1+2,1,1", "3,1,1", "1,3,1", "4,1,1")
SHAPES = st.sampled_from(CONFIGS).map(ParallelConfig.parse)
POLICY = PlannerPolicy(
    survey_s=0.2,
    margin_s=0.3,
    move_latency_s=0.01,
    kv_token_s=1e-5,
    form_s=6.0,
    reshape_drain_s=20.0,
    replace_after_s=6.0,
)
WITHIN_S = 300.0
MOST_ORDERS = 3
LAST_ORDER_S = 20.0
#: The longest way of a re-shape to its end: a survey, groups that form, a drain, and planners that take over.
ENDS_WITHIN_S = 60.0
#: A worker is relieved in the moment in which the planner finds that one of its devices has to leave.
NOTICED_WHILE_RELIEVED = MeshCase(
    0,
    [Pool.PROMPT, Pool.TOKEN, Pool.TOKEN],
    11,
    (0.3, 0.1),
    WorkerPolicy(
        BatchLimits(4, 12, 7),
        watermark=0.0,
        max_preemptions=1,
        prefix_caching=False,
        max_in_flight=1,
        preempt_after_s=0.0,
        kv_push=ConfiguredPushMode.LAYERWISE,
        cost=COST,
        swap=SwapPolicy(WhenFull.RECOMPUTE, 0, 0),
    ),
    PoolPolicy(
        0,
        None,
        break_even=False,
        repurpose_share=0.05,
        repurpose_window_s=0.3,
        prefix_spans=0,
        decode_queue=DecodeQueue.SEQUENCES,
    ),
    5,
)


def reshapable(case: MeshCase, spare: int) -> tuple[MeshWorld, Planners, Devices]:
    """A mesh whose workers are groups of two shards, with spare devices."""
    world = case.world()
    planners = Planners(world, policy=POLICY)
    return world, planners, Devices(world, planners, 2, spare)


def order_some(world: MeshWorld, planners: Planners, configs: list[ParallelConfig]) -> None:
    """Order these configurations at random times, one after the other."""
    at_s = 0.0
    for number, config in enumerate(configs, start=1):
        at_s += world.rng.uniform(0.5, LAST_ORDER_S / MOST_ORDERS)
        world.at(at_s, partial(planners.reshape, number, config))


def can_be(group: m.DeviceGroup, deployment: PlannedDeployment, devices: Devices | None) -> bool:
    """Whether every device of a group is there, may stay, and is in no later group: else the group waits for machines."""
    assert devices is not None
    home = homes(deployment.groups)
    return all(
        devices.incarnations[each] and each not in devices.leave_at_s and home[each] == group.worker_id
        for each in group.device_ids
    )


def assert_over(world: MeshWorld, planners: Planners) -> None:
    """The last re-shape has ended, the groups that are to be serve, and none of those that retire is left."""

    def is_over() -> bool:
        deployment, workers = planners.deployment, set(world.workers)
        if deployment is None:
            return True
        groups = [group for group in deployment.groups if can_be(group, deployment, world.devices)]
        return (
            deployment.stage.is_over
            and {group.worker_id for group in groups} == workers & {group.worker_id for group in deployment.groups}
            and not deployment.retiring_ids & workers
        )

    world.run_until(world.now + ENDS_WITHIN_S, is_over)
    assert is_over(), f"{planners.deployment} with {sorted(world.workers)}"
    event(f"ends: {'never began' if planners.deployment is None else planners.deployment.stage.value}")


@settings(max_examples=60)
@given(
    meshes(4, 16, pools=st.sampled_from(POOLS), paces=PACES),
    st.integers(0, 3),
    st.lists(SHAPES, min_size=1, max_size=MOST_ORDERS),
)
def test_re_shapes_cost_no_token(case: MeshCase, spare: int, configs: list[ParallelConfig]) -> None:
    """Undisturbed, every request gets every token, and in the end the mesh has the last re-shape's groups and no others."""
    world, planners, _ = reshapable(case, spare)
    order_some(world, planners, configs)
    world.run_until(world.now + LAST_ORDER_S)
    settle(world, case.count, WITHIN_S)
    assert_over(world, planners)
    assert set(world.ended.values()) == {"length"}
    assert [answer.number for answer in planners.answers] == list(range(1, len(configs) + 1))
    if planners.deployment is not None:
        assert planners.deployment.stage.value == "done"
        assert set(world.workers) == {group.worker_id for group in planners.deployment.groups}
    assert_served(world)


@settings(max_examples=150)
@given(
    meshes(4, 16, pools=st.sampled_from(POOLS), paces=PACES),
    st.integers(0, 3),
    st.lists(SHAPES, min_size=1, max_size=MOST_ORDERS),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.05, 0.3]),
)
def test_re_shapes_in_the_rain_cost_no_token(
    case: MeshCase, spare: int, configs: list[ParallelConfig], kills: int, loss: float
) -> None:
    """Devices and planners die and come back, groups do not form, workers get notices, messages are lost, repeated and old."""
    world, planners, devices = reshapable(case, spare)
    rng = world.rng
    world.loss, world.repeats = loss, rng.choice([0.0, 0.3])
    devices.slowest_s, devices.fail_rate = rng.choice([0.5, 3.0, 9.0]), rng.choice([0.0, 0.3, 0.9])
    world.at(LAST_ORDER_S, partial(_calm_down, world, devices))
    order_some(world, planners, configs)
    for _ in range(rng.randint(0, 3)):
        planner_id, at_s = f"planner-{rng.randrange(2)}", rng.uniform(0.2, 15.0)
        world.at(at_s, partial(planners.kill, planner_id))
        world.at(at_s + rng.uniform(0.1, 4.0), partial(planners.start, planner_id))
    if rng.random() < 0.3:
        world.at(rng.uniform(0.2, 10.0), lambda: setattr(planners, "store_away_until_s", world.now + 2.0))
    for _ in range(kills):
        world.at(
            rng.uniform(0.5, 15.0), partial(devices.kill, rng.choice(list(devices.incarnations)), rng.uniform(0.05, 5))
        )
        world.at(rng.uniform(0.5, 15.0), partial(_stall_one, world, rng.uniform(0.1, 4)))
    if rng.random() < 0.3:
        world.at(rng.uniform(0.5, 12.0), partial(_notice_one, world, planners, rng.choice([1.5, 5.0, 20.0])))
    world.run_until(world.now + LAST_ORDER_S)
    _order_where_nothing_serves(world, planners, len(configs) + 1)
    settle(world, case.count, WITHIN_S)
    assert_over(world, planners)
    assert_served(world, *(["fells_workers"] if kills >= 2 else []))
    world.run_until(world.now + 15.0)


def _calm_down(world: MeshWorld, devices: Devices) -> None:
    world.loss = devices.fail_rate = 0.0
    devices.slowest_s = min(devices.slowest_s, 3.0)  # groups that never form in time are tried again for ever


def _order_where_nothing_serves(world: MeshWorld, planners: Planners, number: int) -> None:
    """An operator's answer to a notice that took the last group."""
    if not world.workers:
        planners.reshape(number, ParallelConfig(1, 1, 2))
    world.at(5.0, partial(_order_where_nothing_serves, world, planners, number + 1))


def _stall_one(world: MeshWorld, seconds: float) -> None:
    if world.workers:
        world.stall(world.rng.choice(sorted(world.workers)), seconds)


def _notice_one(world: MeshWorld, planners: Planners, seconds: float) -> None:
    if world.workers:
        planners.notice(world.rng.choice(sorted(world.workers)), seconds)


@settings(max_examples=40)
@given(meshes(4, 16, pools=st.sampled_from(POOLS), paces=PACES), st.integers(1, 3))
def test_devices_that_leave_cost_no_token(case: MeshCase, count: int) -> None:
    """With as many spare devices as leave, the groups are those of before, on devices that stay."""
    world, planners, devices = reshapable(case, count)
    shapes = sorted(group.shards for group in devices.at_first)
    members = [each for group in devices.at_first for each in group.device_ids]
    for device_id in world.rng.sample(members, min(count, len(members))):
        world.at(world.rng.uniform(0.5, 4.0), partial(notice_device, world, planners, devices, device_id, 25.0))
    world.run_until(world.now + 30.0)
    settle(world, case.count, WITHIN_S)
    assert_over(world, planners)
    assert set(world.ended.values()) == {"length"}
    deployment = planners.deployment
    assert deployment is not None and deployment.cause
    assert sorted(group.shards for group in deployment.groups) == shapes
    assert set(world.workers) == {group.worker_id for group in deployment.groups}
    assert_served(world)


@settings(max_examples=60)
@given(
    meshes(4, 16, pools=st.sampled_from(POOLS), paces=PACES),
    st.integers(0, 3),
    st.lists(SHAPES, max_size=2),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.05, 0.3]),
)
@example(NOTICED_WHILE_RELIEVED, 2, [ParallelConfig.parse("1,1,2")], 3, 0.0)
def test_devices_in_the_rain_cost_no_token(
    case: MeshCase, spare: int, configs: list[ParallelConfig], notices: int, loss: float
) -> None:
    """Devices get notices, also sooner ones and ones that are withdrawn, die for good, and join, at any time of any change."""
    world, planners, devices = reshapable(case, spare)
    rng = world.rng
    world.loss, world.repeats = loss, rng.choice([0.0, 0.3])
    devices.slowest_s, devices.fail_rate = rng.choice([0.5, 3.0, 9.0]), rng.choice([0.0, 0.3])
    world.at(LAST_ORDER_S, partial(_calm_down, world, devices))
    order_some(world, planners, configs)
    for _ in range(notices):
        device_id, at_s, seconds = (
            rng.choice(list(devices.incarnations)),
            rng.uniform(0.5, 12.0),
            rng.choice([2.0, 8.0, 20.0]),
        )
        world.at(at_s, partial(notice_device, world, planners, devices, device_id, seconds))
        if rng.random() < 0.3:
            world.at(at_s + rng.uniform(0.1, 3.0), partial(notice_device, world, planners, devices, device_id, 1.5))
    for _ in range(rng.randint(0, 2)):
        device_id, at_s = rng.choice(list(devices.incarnations)), rng.uniform(0.5, 12.0)
        world.at(at_s, partial(withdraw_one, world, planners, devices, device_id, rng.uniform(0.1, 3.0)))
    planners_die = rng.random() < 0.5
    for _ in range(rng.randint(0, 2)):
        # Before the first deployment is stored only planners' memory has the groups of a device that never comes back.
        back_s = rng.choice([rng.uniform(0.1, 4.0), 12.0, *([] if planners_die else [None])])
        world.at(rng.uniform(0.5, 12.0), partial(devices.kill, rng.choice(list(devices.incarnations)), back_s))
    for number in range(rng.randint(0, 2)):
        world.at(rng.uniform(0.5, 12.0), partial(devices.join, f"acquired-{number}"))
    for _ in range(rng.randint(1, 2) * planners_die):
        planner_id, at_s = f"planner-{rng.randrange(2)}", rng.uniform(0.2, 15.0)
        world.at(at_s, partial(planners.kill, planner_id))
        world.at(at_s + rng.uniform(0.1, 4.0), partial(planners.start, planner_id))
    for number in range(2):  # machines come in the end
        world.at(LAST_ORDER_S, partial(devices.join, f"late-{number}"))
    world.run_until(world.now + LAST_ORDER_S)
    settle(world, case.count, WITHIN_S)
    assert_over(world, planners)
    assert_served(world, "fells_workers")
    world.run_until(world.now + 15.0)
    if planners.deployment is not None:
        serving = [group for group in planners.deployment.groups if group.worker_id in world.workers]
        assert not any(each in devices.leave_at_s for group in serving for each in group.device_ids)


def notice_device(world: MeshWorld, planners: Planners, devices: Devices, device_id: str, seconds: float) -> None:
    """A machine's watcher reports a device, and tells it; or an operator does, who tells it only."""
    deadline_s = world.now + seconds
    if world.rng.random() < 0.5:
        kind = m.InterruptionKind.NOTICE
        planners.report_devices(m.InterruptionReported("watcher", "go", kind, (device_id,), deadline_s), again=3)
    world.transmit("watcher", device_id, partial(devices.receive, device_id, m.Drain(device_id, deadline_s)))


def withdraw_one(world: MeshWorld, planners: Planners, devices: Devices, device_id: str, after_s: float) -> None:
    """A notice is withdrawn before its device has heard of it."""
    report = m.InterruptionReported("watcher", "go", m.InterruptionKind.NOTICE, (device_id,), world.now + 10.0)
    planners.report_devices(report, again=0)
    gone = replace(report, kind=m.InterruptionKind.WITHDRAWN, deadline_s=None)
    world.at(after_s, partial(planners.report_devices, gone, again=3))
