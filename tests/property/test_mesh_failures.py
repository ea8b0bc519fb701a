"""The real roles with failing pairs, engines and requests: no innocent member or request loses anything."""

from __future__ import annotations

from functools import partial

from hypothesis import example, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.placement import MAX_FAILED_HANDOFFS
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.policy import WorkerPolicy
from tests.property.mesh_world import MeshWorld
from tests.property.test_mesh_world import MeshCase, assert_served, assert_whole, meshes, settle


def whole(world: MeshWorld, but: set[str]) -> None:
    """Every request got every token, but for some."""
    for choice_id, ending in world.ended.items():
        if choice_id not in but:
            assert ending == "length"
            assert len(world.delivered[choice_id]) == world.stops[choice_id].max_new_tokens


@settings(max_examples=100)
@given(meshes(1, 16), st.floats(0.0, 1.0))
def test_bad_pairs_cost_a_request_two_attempts_at_most(case: MeshCase, share: float) -> None:
    """Some pairs of workers, or all, cannot hand KV over."""
    world, count, pools = case.world(), case.count, case.pools
    for prompt_worker in range(len(pools)):
        for token_worker in range(len(pools)):
            if world.rng.random() <= share:
                world.bad_pairs.add((f"w{prompt_worker}", f"w{token_worker}"))
    settle(world, count)
    whole(world, set())
    assert max(world.attempts.values()) <= 1 + MAX_FAILED_HANDOFFS


@settings(max_examples=100)
@given(meshes(1, 16), st.integers(1, 2))
def test_requests_that_fail_their_iterations_harm_no_others(case: MeshCase, culprits: int) -> None:
    """All others get all tokens in one attempt, however often the batches fail that they share with those."""
    world, count = case.world(), case.count
    world.culprits = {f"r{number}" for number in range(min(culprits, count))}
    settle(world, count)
    whole(world, world.culprits)
    for choice_id in world.ended:
        if choice_id in world.culprits:
            assert world.ended[choice_id] in ("engine_error", "fells_workers", "not_recovered")
            assert world.delivered[choice_id] == []
        else:
            assert world.attempts[choice_id] == 1


@settings(max_examples=100)
@given(meshes(3, 16), st.integers(1, 3))
def test_engines_that_break_cost_no_token(case: MeshCase, broken: int) -> None:
    """A worker whose engine fails for every request ends, and its successor does not; its requests resume on other workers."""
    world, count, pools = case.world(), case.count, case.pools

    def break_engine(worker_id: str) -> None:
        if worker_id in world.workers:
            world.workers[worker_id].engine_is_broken = True

    def repair() -> None:
        for worker in world.workers.values():
            worker.engine_is_broken = False

    for number in range(min(broken, len(pools))):
        world.at(world.rng.uniform(0.5, 3), partial(break_engine, f"w{number}"))
    # with fewer requests left than it takes to be sure, one stays broken
    world.at(4.0, repair)
    settle(world, count)
    assert_whole(world, "no_workers", "fells_workers", "not_recovered")


@settings(max_examples=150)
@given(meshes(3, 16), st.integers(1, 6))
def test_engines_that_are_lost_and_come_back_cost_no_token(case: MeshCase, losses: int) -> None:
    """A worker that loses a process of its engine gives its requests back, and takes new ones once it is whole."""
    world, count, pools = case.world(), case.count, case.pools
    for _ in range(losses):
        worker_id = f"w{world.rng.randrange(len(pools))}"
        world.at(world.rng.uniform(0.1, 4), partial(world.lose_engine, worker_id, world.rng.choice([0.05, 0.5, 3.0])))
    settle(world, count)
    assert_served(world)


@settings(max_examples=100)
@given(meshes(1, 12, pool_policies=st.just(PoolPolicy())))
@example(MeshCase(572, [Pool.TOKEN], 11, (0.02, 0.05), WorkerPolicy(BatchLimits(4, 12)), PoolPolicy(), 1))
def test_a_request_that_ends_its_workers_ends_three(case: MeshCase) -> None:
    """A request that ends its workers is given up after three, and the other requests on them get every token. A worker that
    had its order, while the scheduler took it for gone, is not counted.
    """
    world, count = case.world(), case.count
    world.killers = {"r0"}
    ended: list[str] = []
    kill = world.kill
    world.kill = lambda worker_id: (ended.append(worker_id), kill(worker_id))  # type: ignore[assignment, func-returns-value]
    settle(world, count)
    outcome = world.ended.pop("r0")
    # On one slow worker the request's recovery may run out of time before the third worker ends.
    assert outcome in ("fells_workers", "no_workers") or (outcome == "not_recovered" and len(ended) < 3)
    unanswered = sum("did not answer the scheduler" in reason for reason in world.lost_attempts)
    assert len(ended) <= 3 + unanswered
    assert_served(world)
