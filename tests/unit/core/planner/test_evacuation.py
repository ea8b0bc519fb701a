"""What happens to each request of a worker that leaves, and when."""

from __future__ import annotations

from spotwise.core.messages import mesh as m
from spotwise.core.migration.interruption.arrangement import Disposition
from spotwise.core.planner.evacuation import ORDER_LOST_S
from spotwise.core.planner.policy import PlannerPolicy
from tests.unit.core.builders import worker_member
from tests.unit.core.planner.bench import MARGIN_S, NOTICE_S, PlannerBench, notice, sequence


def draining(
    *sequences: m.SurveyedSequence, policy: PlannerPolicy | None = None, workers: tuple[m.Member, ...] = ()
) -> PlannerBench:
    """A bench whose worker `a` drains with these sequences; `workers` replaces the bench's."""
    bench = PlannerBench(policy)
    for member in workers:
        bench.workers[member.id] = member
        bench.feed(member)
    bench.held["a"] = list(sequences)
    bench.drain()
    return bench


def test_a_request_that_ends_in_time_is_left_alone() -> None:
    """By its longest possible answer: 800 tokens of 20 ms end within 19 s, 1,000 do not."""
    bench = draining(sequence("short", remaining=800), sequence("long", remaining=1000))
    bench.pass_time(0.5)
    (leave,) = bench.plans[-1].leaves
    planned = {each.arrangement.choice_id: each.arrangement.disposition for each in leave.requests}
    assert planned == {"short@1": Disposition.FINISH, "long@1": Disposition.MOVE}


def test_a_request_decodes_here_as_long_as_its_copy_allows() -> None:
    """The largest copy, too, ends before the margin begins; none starts seconds earlier than it has to."""
    bench = draining(sequence("small", tokens=10), sequence("large", tokens=9000))
    start_s = bench.now
    bench.pass_time(NOTICE_S)
    started = {choice_id: at_s - start_s for at_s, choice_id, _ in bench.moves}
    assert min(started.values()) > NOTICE_S - MARGIN_S - 2.5
    assert started["large"] + 0.05 + 9000 * 1e-4 <= NOTICE_S - MARGIN_S


def test_targets_are_ready_workers_with_blocks_and_the_shortest_token_queue() -> None:
    bench = draining(
        sequence(remaining=5000),
        workers=(
            worker_member("b", blocks=1000, owed=10),
            worker_member("c", blocks=1000, owed=5),
            worker_member("d", blocks=100),
            worker_member("e", m.Pool.MIXED, blocks=1000),
            worker_member("f", blocks=1000, state=m.MemberState.DRAINING),
        ),
    )
    bench.pass_time(NOTICE_S)
    assert [target_id for _, _, target_id in bench.moves[:1]] == ["c"]


def test_a_target_that_gets_notice_before_the_copy_is_replaced() -> None:
    """Though its change begins later, and it does not drain yet."""
    bench = draining(sequence())
    bench.pass_time(1.0)
    while not any(each.target_id for each in bench.plans[-1].leaves[0].requests):
        bench.pass_time(0.1)
    chosen = bench.plans[-1].leaves[0].requests[0].target_id
    bench.feed(notice(chosen, bench.now + 60.0))
    bench.pass_time(1.0)
    ((_, _, target_id),) = bench.moves[:1]
    assert target_id != chosen


def test_a_worker_that_has_notice_itself_is_no_target() -> None:
    """Though it does not drain yet, and has the shortest queue."""
    bench = draining(sequence(), workers=(worker_member("c", blocks=100_000, owed=10**9),))
    bench.feed(notice("b", bench.now + 60.0))
    bench.pass_time(NOTICE_S)
    assert {target_id for _, _, target_id in bench.moves} == {"c"}


def test_without_a_target_a_request_is_given_back_last_of_all() -> None:
    """It decodes here until then; another worker may come."""
    full = tuple(worker_member(each, blocks=1000, free=0) for each in ("b", "c"))
    bench = draining(sequence(), workers=full)
    start_s = bench.now
    bench.pass_time(NOTICE_S)
    ((at_s, choice_id, reason),) = bench.given_back[:1]
    assert NOTICE_S - MARGIN_S - 0.01 <= at_s - start_s <= NOTICE_S - MARGIN_S + 0.2
    assert (choice_id, reason) == ("r", "no worker had free blocks for it")
    assert bench.moves == []


def test_a_refused_move_goes_to_another_worker() -> None:
    """At once; the first target is left out for a while."""
    bench = draining(sequence())
    while not bench.moves:
        bench.pass_time(0.1)
    ((_, _, first),) = bench.moves
    bench.ended("r", first, m.MoveOutcome.REFUSED)
    bench.pass_time(0.3)
    assert len(bench.moves) == 2
    assert bench.moves[1][2] != first


def test_a_lost_order_is_given_again() -> None:
    """The surveys do not show it under way; one that they show is not repeated."""
    for shown, orders in ((False, 2), (True, 1)):
        bench = draining(sequence(), policy=PlannerPolicy(kv_token_s=0.05))
        while not bench.moves:
            bench.pass_time(0.1)
        bench.held["a"] = [sequence(tokens=20, target_id=bench.moves[0][2] if shown else "")]
        bench.pass_time(ORDER_LOST_S + 4.0)
        assert len(bench.moves) == orders


def test_what_moved_is_not_ordered_again() -> None:
    """Even where the last survey still had it."""
    bench = draining(sequence(), policy=PlannerPolicy(margin_s=4.0))
    while not bench.moves:
        bench.pass_time(0.1)
    bench.ended("r", bench.moves[0][2], m.MoveOutcome.MOVED)
    bench.held["a"] = []
    bench.pass_time(5.0)
    assert len(bench.moves) == 1


def test_prompts_are_waited_for_until_the_last_moment() -> None:
    bench = draining(sequence("slow", tokens=0), sequence("quick", tokens=0))
    start_s = bench.now
    bench.pass_time(10.0)
    assert bench.sent == []
    bench.held["a"] = [sequence("slow", tokens=0), sequence("quick")]
    bench.pass_time(10.0)
    assert {choice_id for _, choice_id, _ in bench.moves} == {"quick"}
    assert [(round(at_s - start_s), choice_id) for at_s, choice_id, _ in bench.given_back[:1]] == [(19, "slow")]


def test_where_computing_again_is_sooner_nothing_is_moved() -> None:
    """It is given back as soon as it is known: what it would decode here only makes it longer."""
    slow_moves = PlannerPolicy(move_latency_s=3.0, prompt_token_s=1e-6)
    bench = draining(sequence(), policy=slow_moves)
    bench.pass_time(2.0)
    ((_, choice_id, reason),) = bench.given_back[:1]
    assert (choice_id, reason) == ("r", "computing it again is sooner than a move")
    assert bench.moves == []


def test_when_there_is_no_time_for_all_copies_they_begin_at_once() -> None:
    """And what finds no time is given back last of all, in case that others end."""
    slow_link = PlannerPolicy(kv_token_s=0.03, prompt_token_s=1.0)
    bench = draining(*(sequence(f"r{number}", tokens=100) for number in range(10)), policy=slow_link)
    start_s = bench.now
    bench.pass_time(NOTICE_S)
    assert bench.moves[0][0] - start_s < 1.5
    assert all(at_s - start_s >= NOTICE_S - MARGIN_S - 0.01 for at_s, _, _ in bench.given_back)
    assert {choice_id for _, choice_id, _ in [*bench.moves, *bench.given_back]} == {
        f"r{number}" for number in range(10)
    }


def test_answers_to_earlier_surveys_are_ignored() -> None:
    """A late one would bring back what has moved."""
    bench = draining()
    bench.pass_time(5.0)
    bench.feed(m.WorkerSurveyed("a", 1, 0.02, (sequence(),)))
    bench.pass_time(NOTICE_S)
    assert bench.sent == []
