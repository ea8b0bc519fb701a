"""When a worker's home pool changes."""

from __future__ import annotations

from spotwise.core.messages.members import Member, Pool
from spotwise.core.messages.worker import ChangeHomePool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.repurposing import Repurposing
from tests.unit.core.builders import worker_member

WINDOW_S = 100.0
P1, P2 = worker_member("p1", Pool.PROMPT), worker_member("p2", Pool.PROMPT)
T1, T2 = worker_member("t1"), worker_member("t2")
BUSY_T1 = worker_member("t1", prompts_in_place=1)
BUSY_T2 = worker_member("t2", prompts_in_place=1)


class Watch:
    """A window of ten looks, ten seconds apart."""

    def __init__(self, *members: Member, policy: PoolPolicy | None = None) -> None:
        self.pools = Pools()
        for member in members:
            self.pools.join(member)
        self.now = 1000.0
        self.repurposing = Repurposing(policy or PoolPolicy(repurpose_window_s=WINDOW_S))
        assert self.look() is None

    def look(self, after_s: float = 0.0) -> ChangeHomePool | None:
        self.now += after_s
        return self.repurposing.observe(self.pools, self.now)

    def observe(self, *members: Member) -> None:
        for member in members:
            self.pools.reported(member, "s", self.now)

    def window(self, away: Member, back: Member, looks_away: int, *short: tuple[Pool, ...]) -> ChangeHomePool | None:
        """A worker is away for some looks and then back, but away again when the window ends; requests are placed."""
        for pools in short:
            self.repurposing.placed(pools)
        self.observe(away)
        for number in range(9):
            assert self.look(10.0) is None
            if number + 1 == looks_away:
                self.observe(back)
        self.observe(away)
        return self.look(10.0)


def test_a_token_worker_that_computed_prompts_for_most_of_a_window_becomes_a_prompt_worker() -> None:
    assert Watch(P1, T1, T2).window(BUSY_T1, T1, 9, (Pool.PROMPT,)) == ChangeHomePool("t1", Pool.PROMPT)


def test_a_prompt_worker_that_decoded_for_most_of_a_window_becomes_a_token_worker() -> None:
    busy = worker_member("p1", Pool.PROMPT, decoding=3)
    assert Watch(P1, P2, T1).window(busy, P1, 9, (Pool.TOKEN,)) == ChangeHomePool("p1", Pool.TOKEN)


def test_too_small_a_share_of_the_window_changes_nothing() -> None:
    """Seven of ten looks and the last are 80 %, six are not."""
    assert Watch(P1, T1, T2).window(BUSY_T1, T1, 7, (Pool.PROMPT,)) == ChangeHomePool("t1", Pool.PROMPT)
    assert Watch(P1, T1, T2).window(BUSY_T1, T1, 6, (Pool.PROMPT,)) is None


def test_the_last_of_a_pool_stays() -> None:
    """Others that are not ready do not count."""
    assert Watch(P1, T1).window(BUSY_T1, T1, 9, (Pool.PROMPT,)) is None
    assert Watch(P1, T1, worker_member("t2", blocks=0)).window(BUSY_T1, T1, 9, (Pool.PROMPT,)) is None


def test_a_pool_that_is_short_itself_gives_no_worker_away() -> None:
    both, prompt = (Pool.PROMPT, Pool.TOKEN), (Pool.PROMPT,)
    assert Watch(P1, T1, T2).window(BUSY_T1, T1, 9, both, *[prompt] * 3) is None
    assert Watch(P1, T1, T2).window(BUSY_T1, T1, 9, both, *[prompt] * 4) == ChangeHomePool("t1", Pool.PROMPT)


def test_without_need_in_the_other_pool_nothing_changes() -> None:
    """A prompt that is computed in place because that costs less is no reason."""
    assert Watch(P1, T1, T2).window(BUSY_T1, T1, 9, ()) is None


def test_one_worker_a_window() -> None:
    """The one that was away for longest; a new window begins with nothing."""
    watch = Watch(P1, T1, T2, worker_member("t3"))
    watch.observe(BUSY_T2)
    assert watch.window(BUSY_T1, T1, 8, (Pool.PROMPT,)) == ChangeHomePool("t2", Pool.PROMPT)
    assert watch.window(BUSY_T1, T1, 2, (Pool.PROMPT,)) == ChangeHomePool("t2", Pool.PROMPT)
    assert watch.window(T1, T1, 9) is None


def test_of_two_that_were_away_alike_the_smaller_id_goes() -> None:
    watch = Watch(P1, T2, T1, worker_member("t3"))
    watch.observe(BUSY_T2)
    assert watch.window(BUSY_T1, BUSY_T1, 9, (Pool.PROMPT,)) == ChangeHomePool("t1", Pool.PROMPT)


def test_the_next_change_waits_until_the_last_worker_has_settled() -> None:
    """Hand-offs of a former prompt worker, or KV that a former token worker still expects, go the wrong way."""
    former_prompt_worker = worker_member("t2", prompts_to_hand_off=1)
    assert Watch(P1, T1, former_prompt_worker).window(BUSY_T1, T1, 9, (Pool.PROMPT,)) is None
    former_token_worker = worker_member("p1", Pool.PROMPT, waiting_for_kv=1)
    assert Watch(former_token_worker, T1, T2).window(BUSY_T1, T1, 9, (Pool.PROMPT,)) is None


def test_without_a_window_homes_stay() -> None:
    policy = PoolPolicy(repurpose_window_s=None)
    assert Watch(P1, T1, T2, policy=policy).window(BUSY_T1, T1, 9, (Pool.PROMPT,)) is None
