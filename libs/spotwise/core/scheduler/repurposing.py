"""Moves a worker to the opposite pool when its load has changed for good (re-purposing: Splitwise, section 4.2).

Law: the mixed pool absorbs load that changes within seconds; home pools follow load that changes within minutes.
A worker that had off-pool work for most of a window changes its pool if its own pool had slack and the opposite one was short.
At most one worker changes in a window, and never the last ready worker of a pool.
No drain is needed: the work that the worker has becomes off-pool work.
No change starts while a worker still has KV to receive or hand off against the direction of its home pool: two such workers
could wait for each other's blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spotwise.core.messages.members import Pool
from spotwise.core.messages.worker import ChangeHomePool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import PROMPT_OFF_POOL, TOKEN_OFF_POOL, Pools
from spotwise.core.scheduler.views import WorkerView

_OPPOSITE = {Pool.PROMPT: Pool.TOKEN, Pool.TOKEN: Pool.PROMPT}


class Repurposing:
    """Evaluates one window after the other."""

    def __init__(self, policy: PoolPolicy) -> None:
        self._share = policy.repurpose_share
        self._window_s = policy.repurpose_window_s
        self._started_s: float | None = None
        self._observed_s = 0.0
        self._off_pool_s: dict[str, float] = {}
        self._short: Counter[Pool] = Counter()
        self._placed = 0

    def placed(self, short: Iterable[Pool]) -> None:
        """Count a placed request, and the pools that had no worker within its threshold."""
        self._placed += 1
        for pool in short:
            self._short[pool] += 1

    def observe(self, pools: Pools, now: float) -> ChangeHomePool | None:
        """Account off-pool time; at the end of a window return the change of a home pool that is due, if any."""
        if self._window_s is None:
            return None
        if self._started_s is not None:
            for view in pools.members(PROMPT_OFF_POOL, TOKEN_OFF_POOL):
                self._off_pool_s[view.id] = self._off_pool_s.get(view.id, 0.0) + now - self._observed_s
        else:
            self._started_s = now
        self._observed_s = now
        if now - self._started_s < self._window_s:
            return None
        change = self._change(pools, now - self._started_s)
        self._started_s, self._placed = now, 0
        self._off_pool_s.clear()
        self._short.clear()
        return change

    def _change(self, pools: Pools, window_s: float) -> ChangeHomePool | None:
        if any(_drains_old_pool(view) for view in pools):
            return None
        off_pool = [
            (self._off_pool_s.get(view.id, 0.0), view) for view in pools.members(PROMPT_OFF_POOL, TOKEN_OFF_POOL)
        ]
        for off_pool_s, view in sorted(off_pool, key=lambda pair: (-pair[0], pair[1].id)):
            other = _OPPOSITE[view.home_pool]
            was_off_pool = off_pool_s >= self._share * window_s
            had_slack = self._short[view.home_pool] + self._share * self._placed <= self._placed
            if was_off_pool and had_slack and self._short[other] > 0 and pools.ready_at(view.home_pool) > 1:
                return ChangeHomePool(view.id, other)
        return None


def _drains_old_pool(view: WorkerView) -> bool:
    if view.home_pool is Pool.PROMPT:
        return view.load.waiting_for_kv > 0
    return view.load.prompts_to_hand_off > 0
