"""All workers, by the pool that they belong to and the one that they are in."""

from __future__ import annotations

from spotwise.core.messages.members import Member, MemberState, Pool
from spotwise.core.scheduler.pools import (
    MIXED,
    PROMPT_OFF_POOL,
    PROMPT_ON_POOL,
    TOKEN_OFF_POOL,
    TOKEN_ON_POOL,
    Pools,
    Queue,
)
from spotwise.core.scheduler.ranking import Need
from tests.unit.core.builders import worker_member

ANY = Need(1, 1, reserves=True)


def pools_of(*members: Member) -> Pools:
    pools = Pools()
    for member in members:
        pools.join(member)
    return pools


class TestGroups:
    """One place a worker, and it follows what the worker holds."""

    def test_every_worker_is_grouped_by_home_pool_and_work(self) -> None:
        pools = pools_of(
            worker_member("p", Pool.PROMPT),
            worker_member("pd", Pool.PROMPT, decoding=1),
            worker_member("t"),
            worker_member("tp", prompts_in_place=1),
            worker_member("m", Pool.MIXED),
        )
        groups = [pools.group_of(worker_id) for worker_id in ("p", "pd", "t", "tp", "m")]
        assert groups == [PROMPT_ON_POOL, PROMPT_OFF_POOL, TOKEN_ON_POOL, TOKEN_OFF_POOL, MIXED]
        assert (pools.ready_at(Pool.PROMPT), pools.ready_at(Pool.TOKEN, Pool.MIXED), pools.ready) == (2, 3, 5)

    def test_a_new_home_pool_is_the_one_the_worker_reports(self) -> None:
        pools = pools_of(worker_member("w"))
        pools.reported(worker_member("w", Pool.PROMPT), "s", 1000.0)
        assert pools.group_of("w") == PROMPT_ON_POOL
        assert (pools.ready_at(Pool.PROMPT), pools.ready_at(Pool.TOKEN)) == (1, 0)

    def test_a_worker_that_takes_no_requests_is_in_no_group(self) -> None:
        """The worker is known all the same, and its next report brings it back."""
        pools = pools_of(worker_member("t", state=MemberState.DRAINING))
        assert (pools.group_of("t"), pools.ready, "t" in pools) == (None, 0, True)
        pools.reported(worker_member("t"), "s", 1000.0)
        assert pools.group_of("t") == TOKEN_ON_POOL
        pools.reported(worker_member("t", state=MemberState.DRAINING), "s", 1000.0)
        assert (pools.group_of("t"), pools.ready) == (None, 0)

    def test_a_lost_worker_is_forgotten(self) -> None:
        pools = pools_of(worker_member("t"))
        pools.intend("t", "r", 10)
        pools.lose("t")
        pools.drop_intended("t", "r")
        assert (list(pools), pools.ready, "t" in pools) == ([], 0, False)

    def test_members_are_listed_by_id(self) -> None:
        pools = pools_of(
            worker_member("c", prompts_in_place=1), worker_member("b"), worker_member("a", Pool.PROMPT, decoding=1)
        )
        assert [view.id for view in pools.members(PROMPT_OFF_POOL, TOKEN_OFF_POOL)] == ["a", "c"]


class TestQuestions:
    """The queries of a placement."""

    def test_the_first_of_each_group(self) -> None:
        """Each group's worker with the shortest queue of the given kind; empty groups are left out."""
        pools = pools_of(
            worker_member("t1", owed=9), worker_member("t2", owed=8, pending=5), worker_member("m", Pool.MIXED)
        )
        groups = (TOKEN_ON_POOL, TOKEN_OFF_POOL, MIXED)
        assert [view.id for view in pools.first_of(Queue.HOME_POOL, groups, ANY)] == ["t2", "m"]
        assert [view.id for view in pools.first_of(Queue.BOTH, groups, ANY)] == ["t1", "m"]

    def test_room_anywhere(self) -> None:
        for pool in Pool:
            pools = pools_of(worker_member("w", pool, free=1))
            assert pools.have_capacity(Need(15, 1, reserves=True))
            assert not pools.have_capacity(Need(16, 1, reserves=True))

    def test_the_largest_cache_follows_reports(self) -> None:
        """A worker whose cache is another one now, larger or smaller, has that one."""
        pools = pools_of(worker_member("t", blocks=5))
        assert pools.most_kv_tokens() == 5 * 16
        for blocks in (9, 3):
            pools.reported(worker_member("t", blocks=blocks), "s", 1000.0)
            assert pools.most_kv_tokens() == blocks * 16

    def test_the_largest_cache(self) -> None:
        """The largest cache is that of any ready worker, free or not."""
        draining = worker_member("t3", blocks=900, state=MemberState.DRAINING)
        pools = pools_of(worker_member("t1", blocks=5), worker_member("t2", Pool.PROMPT, blocks=7, free=0), draining)
        assert pools.most_kv_tokens() == 7 * 16
        assert pools_of().most_kv_tokens() == 0
