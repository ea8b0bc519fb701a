"""Any mesh with lives: the chosen worker is nearly the cheapest, and where no lives are known nothing changes."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.lives.survival import PiecewiseHazard, Place, cheapest, expected_cost_s
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import Market
from spotwise.core.messages.members import Member, Pool
from spotwise.core.scheduler.answer_times import AnswerLengths, AnswerTimes, cheapest_worker, place
from spotwise.core.scheduler.delays import BATCH_SHARE
from spotwise.core.scheduler.lives import REPORT_COUNTS_S, Lives
from spotwise.core.scheduler.placement import Placer
from spotwise.core.scheduler.placements import Placement, RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.ranking import RUN_LENGTH, Need, Ranking
from spotwise.core.scheduler.role import SchedulerRole
from spotwise.core.scheduler.views import WorkerLife, WorkerView
from tests.property.test_placement_laws import DEMANDS, NEEDS, POLICIES, meshes, view_of
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler.fleets import constant, device, fleet, instance
from tests.unit.core.scheduler_bench import accepted, reserved, submission

RATES = st.sampled_from([1e-9, 1e-4, 1.5e-4, 1e-3, 0.01, 0.3, 2.0])
ENDS = st.dictionaries(st.sampled_from([f"w{number}" for number in range(7)]), RATES)


def outcome(found: Placement | None) -> tuple[object, ...] | None:
    return None if found is None else (found.prompt_worker.id, found.token_worker.id, found.by, found.short)


def placer(members: list[Member], ends: Mapping[str, float], policy: PoolPolicy) -> tuple[Pools, Placer]:
    pools = Pools(policy.decode_queue)
    for member in members:
        pools.join(member)
    for view in pools:
        pools.set_life(view.id, WorkerLife.of(constant(ends[view.id]), 0.0) if view.id in ends else None)
    return pools, Placer(pools, policy)


@settings(max_examples=500)
@given(meshes(), DEMANDS, POLICIES, ENDS)
def test_where_an_interruption_costs_nothing_lives_change_nothing(
    members: list[Member], demand: RequestDemand, policy: PoolPolicy, ends: dict[str, float]
) -> None:
    """Any lives, and any mesh: the queues alone decide, though workers are ranked apart."""
    free = PoolPolicy(
        policy.max_pending_prompt_tokens,
        policy.max_remaining_tokens,
        policy.break_even,
        decode_queue=policy.decode_queue,
        interruption_s=0.0,
    )
    with_lives, without = placer(members, ends, free)[1], placer(members, {}, policy)[1]
    assert outcome(with_lives.place(demand)) == outcome(without.place(demand))


@settings(max_examples=500)
@given(meshes(), DEMANDS, POLICIES, ENDS)
def test_lives_decide_which_worker_and_never_whether(
    members: list[Member], demand: RequestDemand, policy: PoolPolicy, ends: dict[str, float]
) -> None:
    """A request waits only while no worker has memory for it, and the order of reports changes nothing."""
    _, with_lives = placer(members, ends, policy)
    found = with_lives.place(demand)
    assert (found is None) == (placer(members, {}, policy)[1].place(demand) is None)
    assert outcome(found) == outcome(placer(members[::-1], ends, policy)[1].place(demand))
    if found is not None:
        assert found.token_worker.has_capacity(demand.prompt_tokens, demand.max_new_tokens)


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.none() | RATES), min_size=1, max_size=9),
    st.integers(1, 4000),
    st.sampled_from([0.1, 1.0, 60.0]),
)
def test_a_token_worker_costs_at_most_twice_the_cheapest(
    workers: list[tuple[int, float | None]], new_tokens: int, interruption_s: float
) -> None:
    """Among all token workers, by a look at each; a longer queue is accepted for a longer life only."""
    policy = PoolPolicy(interruption_s=interruption_s)
    members = [worker_member("p", Pool.PROMPT)]
    members += [
        worker_member(f"w{i}", owed=queue, blocks=1000, prompt_token_s=0.001) for i, (queue, _) in enumerate(workers)
    ]
    ends = {f"w{i}": per_s for i, (_, per_s) in enumerate(workers) if per_s is not None and 2**-26 < per_s < 1}
    pools, chooses = placer(members, ends, policy)
    found = chooses.place(RequestDemand(16, new_tokens))
    assert found is not None

    def cost_s(view: WorkerView) -> float:
        hazard = None if view.life is None else view.life.hazard
        place = Place(view.id, 0.0, hazard, view.remaining_tokens * 0.001)
        return expected_cost_s(place, AnswerTimes(policy.token_s).lengths(new_tokens).seconds, interruption_s)

    token_workers = [view for view in pools if view.home_pool is Pool.TOKEN]
    chosen, shortest = found.token_worker, min(token_workers, key=lambda view: (view.remaining_tokens, view.id))
    assert cost_s(chosen) <= 2 * min(map(cost_s, token_workers)) + 1e-12
    assert cost_s(chosen) <= cost_s(shortest)
    assert found.by_life is (chosen is not shortest)


@settings(max_examples=500)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 1000), st.sampled_from([0.1, 10.0]), st.booleans())
def test_a_token_worker_is_the_one_that_a_scan_of_each_class_finds(
    seed: int, workers: int, new_tokens: int, interruption_s: float, are_measured: bool
) -> None:
    """The first of each class by a look at all workers, and of these the cheapest by a look at each; any ages and loads."""
    rng, policy = random.Random(seed), PoolPolicy(interruption_s=interruption_s)
    pools = Pools()
    pools.join(worker_member("p", Pool.PROMPT))
    for number in range(workers):
        token_s = rng.choice([0.0001, 0.001]) if are_measured else None
        owed, free = rng.choice([0, 20, rng.randrange(2000)]), rng.choice([1, 1000])
        pools.join(worker_member(f"w{number}", owed=owed, blocks=1000, free=free, prompt_token_s=token_s))
        if rng.random() < 0.8:
            hazard = PiecewiseHazard((0.0, 30.0, 600.0), tuple(10.0 ** rng.uniform(-9, 0) for _ in range(3)))
            pools.set_life(f"w{number}", WorkerLife.of(hazard, rng.choice([0.0, 1000.0 * rng.random()])))
    demand = RequestDemand(16, new_tokens)
    need = Need(16, new_tokens, reserves=True)
    queued = sorted(pools, key=lambda view: (view.remaining_tokens, view.id))
    firsts: dict[int | None, WorkerView] = {}
    for view in queued:
        if view.home_pool is Pool.TOKEN and need.is_met_by(view):
            firsts.setdefault(view.life_class, view)
    found = Placer(pools, policy).place(demand)
    if found is None or not firsts:
        assert not firsts
        return
    measured = [view.load.prompt_token_s for view in firsts.values() if view.load.prompt_token_s is not None]
    token_s = max(measured, default=policy.token_s * BATCH_SHARE)

    def cost_s(view: WorkerView) -> float:
        likely_s = AnswerTimes(policy.token_s).lengths(new_tokens).seconds
        return expected_cost_s(place(view, view.remaining_tokens * token_s), likely_s, interruption_s)

    assert found.token_worker is min(firsts.values(), key=cost_s)  # the firsts are in order of their queues


@settings(max_examples=1000)
@given(st.integers(0, 2**32), st.integers(1, 14), st.sampled_from([0.0, 0.1, 10.0, 1e6]), st.integers(1, 8))
def test_bounds_of_chances_change_no_choice(seed: int, workers: int, interruption_s: float, spans: int) -> None:
    """Any hazards, ages, lengths and loads, near ones too: as by the exact cost of each."""
    rng = random.Random(seed)
    seconds = tuple(sorted(rng.choice([0.0, 1.0, 10.0 ** rng.uniform(-6, 5)]) for _ in range(spans)))
    by_load = []
    for number in range(workers):
        view = view_of(f"w{number}", rng)
        per_s = rng.choice([0.0, 0.001, 0.001 * (1 + rng.uniform(-1e-9, 1e-9)), 10.0 ** rng.uniform(-9, 0.5)])
        age_s = rng.choice([0.0, 10.0, 10.0 ** rng.uniform(-3, 8)])
        hazard = rng.choice([constant(per_s), PiecewiseHazard((0.0, 5.0, 600.0), (per_s, per_s / 7, 2 * per_s))])
        view.life = rng.choice([None, *[WorkerLife.of(hazard, age_s)] * 9])
        by_load.append((rng.choice([0.0, 0.01, rng.uniform(0, 1e-6), rng.uniform(0, 20)]), view))
    by_load.sort(key=lambda loaded: loaded[0])
    exact = cheapest([place(view, load_s) for load_s, view in by_load], seconds, interruption_s)
    assert cheapest_worker(by_load, AnswerLengths.of(seconds), interruption_s).id == exact.name


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 12 * RUN_LENGTH), st.lists(NEEDS, min_size=1, max_size=4))
def test_a_ranking_by_life_answers_like_a_scan_of_each_class(seed: int, changes: int, needs: list[Need]) -> None:
    """After any entries, changes of queue, memory or life, and departures, whatever searches came before."""
    rng = random.Random(seed)
    ranking = Ranking(lambda view: view.remaining_tokens)
    here: dict[str, WorkerView] = {}
    for change in range(changes):
        worker_id = f"w{rng.randrange(3 * RUN_LENGTH)}"
        if rng.random() < 0.2:
            ranking.remove(worker_id)
            here.pop(worker_id, None)
        else:
            here[worker_id] = view = view_of(worker_id, rng)
            per_s = rng.choice([None, 0.001, 0.01, 0.1])
            view.life = None if per_s is None else WorkerLife.of(constant(per_s), 0.0)
            ranking.put(view)
        if change % 10 == 0:
            check_against_a_scan(ranking, here, rng.choice(needs))
    for need in needs:
        check_against_a_scan(ranking, here, need)


def check_against_a_scan(ranking: Ranking, here: Mapping[str, WorkerView], need: Need) -> None:
    """The ranking has those workers, and answers as a look at each."""
    expected: dict[int | None, WorkerView] = {}
    for view in sorted(here.values(), key=lambda view: (view.remaining_tokens, view.id)):
        if need.is_met_by(view):
            expected.setdefault(view.life_class, view)
    found = ranking.firsts(need)
    assert {view.life_class: view for view in found} == expected
    assert len(found) == len(expected)
    assert ranking.have(need) is bool(expected)
    assert sorted(view.id for view in ranking) == sorted(here)
    assert ranking.most_capacity() == max((view.kv_tokens for view in here.values()), default=0)


# --- what is known of lives -------------------------------------------------------------------------------------------

_HAZARD = PiecewiseHazard((0.0, 20.0), (0.01, 0.001))


@settings(max_examples=300)
@given(st.data())
def test_lives_are_those_of_the_last_report_and_the_members_present(data: st.DataObject) -> None:
    """Whatever came before: late, repeated and lost reports, workers and devices that come, move, and go."""
    now, newest_s = 1000.0, 0.0
    pools = Pools()
    lives, counts = Lives(pools), False
    launched: dict[str, float] = {}
    places: dict[str, str] = {}
    for _ in range(data.draw(st.integers(0, 25))):
        now += data.draw(st.sampled_from([0.0, 1.0, 1.0, 7.0, REPORT_COUNTS_S]))
        id_ = data.draw(st.sampled_from(["i", "j", "k"]))
        match data.draw(st.sampled_from(["report", "late", "worker", "gone", "device", "away"])):
            case "report" if now > newest_s:
                of_spot = data.draw(st.lists(st.sampled_from(["i", "j"]), unique=True))
                launched, newest_s, counts = {i: now - data.draw(st.integers(0, 60)) for i in of_spot}, now, True
                spot = [instance(i, launched_s=at_s) for i, at_s in launched.items()]
                steady = instance("k", market=Market.ON_DEMAND)
                lives.reported(fleet(*spot, steady, hazards={"a": _HAZARD}, at_s=now), now)
            case "late" if counts and now - newest_s < REPORT_COUNTS_S:
                lives.reported(fleet(hazards={"a": 0.5}, at_s=newest_s - data.draw(st.integers(0, 40))), now)
            case "worker" if f"{id_}-w" not in pools:
                pools.join(worker_member(f"{id_}-w"))
                lives.worker_joined(f"{id_}-w", now)
            case "gone" if f"{id_}-w" in pools:
                pools.lose(f"{id_}-w")
            case "device":
                leader = data.draw(st.sampled_from(["i-w", "j-w", "k-w"]))
                is_placed = data.draw(st.booleans())
                lives.device_reported(device(f"{id_}-d", leader, is_placed=is_placed), now)
                places.pop(f"{id_}-d", None)
                if is_placed:
                    places[f"{id_}-d"] = leader
            case "away":
                lives.device_lost(f"{id_}-d", now)
                places.pop(f"{id_}-d", None)
        lives.expire(now)
        if now - newest_s >= REPORT_COUNTS_S:
            launched = {}
    for view in pools:
        of_group = [device_id for device_id, leader in places.items() if leader == view.id]
        instances = {member_id[0] for member_id in (view.id, *of_group)} & set(launched)
        assert (view.life is None) is not bool(instances)
        if view.life is not None:
            # what was known at the last event about it, at the latest the last report
            rate_now = sum(_HAZARD.expected_ends(now - launched[i], 1e6) for i in instances)
            known = view.life.hazard.expected_ends(view.life.age_s, 1e6)
            assert abs(known - rate_now) <= 0.009 * (now - newest_s) * len(instances) + 1e-6


@settings(max_examples=100)
@given(st.data())
def test_a_fleet_that_stays_is_served_as_one_that_is_not_reported(data: st.DataObject) -> None:
    """Any sequence of events: the same commands with reports of machines on demand, of unknown lives, or of no worker's."""
    roles = SchedulerRole("s"), SchedulerRole("s")
    now, number = 1000.0, 0
    open_: list[m.KvReserved | m.PrefillAccepted] = []
    for _ in range(data.draw(st.integers(1, 30))):
        now += data.draw(st.sampled_from([0.0, 0.5]))
        event: m.Member | m.SubmitRequest | m.Tick | m.KvReserved | m.PrefillAccepted
        match data.draw(st.sampled_from(["worker", "request", "request", "answer", "tick"])):
            case "worker":
                pool = data.draw(st.sampled_from(Pool))
                event = worker_member(
                    f"{pool.value}-{data.draw(st.integers(0, 2))}", pool, owed=data.draw(st.sampled_from([0, 50, 900]))
                )
            case "request":
                number += 1
                event = submission(f"r{number}", new=data.draw(st.sampled_from([1, 40, 1000])))
            case "answer" if open_:
                event = open_.pop()
            case _:
                event = m.Tick()
        commands = [role.handle(event, now) for role in roles]
        assert commands[0] == commands[1]
        for command in commands[0]:
            if isinstance(command, m.Send) and isinstance(command.message, m.ReserveKv):
                order = command.message
                open_.append(reserved(order.choice_id, order.epoch, command.recipient_id, number=order.assignment))
            elif isinstance(command, m.Send) and isinstance(command.message, m.StartPrefill):
                start = command.message
                open_.append(accepted(start.choice_id, start.epoch, command.recipient_id, number=start.assignment))
        report = fleet(
            instance("token", market=Market.ON_DEMAND),
            instance("mixed", "unlearned"),
            instance("another"),
            hazards={"a": 0.1},
            at_s=now,
        )
        assert roles[0].handle(report, now) == []
