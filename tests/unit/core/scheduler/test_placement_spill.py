"""Where a request goes when its home pools are over their thresholds."""

from __future__ import annotations

from spotwise.core.scheduler.placements import PlacedBy
from spotwise.core.scheduler.policy import PoolPolicy
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler.placing import choice, chosen, mixed_worker, prompt_worker


class TestPromptsSpillOver:
    """A prompt pool over its threshold: the mixed pool, a converted token worker, the shortest queue."""

    FULL = prompt_worker("p", pending=85)

    def test_a_queue_that_is_empty_is_never_over(self) -> None:
        """An empty queue is within any threshold: a prompt longer than the threshold must be placed."""
        found = chosen(prompt_worker("p"), mixed_worker("m"), worker_member("t"), prompt_tokens=500, kv_tokens=510)
        assert found == ("p", "t", PlacedBy.HOME_POOL)

    def test_the_threshold_itself_is_within(self) -> None:
        workers = [prompt_worker("p", pending=84), mixed_worker("m"), worker_member("t")]
        assert chosen(*workers) == ("p", "t", PlacedBy.HOME_POOL)

    def test_the_mixed_pool_comes_first_and_serves_in_place(self) -> None:
        """The KV of a mixed worker's request stays on it, so it serves in place."""
        workers = [self.FULL, mixed_worker("m", owed=900), worker_member("t")]
        assert chosen(*workers) == ("m", "m", PlacedBy.MIXED_POOL)

    def test_a_token_worker_with_a_prompt_in_place_is_in_the_mixed_pool(self) -> None:
        """A token worker with a prompt in place serves the spill, so that one token worker is disturbed rather than two."""
        away = worker_member("t2", owed=900, pending=40, prompts_in_place=1)
        assert chosen(self.FULL, worker_member("t1"), away) == ("t2", "t2", PlacedBy.MIXED_POOL)

    def test_a_prompt_worker_that_decodes_is_in_the_mixed_pool_and_hands_off(self) -> None:
        """A prompt worker with decodes is in the mixed pool, and still hands off: its home pool is the prompt pool."""
        away = prompt_worker("p2", decoding=1)
        assert chosen(self.FULL, away, worker_member("t")) == ("p2", "t", PlacedBy.MIXED_POOL)
        mixed = mixed_worker("m", pending=1)
        assert chosen(self.FULL, away, mixed, worker_member("t")) == ("p2", "t", PlacedBy.MIXED_POOL)

    def test_a_prompt_worker_that_decodes_does_not_stand_in_the_prompt_pool(self) -> None:
        """One without decodes comes first, though its queue is longer."""
        workers = [prompt_worker("p1", pending=60), prompt_worker("p2", decoding=1), worker_member("t")]
        assert chosen(*workers) == ("p1", "t", PlacedBy.HOME_POOL)

    def test_else_the_token_worker_that_owes_least_is_converted(self) -> None:
        """The token worker with the fewest remaining tokens computes the prompt in place, if it has memory for all of it."""
        over = mixed_worker("m", pending=90)
        workers = [self.FULL, over, worker_member("t1", owed=5), worker_member("t2"), worker_member("t3", owed=9)]
        assert chosen(*workers) == ("t2", "t2", PlacedBy.CONVERSION)
        small = worker_member("t2", free=1)
        assert chosen(self.FULL, over, worker_member("t1", owed=5), small) == ("t1", "t1", PlacedBy.CONVERSION)

    def test_all_over_the_shortest_queue_of_the_home_pool(self) -> None:
        """With all over their thresholds the home pool's shortest queue is chosen, of workers with off-pool work, too."""
        workers = [self.FULL, prompt_worker("p2", pending=95), worker_member("t", pending=90, prompts_in_place=1)]
        assert chosen(*workers) == ("p", "t", PlacedBy.ALL_OVER)
        away = prompt_worker("p2", pending=84, decoding=1)
        busy = worker_member("t", pending=90, prompts_in_place=1)
        assert chosen(self.FULL, away, busy, prompt_tokens=20) == ("p2", "t", PlacedBy.ALL_OVER)

    def test_a_prompt_that_no_prompt_worker_could_ever_hold_spills_over(self) -> None:
        """A busy one may wait for blocks; a small one would wait for ever."""
        small = prompt_worker("p1", blocks=1)
        busy = prompt_worker("p2", blocks=2, free=0, pending=80)
        assert choice(small, busy, worker_member("t"), prompt_tokens=17) == ("p2", "t")
        assert chosen(small, worker_member("t"), prompt_tokens=17) == ("t", "t", PlacedBy.CONVERSION)


class TestTokensSpillOver:
    """A token pool over its threshold: the mixed pool, a converted prompt worker, any worker with memory."""

    FULL = worker_member("t", free=1)

    def test_the_mixed_pool_comes_first(self) -> None:
        workers = [prompt_worker("p"), self.FULL, mixed_worker("m", owed=900)]
        assert chosen(*workers) == ("p", "m", PlacedBy.MIXED_POOL)

    def test_token_workers_with_prompts_in_place_are_in_the_mixed_pool(self) -> None:
        """A mixed-pool token worker comes before a conversion, though it has more remaining tokens."""
        away = worker_member("t2", prompts_in_place=1)
        assert chosen(prompt_worker("p"), worker_member("t1", owed=50), away) == ("p", "t1", PlacedBy.HOME_POOL)
        assert chosen(prompt_worker("p"), self.FULL, away) == ("p", "t2", PlacedBy.MIXED_POOL)

    def test_a_prompt_worker_that_decodes_serves_in_place(self) -> None:
        """A prompt worker that decodes serves in place, since no KV is sent to a worker of the prompt pool."""
        away = prompt_worker("p2", decoding=1, pending=50)
        assert chosen(prompt_worker("p1"), self.FULL, away) == ("p2", "p2", PlacedBy.MIXED_POOL)
        more, less = prompt_worker("p2", decoding=1, owed=9), mixed_worker("m", owed=5)
        assert chosen(prompt_worker("p1"), self.FULL, more, less) == ("p1", "m", PlacedBy.MIXED_POOL)

    def test_else_the_prompt_worker_with_the_shortest_queue_is_converted(self) -> None:
        """The prompt worker decodes what it has computed, if it has memory for all of it."""
        workers = [prompt_worker("p1", pending=50), prompt_worker("p2", pending=40), self.FULL]
        assert chosen(*workers) == ("p2", "p2", PlacedBy.CONVERSION)
        workers[0] = prompt_worker("p1", free=1)
        assert chosen(*workers) == ("p2", "p2", PlacedBy.CONVERSION)

    def test_owed_tokens_count_where_a_bound_is_set(self) -> None:
        """An empty queue is never over; without a bound memory alone decides."""
        bound = PoolPolicy(max_remaining_tokens=50)
        workers = [prompt_worker("p"), worker_member("t", owed=35), mixed_worker("m", owed=30)]
        assert chosen(*workers, policy=bound) == ("p", "m", PlacedBy.MIXED_POOL)
        assert chosen(*workers) == ("p", "t", PlacedBy.HOME_POOL)
        empty = [prompt_worker("p"), worker_member("t")]
        assert chosen(*empty, kv_tokens=99, policy=bound) == ("p", "t", PlacedBy.HOME_POOL)

    def test_all_over_the_token_worker_that_owes_least(self) -> None:
        """With all over their thresholds the token worker comes before the mixed pool, if it has memory."""
        bound = PoolPolicy(max_pending_prompt_tokens=100, max_remaining_tokens=50, break_even=False)
        full = prompt_worker("p", pending=90)
        over = mixed_worker("m", owed=41)
        workers = [full, over, worker_member("t1", owed=44), worker_member("t2", owed=43)]
        assert chosen(*workers, policy=bound) == ("p", "t2", PlacedBy.ALL_OVER)
        assert chosen(full, over, worker_member("t", free=0), policy=bound) == ("p", "m", PlacedBy.ALL_OVER)

    def test_no_request_waits_while_a_worker_has_memory(self) -> None:
        assert chosen(prompt_worker("p", pending=90), self.FULL) == ("p", "p", PlacedBy.ALL_OVER)
        assert choice(prompt_worker("p", free=1), self.FULL, mixed_worker("m", free=1)) is None
