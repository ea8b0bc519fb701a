"""Workers that run out of KV blocks, and workers that leave the token pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spotwise.core.messages import mesh as m
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.relief import REST_S
from tests.unit.core.builders import worker_member
from tests.unit.core.planner.bench import PlannerBench, sequence

#: A prompt token takes long enough for moves to pay.
POLICY = PlannerPolicy(prompt_token_s=0.01)


def short(worker_id: str = "a", **fields: Any) -> m.Member:
    """A worker with ten sequences and blocks for a few tokens more of each."""
    return worker_member(
        worker_id,
        **{"blocks": 1000, "free": 5, "kv_blocks_used": 995, "decoding": 10, "reserved_new_tokens": 16} | fields,
    )


def relieved(worker: m.Member, policy: PlannerPolicy = POLICY, others: tuple[m.Member, ...] = ()) -> PlannerBench:
    bench = PlannerBench(policy)
    bench.held["a"] = [
        sequence("small", tokens=20, remaining=100),
        sequence("large", tokens=2000, remaining=100),
        sequence("medium", tokens=500, remaining=100),
    ]
    for member in (worker, *others):
        bench.workers[member.id] = member
        bench.feed(member)
    return bench


def test_the_request_whose_move_saves_most_goes_first_and_one_at_a_time() -> None:
    """The next one follows when it has moved, while the worker is still short."""
    bench = relieved(short())
    bench.pass_time(3.0)
    assert [(choice_id, target_id) for _, choice_id, target_id in bench.moves] == [("large", "b")]
    bench.held["a"] = bench.held["a"][::2]
    bench.ended("large", "b", m.MoveOutcome.MOVED)
    bench.pass_time(2.0)
    assert [choice_id for _, choice_id, _ in bench.moves] == ["large", "medium"]


def test_nothing_moves_where_it_would_not_help() -> None:
    """Moves that take longer than computing again, full targets, requests that have all their blocks, and one alone."""
    full = tuple(worker_member(each, blocks=1000, free=240) for each in ("b", "c"))
    for bench in (
        relieved(short(), PlannerPolicy(prompt_token_s=1e-6)),
        relieved(short(), others=full),
        relieved(short(reserved_new_tokens=None)),
        relieved(short(decoding=1)),
        relieved(short(kv_blocks_used=500)),
        relieved(short(), replace(POLICY, rebalances=False)),
    ):
        bench.pass_time(3.0)
        assert bench.moves == []


def test_a_moved_request_rests() -> None:
    """It is not sent on by the next worker that runs short."""
    bench = relieved(short())
    bench.pass_time(1.0)
    bench.held = {"a": [], "b": [sequence("large", tokens=2000, remaining=100)]}
    bench.workers["a"] = worker_member("a", blocks=1000)
    bench.workers["b"] = short("b")
    bench.ended("large", "b", m.MoveOutcome.MOVED)
    bench.pass_time(REST_S - 2.0)
    assert len(bench.moves) == 1
    bench.pass_time(4.0)
    assert [choice_id for _, choice_id, _ in bench.moves] == ["large", "large"]


def test_a_worker_that_leaves_the_token_pool_hands_its_decodes_over() -> None:
    bench = relieved(
        worker_member("a", blocks=1000, decoding=3),
        others=(worker_member("b", m.Pool.MIXED, blocks=100_000), worker_member("c", blocks=100_000, owed=50_000)),
    )
    bench.pass_time(2.0)
    assert bench.moves == []
    bench.workers["a"] = worker_member("a", m.Pool.PROMPT, blocks=1000, decoding=3)
    bench.pass_time(2.0)
    assert [(choice_id, target_id) for _, choice_id, target_id in bench.moves] == [("large", "c")]


def test_a_worker_that_leaves_is_no_longer_relieved() -> None:
    bench = relieved(short())
    bench.drain("a", notice_s=60.0)
    bench.pass_time(5.0)
    assert bench.moves == []


def test_what_a_move_costs_is_learned() -> None:
    """From moves that were made; the newest counts most."""
    cost = ChangeCost(0.05, 1e-4)
    ended = m.MoveEnded("r", 1, "a", "b", m.MoveOutcome.MOVED, "", 1000, 2.0)
    for _ in range(30):
        cost.learn(ended, 1, 1, 1)
    assert 1.9 < cost.move_s(1000) < 2.1
    cost.learn(m.MoveEnded("r", 1, "a", "b", m.MoveOutcome.REFUSED), 1, 1, 1)
    assert cost.move_s(1000) > 1.9
