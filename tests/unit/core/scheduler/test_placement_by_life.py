"""Placement by expected life: the token worker, where a queue and a life differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from spotwise.core.messages.members import Member, Pool
from spotwise.core.scheduler.answer_times import ENOUGH, AnswerTimes
from spotwise.core.scheduler.placement import Placer
from spotwise.core.scheduler.placements import Placement, RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.views import WorkerLife
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler.fleets import constant

#: One answer token takes 50 ms, and one of another sequence adds 1 ms to it.
POLICY = PoolPolicy(interruption_s=10.0, token_s=0.05)
MEASURED: dict[str, Any] = {"prompt_token_s": 0.001}


def placed(
    *members: Member,
    ends: dict[str, float],
    new: int = 1000,
    policy: PoolPolicy = POLICY,
    times: AnswerTimes | None = None,
    without: Iterable[str] = (),
) -> Placement:
    """Place a request of 16 prompt tokens; `ends` by worker, in ends a second."""
    pools = Pools(policy.decode_queue)
    for member in members:
        pools.join(member)
    for worker_id, per_s in ends.items():
        pools.set_life(worker_id, WorkerLife.of(constant(per_s), 0.0))
    found = Placer(pools, policy, times).place(RequestDemand(16, new, without=frozenset(without)))
    assert found is not None
    return found


SPOT = worker_member("spot", blocks=1000, **MEASURED)
STAYS = worker_member("stays", owed=500, blocks=1000, **MEASURED)  # 0.5 s more
PROMPT = worker_member("p", Pool.PROMPT)


class TestTokenWorkers:
    """The token worker of a split."""

    def test_long_answers_go_where_machines_stay_and_short_ones_where_the_queue_is_short(self) -> None:
        """An hour's life and 25 s of answer cost 0.07 s; a minute's life 3.4 s, of which 0.5 s of queue are saved."""
        for new, per_s, chosen in ((1000, 1 / 3600, "spot"), (1000, 1 / 60, "stays"), (50, 1 / 60, "spot")):
            found = placed(PROMPT, SPOT, STAYS, ends={"spot": per_s}, new=new)
            assert (found.prompt_worker.id, found.token_worker.id) == ("p", chosen)
            assert found.by_life is (chosen == "stays")

    def test_of_two_that_end_the_later_end_and_the_shorter_queue_weigh(self) -> None:
        """No worker has to stay for its life to count."""
        worse, better = SPOT, worker_member("w", owed=100, blocks=1000, **MEASURED)
        assert placed(PROMPT, worse, better, ends={"spot": 0.1, "w": 0.001}).token_worker.id == "w"
        assert placed(PROMPT, worse, better, ends={"spot": 0.001, "w": 0.001}).token_worker.id == "spot"

    def test_equal_costs_go_to_the_shorter_queue_and_then_to_the_smaller_id(self) -> None:
        """As without lives."""
        a, b = (worker_member(id_, blocks=1000, **MEASURED) for id_ in "ab")
        assert placed(PROMPT, b, a, ends={"a": 0.1, "b": 0.1}).token_worker.id == "a"
        assert placed(PROMPT, b, a, ends={"a": 0.1}, policy=PoolPolicy(interruption_s=0.0)).token_worker.id == "a"

    def test_the_shortest_queue_on_a_worker_that_stays_is_chosen(self) -> None:
        found = placed(PROMPT, SPOT, STAYS, worker_member("idle", blocks=1000), ends={"spot": 0.1})
        assert (found.token_worker.id, found.by_life) == ("idle", False)

    def test_an_interruption_that_costs_nothing_leaves_the_queues_to_decide(self) -> None:
        """The setting 0."""
        found = placed(PROMPT, SPOT, STAYS, ends={"spot": 0.5}, policy=PoolPolicy(interruption_s=0.0))
        assert (found.token_worker.id, found.by_life) == ("spot", False)

    def test_a_worker_that_stays_without_memory_is_no_candidate(self) -> None:
        """Nor one that the request avoids."""
        full = worker_member("stays", blocks=1000, free=1)
        assert placed(PROMPT, SPOT, full, ends={"spot": 0.1}).token_worker.id == "spot"
        assert placed(PROMPT, SPOT, STAYS, ends={"spot": 0.1}, without=["stays"]).token_worker.id == "spot"

    def test_answers_that_have_ended_tell_how_long_one_is_exposed(self) -> None:
        """Requests that allow 1,000 tokens and end after a second go to the shorter queue."""
        times = AnswerTimes(POLICY.token_s)
        for _ in range(ENOUGH):
            times.ended(1000, 1.0)
        assert placed(PROMPT, SPOT, STAYS, ends={"spot": 1 / 60}, times=times).token_worker.id == "spot"

    def test_unmeasured_workers_queue_by_a_share_of_a_tokens_seconds(self) -> None:
        """500 tokens at a hundredth of 50 ms are 0.25 s."""
        spot, stays = worker_member("spot", blocks=1000), worker_member("stays", owed=500, blocks=1000)
        slow = PoolPolicy(interruption_s=1.0, token_s=0.05)  # chance 0.33: 0.33 s
        assert placed(PROMPT, spot, stays, ends={"spot": 1 / 60}, policy=slow).token_worker.id == "stays"
        cheap = PoolPolicy(interruption_s=0.7, token_s=0.05)
        assert placed(PROMPT, spot, stays, ends={"spot": 1 / 60}, policy=cheap).token_worker.id == "spot"


class TestOtherPlaces:
    """Service in place, spill, and pools that are over."""

    @pytest.mark.parametrize("pool", [Pool.MIXED, Pool.TOKEN])
    def test_service_in_place_weighs_lives(self, pool: Pool) -> None:
        """Without prompt workers."""
        spot, stays = (
            worker_member("spot", pool, blocks=1000, **MEASURED),
            worker_member("stays", pool, owed=500, blocks=1000, **MEASURED),
        )
        for new, chosen in ((1000, "stays"), (50, "spot")):
            found = placed(spot, stays, ends={"spot": 1 / 60}, new=new)
            assert (found.prompt_worker.id, found.token_worker.id) == (chosen, chosen)

    def test_token_workers_over_their_bounds_are_weighed(self) -> None:
        """All are over; among pools and off-pool workers, too."""
        policy = PoolPolicy(
            max_remaining_tokens=100, max_pending_prompt_tokens=0, interruption_s=10.0, break_even=False
        )
        prompt = worker_member("p", Pool.PROMPT, pending=50, blocks=10)
        spot = worker_member("spot", owed=300, pending=50, blocks=1000, prompts_in_place=1, **MEASURED)
        stays = worker_member("stays", owed=800, pending=50, blocks=1000, **MEASURED)
        for new, chosen in ((1000, "stays"), (50, "spot")):
            assert placed(prompt, spot, stays, ends={"spot": 1 / 60}, new=new, policy=policy).token_worker.id == chosen

    def test_partners_in_the_mixed_pool_are_weighed(self) -> None:
        policy = PoolPolicy(interruption_s=10.0, break_even=False)
        spot = worker_member("spot", blocks=1000, prompts_in_place=1, **MEASURED)
        stays = worker_member("stays", Pool.MIXED, owed=500, blocks=1000, **MEASURED)
        for new, chosen in ((1000, "stays"), (50, "spot")):
            found = placed(PROMPT, spot, stays, ends={"spot": 1 / 60}, new=new, policy=policy)
            assert (found.prompt_worker.id, found.token_worker.id) == ("p", chosen)

    def test_prompts_end_soon_so_that_the_shortest_prompt_queue_is_chosen(self) -> None:
        """However soon that worker may end."""
        prompts = PROMPT, worker_member("q", Pool.PROMPT, pending=10, waiting=0)
        assert placed(*prompts, STAYS, ends={"p": 0.9, "stays": 0.001}).prompt_worker.id == "p"
