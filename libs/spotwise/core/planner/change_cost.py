"""Seconds that changes of the fleet take, learned from those that ended.

Law: a linear model, fitted by least squares to what was measured, of which older measurements count less (`REMEMBERS` each),
and to the coefficients that were assumed, which count `ASSUMED` measurements of each count: what was never measured stays as it
was assumed, and a first measurement already moves the expectation. No coefficient is below 0: more of a count takes no less
time, else what was quicker than assumed for few would be expected to take none for many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from spotwise.core.messages import mesh as m
from spotwise.core.migration.planning.link_times import Links

#: Weight of a measurement relative to the next one.
REMEMBERS = 0.99
#: Weight of what was assumed.
ASSUMED = 0.1


class LearnedSeconds:
    """One duration.

    Args:
        coefficients: seconds for one of each count, before anything was measured.
    """

    def __init__(self, *coefficients: float) -> None:
        size = len(coefficients)
        self._assumed = np.array(coefficients)
        self._counted = np.zeros((size, size))
        self._weighed = np.zeros(size)

    def expected(self, *counts: float) -> float:
        """Return the expected seconds for counts of at least 0."""
        counted = self._counted + ASSUMED * np.eye(len(self._assumed))
        root = np.linalg.cholesky(counted)  # so that the sum of squares is that of `root.T @ fitted - weighed`
        weighed = np.linalg.solve(root, self._weighed + ASSUMED * self._assumed)
        fitted, _ = nnls(root.T, weighed)
        return float(np.dot(fitted, counts))

    def learn(self, seconds: float, *counts: float) -> None:
        """Learn from one measurement."""
        given = np.array(counts)
        self._counted = REMEMBERS * self._counted + np.outer(given, given)
        self._weighed = REMEMBERS * self._weighed + seconds * given


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
        latency_s: seconds of a move, whatever its tokens.
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
