"""When a worker changes its home.

Law: the mixed pool absorbs load that changes by the second, home pools follow load that changes by the minute. A worker with
off-pool work for most of a window, while its own pool could do without it and the other one was short, is given to that pool.
One worker a window at most, and never the last of a pool: where the split of the machines is right, nothing moves, and where it
is wrong, it is put right step by step (re-purposing: Splitwise, section 4.2; its reference simulator has none).

A change needs no drain: the worker goes on with what it has, which then is the off-pool work. Only one worker at a time may
stand between two pools like that, with KV to come or to go against the direction that its home has: the next change waits
until it has settled, because two such workers could wait for one another's blocks.

Invariants: at most one change in any window; a pool of one keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spotwise.core.cluster.policy import PoolPolicy
from spotwise.core.cluster.pools import PROMPT_AWAY, TOKEN_AWAY, Pools
from spotwise.core.cluster.views import WorkerView
from spotwise.core.members import Pool
from spotwise.core.messages import ChangeHomePool

_OPPOSITE = {Pool.PROMPT: Pool.TOKEN, Pool.TOKEN: Pool.PROMPT}


class Repurposing:
    """Watches windows, one after the other."""

    def __init__(self, policy: PoolPolicy) -> None:
        self._share = policy.repurpose_share
        self._window_s = policy.repurpose_window_s
        self._started_s: float | None = None
        self._looked_s = 0.0
        self._away_s: dict[str, float] = {}
        self._short: Counter[Pool] = Counter()
        self._placed = 0

    def placed(self, short: Iterable[Pool]) -> None:
        """Note that a request was placed, and which pools had no worker within its threshold."""
        self._placed += 1
        self._short.update(short)

    def look(self, pools: Pools, now: float) -> ChangeHomePool | None:
        """Take note of who is away from home; at the end of a window, return who changes its home, if anybody does."""
        if self._window_s is None:
            return None
        if self._started_s is not None:
            for view in pools.members(PROMPT_AWAY, TOKEN_AWAY):
                self._away_s[view.id] = self._away_s.get(view.id, 0.0) + now - self._looked_s
        else:
            self._started_s = now
        self._looked_s = now
        if now - self._started_s < self._window_s:
            return None
        change = self._change(pools, now - self._started_s)
        self._started_s, self._placed = now, 0
        self._away_s.clear()
        self._short.clear()
        return change

    def _change(self, pools: Pools, window_s: float) -> ChangeHomePool | None:
        if any(_stands_between(view) for view in pools):
            return None
        away = [(self._away_s.get(view.id, 0.0), view) for view in pools.members(PROMPT_AWAY, TOKEN_AWAY)]
        for away_s, view in sorted(away, key=lambda pair: (-pair[0], pair[1].id)):
            other = _OPPOSITE[view.home_pool]
            was_away = away_s >= self._share * window_s
            had_slack = self._short[view.home_pool] + self._share * self._placed <= self._placed
            if was_away and had_slack and self._short[other] > 0 and pools.ready_at(view.home_pool) > 1:
                return ChangeHomePool(view.id, other)
        return None


def _stands_between(view: WorkerView) -> bool:
    """Tell whether KV is to come or to go there against the direction that the worker's home has."""
    if view.home_pool is Pool.PROMPT:
        return view.load.waiting_for_kv > 0
    return view.load.prompts_to_hand_off > 0
