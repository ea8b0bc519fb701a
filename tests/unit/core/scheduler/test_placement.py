"""Tests of placement: the prompt worker and the token worker of a request."""

from __future__ import annotations

from typing import Any

from spotwise.core.messages.members import Member, MemberState, Pool
from spotwise.core.scheduler.placements import PlacedBy
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler.placing import WEIGHED, choice, chosen, mixed_worker, placed, prompt_worker


class TestShortestQueue:
    """Join the shortest queue, on both sides at once."""

    def test_prompts_go_where_fewest_prompt_tokens_wait(self) -> None:
        """Prompts go where the fewest prompt tokens wait, whatever the number of requests or the token side's queue."""
        busy = prompt_worker("p1", pending=50)
        idle = prompt_worker("p2", pending=49, owed=500)
        assert choice(busy, idle, worker_member("t")) == ("p2", "t")

    def test_tokens_go_where_fewest_are_owed(self) -> None:
        """Decodes go to the worker with the fewest remaining tokens, whatever the prompt side's queue."""
        busy = worker_member("t1", owed=100)
        idle = worker_member("t2", owed=99, pending=50)
        assert choice(prompt_worker("p"), busy, idle) == ("p", "t2")

    def test_ties_go_to_the_smaller_id(self) -> None:
        """Of equal workers those with the smaller ids are chosen, in whatever order the workers are listed."""
        workers = [prompt_worker("p2"), worker_member("t2"), worker_member("t1"), prompt_worker("p1")]
        assert choice(*workers) == ("p1", "t1")

    def test_prompts_meant_for_a_worker_count_before_they_are_sent(self) -> None:
        """Otherwise a burst would choose one prompt worker for all its requests."""
        workers = [prompt_worker("p1"), prompt_worker("p2", pending=5), worker_member("t")]
        assert choice(*workers, intended={"p1": 6}) == ("p2", "t")


class TestPrefixes:
    """A worker that holds the prompt's beginning has less of it to compute."""

    def test_what_is_held_shortens_the_queue(self) -> None:
        """Cached tokens shorten the queue: 70 waiting and 10 to compute beat 100 elsewhere; with 71 to compute they do not."""
        workers = [prompt_worker("p2", pending=70), prompt_worker("p1"), worker_member("t")]
        for held, prompt_side in ((90, "p2"), (29, "p1")):
            found = choice(*workers, prompt_tokens=100, kv_tokens=110, held={"p2": held})
            assert found == (prompt_side, "t")

    def test_ties_go_to_the_smaller_id_whatever_the_workers_hold(self) -> None:
        """Equal queues are decided by the smaller id, without regard to cached prefixes."""
        workers = [prompt_worker("p1"), prompt_worker("p2", pending=10), worker_member("t")]
        assert choice(*workers, held={"p2": 10}) == ("p1", "t")

    def test_the_last_token_is_computed_always(self) -> None:
        """The first new token is sampled from it; a worker cannot hold more than the rest."""
        workers = [prompt_worker("p1"), prompt_worker("p2", pending=15), worker_member("t")]
        assert choice(*workers, held={"p2": 64}) == ("p1", "t")

    def test_a_queue_without_waiting_prompts_is_never_over(self) -> None:
        """The worker computes 90 tokens, and the next prompt is its next iteration."""
        assert choice(prompt_worker("p", pending=90, waiting=0), worker_member("t")) == ("p", "t")
        assert choice(prompt_worker("p", pending=90), worker_member("t")) == ("t", "t")

    def test_the_threshold_counts_what_would_be_computed(self) -> None:
        """100 tokens are over it behind 50, 40 are not."""
        workers = [prompt_worker("p", pending=50), worker_member("t")]
        assert chosen(*workers, prompt_tokens=100, kv_tokens=110, held={"p": 60}) == ("p", "t", PlacedBy.HOME_POOL)
        assert chosen(*workers, prompt_tokens=100, kv_tokens=110) == ("t", "t", PlacedBy.CONVERSION)

    def test_a_holder_that_is_gone_or_not_of_the_group_is_passed_over(self) -> None:
        """The cached prefix of an absent worker, or of one outside the group, is ignored."""
        workers = [prompt_worker("p"), worker_member("t")]
        assert choice(*workers, held={"gone": 16, "t": 16}) == ("p", "t")

    def test_a_request_served_in_place_goes_where_its_prefix_is(self) -> None:
        workers = [mixed_worker("m1"), mixed_worker("m2", pending=5)]
        assert choice(*workers, held={"m2": 10}) == ("m2", "m2")


class TestMeshesOfFewPools:
    """The pools with workers do the work of an empty pool."""

    def test_the_mixed_pool_takes_tokens_where_there_is_no_token_pool(self) -> None:
        assert choice(prompt_worker("p"), mixed_worker("m")) == ("p", "m")

    def test_the_mixed_pool_serves_in_place_where_there_is_no_prompt_pool(self) -> None:
        assert choice(worker_member("t"), mixed_worker("m", owed=50)) == ("m", "m")
        assert choice(worker_member("t"), mixed_worker("m", pending=90)) == ("t", "t")

    def test_a_mesh_of_one_pool_serves_both_phases_in_place(self) -> None:
        """Prompt workers alone, token workers alone, mixed workers alone: each is a mesh, and both queues count."""
        for pool in Pool:
            assert choice(worker_member("w1", pool, owed=5), worker_member("w2", pool)) == ("w2", "w2")
            assert choice(worker_member("w1", pool, pending=9), worker_member("w2", pool, owed=8)) == ("w2", "w2")

    def test_decodes_in_place_may_count_by_sequence(self) -> None:
        """Counted by sequences, one long answer is no longer a queue than one short one, and prompts decide."""
        by_sequence = PoolPolicy(decode_queue=DecodeQueue.SEQUENCES, break_even=False)
        long, short = (
            mixed_worker("m1", decoding=1, owed=900, pending=9),
            mixed_worker("m2", decoding=2, owed=20, pending=9),
        )
        assert choice(long, short, policy=by_sequence) == ("m1", "m1")
        assert choice(long, short) == ("m2", "m2")
        busy = mixed_worker("m3", decoding=1, owed=900, pending=11)
        assert choice(short, busy, policy=by_sequence) == ("m2", "m2")

    def test_in_a_mesh_of_one_pool_those_with_work_of_both_phases_are_not_preferred(self) -> None:
        """A mixed pool that takes up what spills over makes sense only beside another pool."""
        for pool in (Pool.PROMPT, Pool.TOKEN):
            mixed = worker_member("w1", pool, pending=50, owed=50, prompts_in_place=1, decoding=1)
            assert choice(mixed, worker_member("w2", pool)) == ("w2", "w2")

    def test_a_pool_none_of_whose_members_is_ready_counts_as_empty(self) -> None:
        """Starting and draining workers take nothing, nor does one that reports no blocks."""
        for state in (MemberState.STARTING, MemberState.DRAINING):
            assert choice(worker_member("t", state=state), prompt_worker("p")) == ("p", "p")
        assert choice(worker_member("t", blocks=0), prompt_worker("p")) == ("p", "p")
        assert choice(prompt_worker("p", state=MemberState.DRAINING), worker_member("t")) == ("t", "t")

    def test_no_workers_no_choice(self) -> None:
        """In a mesh without workers no placement is found."""
        assert choice() is None


class TestRoom:
    """A token worker is chosen only if it has memory for what it reserves."""

    def test_the_shortest_queue_without_room_is_passed_over(self) -> None:
        """33 tokens fill 3 blocks of 16."""
        workers = [prompt_worker("p", free=0), worker_member("t1", free=2), worker_member("t2", free=3, owed=900)]
        assert choice(*workers, kv_tokens=33) == ("p", "t2")
        assert choice(*workers, kv_tokens=49) is None

    def test_a_worker_that_reserves_on_demand_needs_room_for_the_first_token_only(self) -> None:
        """16 prompt tokens and one more fill 2 blocks of 16, whatever comes later; its whole cache must hold all of it."""
        assert choice(worker_member("t", free=2, reserved_new_tokens=1), kv_tokens=900) == ("t", "t")
        assert choice(worker_member("t", free=1, reserved_new_tokens=1), kv_tokens=900) is None
        assert choice(worker_member("t", blocks=3, reserved_new_tokens=1), kv_tokens=49) is None

    def test_what_a_worker_keeps_for_those_it_has_is_no_room(self) -> None:
        """Sequences that wait there for blocks, or grow, come before a newcomer."""
        assert choice(worker_member("t", free=4, kept=2)) == ("t", "t")
        assert choice(worker_member("t", free=4, kept=3)) is None


class TestBreakEven:
    """Both phases on one worker where that causes the least total delay, if its cost was measured."""

    @staticmethod
    def by(prompt: dict[str, Any], token: dict[str, Any], **demand: Any) -> PlacedBy:
        demand.setdefault("policy", WEIGHED)
        found = chosen(prompt_worker("p", **prompt), worker_member("t", **token), **demand)
        assert found is not None
        return found[2]

    def test_an_idle_token_worker_computes_a_prompt_whose_push_costs_more_than_nothing(self) -> None:
        """An idle token worker computes the prompt in place: it delays no decode there, and saves the push."""
        assert self.by({"prompt_token_s": 1.0, "kv_push_token_s": 0.1}, {}) is PlacedBy.BREAK_EVEN
        assert self.by({"prompt_token_s": 1.0, "kv_push_token_s": 0.0}, {}) is PlacedBy.HOME_POOL

    def test_those_that_decode_there_are_each_held_up_by_the_whole_prompt(self) -> None:
        """16 tokens of 1 s for two sequences against a push of 2 s a token: 32 s are not fewer than 32 s, 16 s are."""
        figures = {"prompt_token_s": 1.0, "kv_push_token_s": 2.0}
        assert self.by(figures, {"decoding": 2}) is PlacedBy.HOME_POOL
        assert self.by(figures, {"decoding": 1}) is PlacedBy.BREAK_EVEN

    def test_both_prompt_queues_count(self) -> None:
        """The request would wait in one or the other; in both, where the token worker computes prompts beside its answer."""
        waits = {"prompt_token_s": 1.0, "kv_push_token_s": 0.0, "pending": 20}
        assert self.by(waits, {"decoding": 1}) is PlacedBy.BREAK_EVEN
        assert self.by(waits, {"decoding": 2}) is PlacedBy.HOME_POOL
        assert self.by(waits, {"decoding": 2, "pending": 5}) is PlacedBy.LEAST_DELAY  # the prompt worker alone

    def test_each_worker_has_its_own_pace(self) -> None:
        """One that has computed no prompt yet is taken for as fast as the other."""
        figures = {"prompt_token_s": 1.0, "kv_push_token_s": 0.5}
        assert self.by(figures, {"prompt_token_s": 1.4}) is PlacedBy.BREAK_EVEN
        assert self.by(figures, {"prompt_token_s": 1.6}) is PlacedBy.HOME_POOL

    def test_what_is_held_on_either_side_need_not_be_computed(self) -> None:
        figures = {"prompt_token_s": 1.0, "kv_push_token_s": 0.1}
        assert self.by(figures, {}, held={"p": 15}) is PlacedBy.HOME_POOL
        assert self.by(figures, {"decoding": 3}, held={"t": 15}) is PlacedBy.BREAK_EVEN

    def test_without_both_figures_phases_are_split(self) -> None:
        assert self.by({"prompt_token_s": 1.0}, {}) is PlacedBy.HOME_POOL
        assert self.by({"kv_push_token_s": 1.0}, {}) is PlacedBy.HOME_POOL

    def test_it_can_be_switched_off(self) -> None:
        """The comparison of a push with a prompt can be disabled, which measures the cost of a split."""
        figures = {"prompt_token_s": 1.0, "kv_push_token_s": 0.1}
        assert self.by(figures, {}, policy=PoolPolicy(break_even=False)) is PlacedBy.HOME_POOL

    def test_a_token_worker_over_its_threshold_of_prompts_gets_none(self) -> None:
        figures = {"prompt_token_s": 1.0, "kv_push_token_s": 100.0}
        assert self.by(figures, {"pending": 85}) is PlacedBy.HOME_POOL

    def test_it_is_looked_at_in_the_mixed_pool_too(self) -> None:
        """The break-even applies in the mixed pool too, wherever a request would be split."""
        figures = {"prompt_token_s": 1.0, "kv_push_token_s": 0.1}
        away = worker_member("t", prompts_in_place=1)
        assert chosen(prompt_worker("p", **figures), away, policy=WEIGHED) == ("t", "t", PlacedBy.BREAK_EVEN)


class TestShortPools:
    """The pools without a worker within the threshold, which re-purposing reads."""

    @staticmethod
    def short(*members: Member) -> tuple[Pool, ...]:
        found = placed(*members)
        assert found is not None
        return found.short

    def test_none_while_both_pools_do_their_work(self) -> None:
        """No pool is short while both do their work, whether or not workers have off-pool work."""
        assert self.short(prompt_worker("p"), worker_member("t")) == ()
        assert self.short(prompt_worker("p", decoding=1), worker_member("t")) == ()
        assert self.short(prompt_worker("p"), worker_member("t", prompts_in_place=1)) == ()

    def test_the_one_that_sent_work_to_others(self) -> None:
        full_p, full_t = prompt_worker("p", pending=90), worker_member("t", free=1)
        assert self.short(full_p, worker_member("t")) == (Pool.PROMPT,)
        assert self.short(prompt_worker("p"), full_t) == (Pool.TOKEN,)
        assert self.short(full_p, full_t) == (Pool.PROMPT, Pool.TOKEN)
