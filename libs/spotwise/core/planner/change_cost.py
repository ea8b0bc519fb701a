"""Seconds that changes of the fleet take, learned from those that ended: moves of requests, and the forming of groups."""

from __future__ import annotations

from collections.abc import Sequence

from spotwise.core.messages import mesh as m
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.planner.learned_seconds import LearnedSeconds

#: Weight of the newest move.
_NEWEST = 0.25
#: A link has no bandwidth without a limit.
_LEAST_S = 1e-9
#: Bytes a second at which a device gets weights, from others or from its model folder, in the plan of a migration. What the
#: seconds of that plan come to is learned.
STORAGE_BYTES_PER_S = 1e9
#: So many requests that move in one change count as much as a process of their groups, until moves were measured.
_AT_ONCE = 32
#: Seconds until new groups serve, beside the plan's, before any did.
_FORMING_S = 2.0


class ChangeCost:
    """What was learned so far.

    Law: the pause of a request that moves grows with the processes of the group that it leaves and of the one that it goes to:
    an iteration there has to end, and each of them takes part in the transfer; and with the requests that move in the same
    change, which share links and processors. Until new groups serve, each of their processes has to load, and the weights have
    to come.

    Args:
        latency_s: of a move, whatever its tokens.
        token_s: more for each token with KV, until moves were measured.
    """

    #: The links over which weights travel.
    links = Links(*(STORAGE_BYTES_PER_S,) * 3)

    def __init__(self, latency_s: float, token_s: float) -> None:
        self.latency_s = latency_s
        self.token_s = token_s
        self._pause_s = LearnedSeconds(latency_s, 0.0, 0.0, 0.0)
        self._forming_s = LearnedSeconds(_FORMING_S, 0.0, 1.0)

    def move_s(self, tokens: int) -> float:
        """Return the expected seconds of a move, from its order to its end."""
        return self.latency_s + tokens * self.token_s

    def pause_s(self, sources: Sequence[m.DeviceGroup], targets: Sequence[m.DeviceGroup], requests: int) -> float:
        """Return the expected pause of one of so many requests that move from some groups to others; 0 where none is left."""
        return self._pause_s.expected(1.0, _size(sources), _size(targets), requests / _AT_ONCE) if sources else 0.0

    def forming_s(self, new: Sequence[m.DeviceGroup], migration_s: float) -> float:
        """Return the expected seconds until new groups serve, to which weights travel for `migration_s` by the plan."""
        return self._forming_s.expected(1.0, _count(new), migration_s) if new else 0.0

    def learn_forming(self, seconds: float, new: Sequence[m.DeviceGroup], migration_s: float) -> None:
        """Learn from groups that served after so many seconds."""
        self._forming_s.learn(seconds, 1.0, _count(new), migration_s)

    def learn(self, ended: m.MoveEnded, source_size: int | None, target_size: int | None, requests: int) -> None:
        """Learn from a move that was made, one of so many of a change, between groups of so many processes; `None`: one of them
        is gone.
        """
        if ended.tokens > 0:
            token_s = ended.copy_s / ended.tokens
            self.token_s = max(self.token_s + _NEWEST * (token_s - self.token_s), _LEAST_S)
        if ended.pause_s > 0 and source_size is not None and target_size is not None:
            self._pause_s.learn(ended.pause_s, 1.0, source_size, target_size, requests / _AT_ONCE)


def _count(groups: Sequence[m.DeviceGroup]) -> int:
    return sum(len(group.device_ids) for group in groups)


def _size(groups: Sequence[m.DeviceGroup]) -> float:
    return _count(groups) / len(groups) if groups else 0.0
