"""Any mesh, any request: the choice keeps to its laws, and is the one that a look at every worker would make."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.core.scheduler.answer_times import AnswerTimes
from spotwise.core.scheduler.delays import Delays
from spotwise.core.scheduler.placement import Placer
from spotwise.core.scheduler.placements import PlacedBy, Placement, RequestDemand
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.ranking import RUN_LENGTH, Need, Ranking
from spotwise.core.scheduler.views import Assignment, WorkerView

BLOCK = 16


@st.composite
def loads(draw: st.DrawFn) -> WorkerLoad:
    total = draw(st.sampled_from([0, 4, 20, 20, 20]))
    return WorkerLoad(
        pending_prompt_tokens=draw(st.sampled_from([0, 0, 10, 60, 95, 200])),
        remaining_tokens=draw(st.sampled_from([0, 0, 20, 45, 300])),
        kv_blocks_total=total,
        kv_blocks_free=draw(st.integers(0, total)),
        kv_blocks_kept=draw(st.sampled_from([0, 0, 2])),
        kv_block_size=BLOCK,
        reserved_new_tokens=draw(st.sampled_from([None, 1])),
        decoding=draw(st.sampled_from([0, 0, 3])),
        waiting=draw(st.sampled_from([0, 1])),
        preempted=draw(st.sampled_from([0, 0, 1])),
        prompts_in_place=draw(st.sampled_from([0, 0, 1])),
        prompts_to_hand_off=draw(st.sampled_from([0, 0, 1])),
        prompt_token_s=draw(st.sampled_from([None, 0.001, 0.002])),
        kv_push_token_s=draw(st.sampled_from([None, 0.0, 0.001, 0.1])),
    )


@st.composite
def meshes(draw: st.DrawFn) -> list[Member]:
    states = st.sampled_from([MemberState.READY] * 4 + [MemberState.DRAINING, MemberState.STARTING])
    return [
        Member(
            f"w{number}",
            MemberKind.TOKEN_WORKER,
            1,
            draw(states),
            "host",
            1,
            "",
            draw(st.sampled_from(Pool)),
            load=draw(loads()),
        )
        for number in range(draw(st.integers(0, 7)))
    ]


DEMANDS = st.builds(
    RequestDemand,
    st.integers(1, 120),
    st.integers(1, 120),
    st.dictionaries(st.sampled_from([f"w{number}" for number in range(8)]), st.integers(1, 128), max_size=3),
)
POLICIES = st.builds(
    PoolPolicy,
    st.sampled_from([0, 100, 8192]),
    st.sampled_from([None, 50, 1000]),
    st.booleans(),
    decode_queue=st.sampled_from(DecodeQueue),
)


def placed(members: list[Member], demand: RequestDemand, policy: PoolPolicy) -> tuple[Pools, Placement | None]:
    pools = Pools(policy.decode_queue)
    for member in members:
        pools.join(member)
    return pools, Placer(pools, policy).place(demand)


@settings(max_examples=500)
@given(meshes(), DEMANDS, POLICIES)
def test_a_chosen_worker_can_serve(members: list[Member], demand: RequestDemand, policy: PoolPolicy) -> None:
    """A chosen worker is READY, has memory now, and could hold the whole request; KV flows from the prompt pool only."""
    _, found = placed(members, demand, policy)
    if found is None:
        return
    prompt_worker, token_worker = found.prompt_worker, found.token_worker
    assert prompt_worker.is_ready
    assert token_worker.is_ready
    assert token_worker.has_capacity(demand.prompt_tokens, demand.max_new_tokens)
    assert prompt_worker.could_ever_hold(demand.prompt_tokens)
    if prompt_worker is not token_worker:
        assert prompt_worker.home_pool is Pool.PROMPT
        assert token_worker.home_pool in (Pool.TOKEN, Pool.MIXED)


@settings(max_examples=500)
@given(meshes(), DEMANDS, POLICIES)
def test_a_request_waits_only_while_no_worker_has_memory(
    members: list[Member], demand: RequestDemand, policy: PoolPolicy
) -> None:
    """A request waits only while no worker has memory for it; thresholds decide which worker, and never whether."""
    pools, found = placed(members, demand, policy)
    anybody = any(view.is_ready and view.has_capacity(demand.prompt_tokens, demand.max_new_tokens) for view in pools)
    assert (found is not None) == anybody


@settings(max_examples=500)
@given(meshes(), DEMANDS, POLICIES)
def test_the_order_in_which_workers_report_changes_nothing(
    members: list[Member], demand: RequestDemand, policy: PoolPolicy
) -> None:
    def outcome(listed: list[Member]) -> tuple[str, str, PlacedBy] | None:
        _, found = placed(listed, demand, policy)
        return None if found is None else (found.prompt_worker.id, found.token_worker.id, found.by)

    assert outcome(members) == outcome(members[::-1])


@settings(max_examples=1000)
@given(meshes(), DEMANDS, POLICIES)
def test_no_placement_is_worse_than_the_best_by_more_than_a_hand_off(
    members: list[Member], demand: RequestDemand, policy: PoolPolicy
) -> None:
    """Over every pair along which KV may flow, and every worker alone; unmeasured, by no more than the prompt takes."""
    policy = replace(policy, break_even=True)
    pools, found = placed(members, demand, policy)
    if found is None or not (found.prompt_worker.pending_prompt_tokens or found.prompt_worker.decoding or demand.held):
        return  # nothing waits there, and nothing is delayed: others could only be faster
    able = [view for view in pools if view.is_ready and view.has_capacity(demand.prompt_tokens, demand.max_new_tokens)]
    prompts = [
        view
        for view in pools
        if view.is_ready and view.home_pool is Pool.PROMPT and view.could_ever_hold(demand.prompt_tokens)
    ]
    delays = Delays(policy, AnswerTimes(policy.token_s), demand, [*able, *prompts])
    pairs = [(p, t) for p in prompts for t in able if t.home_pool is not Pool.PROMPT]
    best_s = min([*(delays.in_place_s(view) for view in able), *(delays.split_s(p, t) for p, t in pairs)])
    if found.prompt_worker is found.token_worker:
        found_s = delays.in_place_s(found.token_worker)
        slack_s = max([delays.slack_s(view) for view in prompts], default=0.0)
    else:
        found_s = delays.split_s(found.prompt_worker, found.token_worker)
        slack_s = delays.slack_s(found.prompt_worker)
    assert found_s <= best_s + slack_s + 1e-9


@settings(max_examples=500)
@given(meshes(), DEMANDS, POLICIES)
def test_pools_that_are_within_their_thresholds_do_their_own_work(
    members: list[Member], demand: RequestDemand, policy: PoolPolicy
) -> None:
    """Within the thresholds each side gets the shortest queue among qualified workers of its home pool."""
    pools, found = placed(members, demand, policy)
    if found is None:
        return
    fit_prompt = [
        view
        for view in pools
        if view.home_pool is Pool.PROMPT and not view.is_off_pool and is_within(view, demand, policy)
    ]
    fit_tokens = [
        view
        for view in pools
        if view.home_pool is Pool.TOKEN and not view.is_off_pool and owes_within(view, demand, policy)
    ]
    if not fit_prompt or not fit_tokens or found.by is PlacedBy.LEAST_DELAY:
        return
    assert found.by in (PlacedBy.HOME_POOL, PlacedBy.BREAK_EVEN)
    assert found.token_worker is min(fit_tokens, key=lambda view: (view.remaining_tokens, view.id))
    if found.by is PlacedBy.HOME_POOL:
        assert found.prompt_worker is min(
            fit_prompt, key=lambda view: (view.pending_prompt_tokens + demand.uncomputed(view), view.id)
        )


def is_within(view: WorkerView, demand: RequestDemand, policy: PoolPolicy) -> bool:
    """A scan's word for a prompt queue within its threshold."""
    somebody_waits = view.load.waiting or view.load.preempted
    queue = view.pending_prompt_tokens + demand.uncomputed(view)
    # An empty queue is within any threshold, as where a preempted sequence waits and no prompt does.
    is_short = not somebody_waits or not view.pending_prompt_tokens or queue <= policy.max_pending_prompt_tokens
    return view.is_ready and is_short and view.could_ever_hold(demand.prompt_tokens)


def owes_within(view: WorkerView, demand: RequestDemand, policy: PoolPolicy) -> bool:
    """A scan's word for a token queue within its threshold."""
    owed, bound = view.remaining_tokens, policy.max_remaining_tokens
    is_short = bound is None or owed == 0 or owed + demand.max_new_tokens <= bound
    return view.is_ready and is_short and view.has_capacity(demand.prompt_tokens, demand.max_new_tokens)


@settings(max_examples=200)
@given(st.data())
def test_work_of_the_other_pool_makes_a_worker_mixed_and_its_end_brings_it_home(data: st.DataObject) -> None:
    """Whatever is ordered and reported, in any order; nothing but the last report and unseen orders counts."""
    home = data.draw(st.sampled_from([Pool.PROMPT, Pool.TOKEN]))
    empty = WorkerLoad(kv_blocks_total=20, kv_blocks_free=20)
    pools = Pools()
    member = Member("w", MemberKind.TOKEN_WORKER, 1, MemberState.READY, "host", 1, "", home, load=empty)
    pools.join(member)
    foreign = False
    for number in range(1, data.draw(st.integers(1, 6)) + 1):
        prompt, owed = data.draw(st.sampled_from([(5, 0), (0, 5)]))
        pools.assign("w", Assignment(number, 1000.0, prompt, owed, 1 if owed else 0))
        foreign |= bool(owed if home is Pool.PROMPT else prompt)
    assert pools["w"].is_off_pool is foreign
    done = WorkerLoad(kv_blocks_total=20, kv_blocks_free=20, assignments_seen=(("s", 6),))
    pools.reported(Member("w", member.kind, 1, member.state, "host", 1, "", home, load=done), "s", 1000.0)
    assert not pools["w"].is_off_pool


# --- rankings ---------------------------------------------------------------------------------------------------------

NEEDS = st.builds(
    Need,
    st.integers(1, 200),
    st.integers(1, 200),
    st.booleans(),
    st.none() | st.integers(-20, 200),
    st.none() | st.integers(-20, 300),
)


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 12 * RUN_LENGTH), NEEDS)
def test_a_ranking_answers_like_a_scan(seed: int, changes: int, need: Need) -> None:
    rng = random.Random(seed)
    ranking = Ranking(lambda view: view.remaining_tokens)
    here: dict[str, WorkerView] = {}
    for _ in range(changes):
        worker_id = f"w{rng.randrange(4 * RUN_LENGTH)}"
        if rng.random() < 0.2:
            ranking.remove(worker_id)
            here.pop(worker_id, None)
        else:
            here[worker_id] = view_of(worker_id, rng)
            ranking.put(here[worker_id])
    in_order = sorted(here.values(), key=lambda view: (view.remaining_tokens, view.id))
    assert list(ranking) == in_order
    assert ranking.firsts(need) == [view for view in in_order if need.is_met_by(view)][:1]
    assert ranking.most_capacity() == max((view.kv_tokens for view in in_order), default=0)


def view_of(worker_id: str, rng: random.Random) -> WorkerView:
    """Return a view of a random worker, which meets some needs."""
    total = rng.choice([4, 20, 20, 20])
    load = WorkerLoad(
        pending_prompt_tokens=rng.choice([0, 10, 100, 200]),
        waiting=rng.choice([0, 1, 1]),
        remaining_tokens=rng.randrange(300),
        kv_blocks_total=total,
        kv_blocks_free=rng.randint(0, total),
        kv_block_size=BLOCK,
        reserved_new_tokens=rng.choice([None, 1]),
    )
    return WorkerView(Member(worker_id, MemberKind.TOKEN_WORKER, 1, MemberState.READY, "host", 1, "", load=load))
