"""The real roles over a hostile network: whatever happens, tokens are right, everyone ends, nothing is held."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages.members import Pool
from spotwise.core.messages.numerics import Crossing, Numerics
from spotwise.core.messages.worker import Drain
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.core.worker.policy import Batching, Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from tests.property.mesh_world import MeshWorld

POOLS = st.sampled_from(
    [
        [Pool.PROMPT, Pool.TOKEN],
        [Pool.PROMPT, Pool.PROMPT, Pool.TOKEN, Pool.TOKEN],
        [Pool.TOKEN],
        [Pool.MIXED, Pool.MIXED],
        [Pool.PROMPT, Pool.MIXED, Pool.TOKEN],
        [Pool.PROMPT, Pool.PROMPT, Pool.TOKEN, Pool.TOKEN, Pool.TOKEN, Pool.MIXED],
    ]
)
#: Longest iteration and longest push, seconds: a fast mesh, slow engines, slow links.
PACES = st.sampled_from([(0.02, 0.05), (1.5, 0.1), (0.05, 1.5)])
#: A decode takes a tenth of a second, a prompt token a hundredth more; quanta from one decode to eight.
COST = LinearIterationCost(0.1, prompt_token_s=0.01, prompt_context_s=0.0, decode_s=0.0, decode_context_s=0.0)
QUEUES = st.builds(MlfqPolicy, st.just(0.1), queues=st.just(4), starve_limit_s=st.sampled_from([0.3, 3.0]))
#: Prompts whole and in parts, blocks on demand and all at once, turns by arrival, by priority and by queues, KV
#: that is computed again, and KV that goes to the host.
POLICIES = st.builds(
    WorkerPolicy,
    st.builds(BatchLimits, st.just(4), st.just(12), st.none() | st.integers(4, 16)),
    st.sampled_from([Reserve.ON_DEMAND, Reserve.ON_DEMAND, Reserve.MAX_TOKENS]),
    watermark=st.sampled_from([0.0, 0.01, 0.2]),
    max_preemptions=st.integers(1, 3),
    prefix_caching=st.booleans(),
    max_in_flight=st.sampled_from([1, 1, 3]),
    prompts_first=st.booleans(),
    preempt_after_s=st.sampled_from([0.0, 0.2, 1.0]),
    kv_push=st.sampled_from(ConfiguredPushMode),
    scheduling=st.sampled_from([Scheduling.FCFS, Scheduling.FCFS, Scheduling.PRIORITY, Scheduling.MLFQ]),
    mlfq=QUEUES,
    cost=st.just(COST),
    swap=st.builds(SwapPolicy, st.sampled_from([WhenFull.RECOMPUTE, *WhenFull]), st.integers(0, 2), st.integers(0, 2)),
) | st.just(WorkerPolicy(BatchLimits(4, 12), Reserve.MAX_TOKENS, batching=Batching.REQUEST_LEVEL))
#: Those under which KV goes to the host, often.
SWAPPING = st.builds(
    WorkerPolicy,
    st.builds(BatchLimits, st.sampled_from([2, 4]), st.just(12), st.none() | st.integers(4, 16)),
    watermark=st.just(0.0),
    prefix_caching=st.booleans(),
    kv_push=st.sampled_from(ConfiguredPushMode),
    scheduling=st.sampled_from([Scheduling.MLFQ, Scheduling.MLFQ, Scheduling.PRIORITY]),
    mlfq=QUEUES,
    cost=st.just(COST),
    swap=st.builds(SwapPolicy, st.sampled_from([WhenFull.REACTIVE, WhenFull.PROACTIVE]), st.integers(0, 2)),
)
MAX_PROMPT, MAX_NEW = 20, 24
#: Requests wait for as long as it takes.
PATIENT = SchedulerLimits(max_queue_s=1000.0, max_unready_s=30.0)
#: What is lost while clients do not read.
FAILING = ("worker", "scheduler", "gateway")
#: Two questions to a gateway, what settles before the first, and three of the longest iterations in flight.
OVER_HELD_S = 10.0
#: Pools that spill over at once, soon and never; home pools that never change, and ones that change at every chance.
POOL_POLICIES = st.builds(
    PoolPolicy,
    st.sampled_from([0, 15, 8192]),
    st.sampled_from([None, None, 10]),
    st.booleans(),
    st.sampled_from([0.05, 0.5]),
    st.sampled_from([None, 0.3, 2.0]),
    st.sampled_from([0, 20, 1000]),
    decode_queue=st.sampled_from(DecodeQueue),
    max_passes=st.sampled_from([0, 1, 4]),
)


def close_if_open(world: MeshWorld, request_id: str) -> None:
    if request_id in world.stops:
        world.close(request_id)


@dataclass(frozen=True, slots=True)
class MeshCase:
    """A mesh and how many requests come into it, as Hypothesis draws them.

    Attributes:
        seed: of everything that the world draws by itself.
        pools: of each worker.
        num_blocks: KV blocks of each worker.
        pace: longest iteration and longest push, seconds.
        policy: of the workers.
        pool_policy: of the scheduler.
        count: requests.
    """

    seed: int
    pools: list[Pool]
    num_blocks: int
    pace: tuple[float, float]
    policy: WorkerPolicy
    pool_policy: PoolPolicy
    count: int

    def world(
        self,
        limits: SchedulerLimits = PATIENT,
        classes: Sequence[Numerics] = (),
        crossing: Crossing = Crossing.COUNT,
    ) -> MeshWorld:
        """A mesh into which the requests come within two seconds; its workers are of `classes`, if there are any."""
        rng = random.Random(self.seed)
        policy, pool_policy = replace(self.policy, crossing=crossing), replace(self.pool_policy, crossing=crossing)
        world = MeshWorld(
            rng,
            self.pools,
            self.num_blocks,
            limits,
            policy,
            *self.pace,
            pool_policy=pool_policy,
            classes=classes,
        )
        world.run_until(world.now + 1.0)
        for number in range(self.count):
            prompt, new = rng.randint(1, MAX_PROMPT), rng.randint(1, MAX_NEW)
            world.at(rng.uniform(0, 2), partial(world.request, f"r{number}", prompt, new))
        return world

    def dies(self, world: MeshWorld, number: int, at_s: float, away_s: float = 1.0) -> None:
        """A worker dies without a word, and comes back after a while."""
        world.at(at_s, partial(world.kill, f"w{number}"))
        world.at(at_s + away_s, partial(world.start_if_away, f"w{number}", self.pools[number]))

    def rain(self, world: MeshWorld, kills: int, stalls: int, away_s: float = 6.0) -> None:
        """Workers die and come back, and workers stand still for a while, each at any time of the first five seconds."""
        rng, count = world.rng, len(self.pools)
        for _ in range(kills):
            self.dies(world, rng.randrange(count), rng.uniform(0.5, 5), rng.uniform(0.05, away_s))
        for _ in range(stalls):
            world.at(rng.uniform(0.5, 5), partial(world.stall, f"w{rng.randrange(count)}", rng.uniform(0.1, 4)))


def meshes(
    fewest: int,
    most: int,
    *,
    pools: st.SearchStrategy[list[Pool]] = POOLS,
    num_blocks: st.SearchStrategy[int] = st.integers(11, 24),  # noqa: B008 - strategies are values
    paces: st.SearchStrategy[tuple[float, float]] = PACES,
    policies: st.SearchStrategy[WorkerPolicy] = POLICIES,
    pool_policies: st.SearchStrategy[PoolPolicy] = POOL_POLICIES,
) -> st.SearchStrategy[MeshCase]:
    """Any mesh of the given kinds, with so many requests."""
    seeds, counts = st.integers(0, 2**32), st.integers(fewest, most)
    return st.builds(MeshCase, seeds, pools, num_blocks, paces, policies, pool_policies, counts)


def settle(world: MeshWorld, count: int, within_s: float = 2000.0) -> None:
    """Run until every request has ended, then long enough for the last messages and leases: nothing is held then."""
    world.run_until(world.now + within_s, lambda: len(world.ended) == count)
    world.run_until(world.now + 15.0)
    assert len(world.ended) == count, "a request never ended"
    assert_nothing_held(world)


def assert_nothing_held(world: MeshWorld) -> None:
    assert world.gateway.open_requests == 0
    assert world.scheduler.live == world.scheduler.queued == 0
    for worker in [*world.workers.values(), *world.retired]:
        load = worker.role.load()
        assert worker.pool.free_blocks == worker.pool.num_blocks
        assert worker.host is None or worker.host.free_blocks == worker.host.num_blocks
        assert worker.engine == {}
        assert worker.windows == worker.pushes == {}
        assert (load.pending_prompt_tokens, load.remaining_tokens, load.running, load.waiting_for_kv) == (0, 0, 0, 0)


def watch_engines(world: MeshWorld) -> None:
    """No engine holds for longer than `OVER_HELD_S` what its gateway has no request for."""
    since: dict[tuple[str, str], float] = {}

    def look() -> None:
        over = [
            (worker.member.id, sequence_id)
            for worker in world.workers.values()
            for sequence_id, record in worker.engine.items()
            if not world.gateway.is_open(record.choice_id, record.epoch)
        ]
        for known in [known for known in since if known not in over]:
            del since[known]
        for held in over:
            assert world.now - since.setdefault(held, world.now) <= OVER_HELD_S, f"{held} is computed for no client"
        world.at(0.5, look)

    look()


def assert_whole(world: MeshWorld, *others: str) -> None:
    """Every request got every token, or ended as `others`."""
    for choice_id, ending in world.ended.items():
        assert ending in ("length", *others)
        if ending == "length":
            assert len(world.delivered[choice_id]) == world.stops[choice_id].max_new_tokens


def assert_served(world: MeshWorld, *allowed: str) -> None:
    """Every request got every token, was rejected because no worker or scheduler was there, or ended as `allowed`."""
    assert_whole(world, "no_workers", "no_scheduler", *allowed)


@settings(max_examples=60)
@given(meshes(1, 24))
def test_undisturbed_requests_all_finish_with_every_token(case: MeshCase) -> None:
    """Without failures every request ends by length, with exactly its tokens, in one attempt."""
    world, count = case.world(), case.count
    settle(world, count)
    for choice_id, stop in world.stops.items():
        assert world.ended[choice_id] == "length"
        assert len(world.delivered[choice_id]) == stop.max_new_tokens
        assert world.attempts[choice_id] == 1


@settings(max_examples=100)
@given(meshes(1, 24))
def test_clients_that_leave_at_any_moment_leave_nothing_behind(case: MeshCase) -> None:
    """Half of the clients leave, in every phase of their requests; the others get every token."""
    world, count = case.world(), case.count
    for number in range(0, count, 2):
        world.at(world.rng.uniform(0.5, 5), partial(close_if_open, world, f"r{number}"))
    settle(world, count)
    assert_whole(world, "closed")


@settings(max_examples=100)
@given(meshes(2, 24), st.sampled_from([0.3, 0.7, 1.0]), st.sampled_from([0.0, 2.0]), st.integers(0, 1))
def test_requests_that_are_over_live_on_nowhere(
    case: MeshCase, loss: float, submissions_wait_s: float, restarts: int
) -> None:
    """Closings and cancellations are lost, late or sent twice, and submissions come after them; the others get every token."""
    world, count = case.world(), case.count
    watch_engines(world)
    world.ending_loss, world.submissions_wait_s = loss, submissions_wait_s
    for _ in range(restarts):
        world.at(world.rng.uniform(0, 6), lambda: world.restart_scheduler(world.rng.choice([0.01, 0.5, 3.0])))
    for number in range(0, count, 2):
        world.at(world.rng.uniform(0.1, 5), partial(close_if_open, world, f"r{number}"))
    settle(world, count)
    assert_served(world, "closed")


@settings(max_examples=100)
@given(meshes(1, 16), st.integers(0, 4), st.integers(0, 1))
def test_workers_that_die_or_drain_cost_no_token(case: MeshCase, kills: int, drains: int) -> None:
    """Workers die without a word and come back, or leave by order; every request still gets every token."""
    world, count, pools = case.world(), case.count, case.pools
    rng = world.rng

    def drain(number: int, grace_s: float) -> None:
        if f"w{number}" in world.workers:
            world.feed_worker(world.workers[f"w{number}"], Drain(f"w{number}", world.now + grace_s))
            # someone else takes its place, or the mesh would have no such worker for good
            world.at(1.0, lambda: world.start_worker(f"next{number}", pools[number]))

    case.rain(world, kills, 0)
    for _ in range(drains):
        world.at(rng.uniform(0.5, 5), partial(drain, rng.randrange(len(pools)), rng.uniform(0, 3)))
    settle(world, count)
    # Three workers that die under one request make it the suspect, though here it is only unlucky.
    assert_served(world, *(["fells_workers"] if kills >= 3 else []))


@settings(max_examples=60)
@given(meshes(1, 16), st.floats(0.1, 25.0))
def test_requests_wait_while_no_worker_is_there(case: MeshCase, away_s: float) -> None:
    """All workers go at once, and come back within the bound: no request is rejected, and no token is lost."""
    world, count = case.world(), case.count
    assert away_s < world.limits.max_unready_s

    def all_go() -> None:
        for number, pool in enumerate(case.pools):
            world.kill(f"w{number}")
            world.at(away_s, partial(world.start_if_away, f"w{number}", pool))

    world.at(world.rng.uniform(0, 2), all_go)
    settle(world, count)
    assert set(world.ended.values()) == {"length"}
    assert_served(world)


@settings(max_examples=100)
@given(meshes(1, 16), st.integers(0, 4), st.sampled_from([0.0, 0.05, 0.3]))
def test_stalls_and_lost_messages_cost_no_token(case: MeshCase, stalls: int, loss: float) -> None:
    """Workers pause for up to 4 s and resume; one message in three at most is lost, for 10 s; no token is lost."""
    world, count = case.world(), case.count
    world.lose(loss)
    case.rain(world, 0, stalls)
    settle(world, count)
    # As above: a worker that stalls for long is taken for dead.
    assert_served(world, *(["fells_workers"] if stalls >= 3 else []))


@settings(max_examples=100)
@given(meshes(1, 24), st.integers(1, 3))
def test_a_scheduler_that_restarts_costs_no_token(case: MeshCase, restarts: int) -> None:
    """A restarted scheduler knows only the members' reports.

    Requests rejected while it was away are the only ones not served.
    """
    world, count = case.world(), case.count
    for _ in range(restarts):
        world.at(world.rng.uniform(0, 6), lambda: world.restart_scheduler(world.rng.choice([0.01, 0.5, 3.0])))
    settle(world, count)
    assert_served(world)


@settings(max_examples=100)
@given(meshes(1, 16), st.sampled_from(["gateway", "scheduler", "broker"]), st.floats(0.1, 3.0))
def test_a_pause_costs_no_attempt(case: MeshCase, who: str, seconds: float) -> None:
    """Gateway, scheduler or broker pause for up to 3 s: no attempt is lost and no token is computed again."""
    world, count = case.world(), case.count
    pause = partial(world.pause_broker if who == "broker" else partial(world.pause, who), seconds)
    world.at(world.rng.uniform(0, 4), pause)
    settle(world, count)
    assert set(world.ended.values()) == {"length"}
    assert set(world.attempts.values()) == {1}
    assert_served(world)


@settings(max_examples=100)
@given(meshes(1, 24), st.integers(1, 3), st.sampled_from([0.0, 0.1]), st.booleans())
def test_a_gateway_that_restarts_mixes_no_tokens(
    case: MeshCase, restarts: int, loss: float, scheduler_too: bool
) -> None:
    """The clients of its successor get their own tokens, though stream numbers start anew; abandoned requests are dropped."""
    world, count = case.world(), case.count
    world.lose(loss, until_s=8.0)
    for _ in range(restarts):
        at_s = world.rng.uniform(0, 4)
        if scheduler_too:
            world.at(max(0.0, at_s - 0.3), lambda: world.restart_scheduler(0.2))
        world.at(at_s, world.restart_gateway)
    settle(world, count)
    assert_served(world, "gateway died")


@settings(max_examples=60)
@given(
    meshes(2, 16),
    st.lists(st.sampled_from([None, 0.5, 3.0, 12.0]), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
    st.booleans(),
)
def test_another_gateway_goes_on_token_for_token(
    case: MeshCase, sleeps_s: list[float | None], loss: float, worker_too: bool, scheduler_too: bool
) -> None:
    """A gateway dies, or sleeps and wakes up as if nothing had been, and others take its requests over, one after the other,
    from tokens that were saved a while ago: every request gets every token once, though a worker or the scheduler dies with it,
    and messages are lost. In the end nothing is held anywhere for any of the gateways.
    """
    world, count = case.world(), case.count
    world.lose(loss, until_s=8.0)
    for each in sleeps_s:
        at_s = world.rng.uniform(0.5, 5)
        world.at(at_s, partial(world.take_over, each))
        if worker_too:
            case.dies(world, world.rng.randrange(len(case.pools)), at_s)
        if scheduler_too:
            world.at(max(0.0, at_s - 0.1), lambda: world.restart_scheduler(0.3))
    settle(world, count)
    assert_served(world)
    if not (loss or worker_too or scheduler_too):
        assert (
            world.lost_attempts == []
        )  # the first attempt after each take-over is accepted, and is ended by no former one


@settings(max_examples=100)
@given(
    meshes(
        8,
        24,
        pools=st.sampled_from([[Pool.PROMPT, Pool.TOKEN, Pool.TOKEN], [Pool.PROMPT, Pool.PROMPT, Pool.TOKEN]]),
        pool_policies=st.builds(PoolPolicy, st.sampled_from([0, 15]), repurpose_window_s=st.just(None)),
    )
)
def test_workers_return_to_their_home_pool_when_the_off_pool_work_is_done(case: MeshCase) -> None:
    """Bursts put off-pool work on workers; afterwards the scheduler sees each in its home pool, without a message about it."""
    world, count, pools = case.world(), case.count, case.pools
    settle(world, count)
    views = sorted(world.scheduler.pools, key=lambda view: view.id)
    assert [(view.home_pool, view.is_off_pool) for view in views] == [(pool, False) for pool in pools]


@settings(max_examples=60)
@given(
    meshes(
        8,
        24,
        num_blocks=st.integers(11, 16),
        paces=st.just((0.05, 0.1)),
        policies=SWAPPING,
        pool_policies=st.just(PoolPolicy()),
    ),
    st.integers(0, 2),
    st.booleans(),
)
def test_kv_on_hosts_is_lost_and_left_without_a_trace(case: MeshCase, kills: int, leaves: bool) -> None:
    """Workers die with KV on their hosts, and clients leave while theirs is there; the others get every token."""
    world, count, policy = case.world(), case.count, case.policy
    for _ in range(kills):
        case.dies(world, world.rng.randrange(len(case.pools)), world.rng.uniform(1, 6))
    for number in range(0, count if leaves else 0, 3):
        world.at(world.rng.uniform(0.5, 8), partial(close_if_open, world, f"r{number}"))
    settle(world, count)
    assert_whole(world, "closed", "no_workers")
    moved = sum(worker.role.load().kv_blocks_swapped_out for worker in world.workers.values())
    event(f"{policy.swap.when_full}: {'swapped' if moved else 'not swapped'}")


@settings(max_examples=40)
@given(meshes(1, 16), st.sampled_from([0.05, 0.3]), st.sampled_from([0.0, 0.1]), st.sampled_from(["", *FAILING]))
def test_readers_that_stall_get_every_token(case: MeshCase, stalling: float, loss: float, failing: str) -> None:
    """Clients stop to read and read on, again and again; their requests hold nothing meanwhile, and get every token once,
    though closings are lost, or a worker, the scheduler or their gateway goes with it.
    """
    world, count = case.world(), case.count
    if failing != "gateway":
        watch_engines(world)
    world.stalling, world.ending_loss = stalling, 3 * loss
    world.lose(loss, until_s=8.0)
    at_s = world.rng.uniform(0.5, 4)
    if failing == "worker":
        case.dies(world, world.rng.randrange(len(case.pools)), at_s)
    elif failing == "scheduler":
        world.at(at_s, lambda: world.restart_scheduler(0.3))
    elif failing == "gateway":
        world.at(at_s, partial(world.take_over, world.rng.choice([None, 3.0])))
    settle(world, count)
    assert_served(world)
    if not (loss or failing):
        assert world.lost_attempts == []
