"""What the ends of requests cost in messages: those that are refused none beside their rejection, others a few, however many
workers there are.
"""

from __future__ import annotations

from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.role import SchedulerLimits
from tests.property.mesh_world import MeshWorld
from tests.property.test_mesh_world import MeshCase, close_if_open, meshes, settle

#: The prompt worker, the token worker, and one that the sequence has moved to.
MOST_HOLDERS = 3
REFUSED = ("mesh_full", "queue_timeout", "no_workers", "never_fits")
IMPATIENT = st.builds(
    SchedulerLimits,
    max_queued=st.sampled_from([0, 2, 1024]),
    max_queue_s=st.sampled_from([0.3, 1000.0]),
    max_unready_s=st.sampled_from([0.0, 30.0]),
)


def refused(world: MeshWorld) -> int:
    """Requests that the scheduler has rejected."""
    return sum(ending in REFUSED for ending in world.ended.values())


@settings(max_examples=60)
@given(meshes(8, 24), IMPATIENT)
def test_a_refused_request_is_not_closed(case: MeshCase, limits: SchedulerLimits) -> None:
    """Its scheduler has dropped it; each other one is closed once, and nothing is cancelled for it, as all of these finish."""
    world = case.world(limits)
    settle(world, case.count)
    assert world.closings == case.count - refused(world)
    assert world.scheduler_sends[m.CloseRequest, m.CancelRequest] == 0
    assert world.scheduler_sends[m.SubmitRequest, m.RequestRejected] <= refused(world)
    event(f"refused: {'some' if refused(world) else 'none'}")


@settings(max_examples=60)
@given(meshes(8, 24), IMPATIENT, st.integers(0, 2))
def test_a_closing_is_passed_on_to_those_that_have_the_request(
    case: MeshCase, limits: SchedulerLimits, restarts: int
) -> None:
    """Clients leave, and the scheduler restarts and knows none of the requests: it does not turn to all workers."""
    world = case.world(limits)
    for _ in range(restarts):
        world.at(world.rng.uniform(0, 4), lambda: world.restart_scheduler(world.rng.choice([0.01, 0.5])))
    for number in range(0, case.count, 2):
        world.at(world.rng.uniform(0.5, 5), partial(close_if_open, world, f"r{number}"))
    settle(world, case.count)
    assert world.closings <= case.count
    assert world.scheduler_sends[m.CloseRequest, m.CancelRequest] <= MOST_HOLDERS * (case.count // 2 + 1)
