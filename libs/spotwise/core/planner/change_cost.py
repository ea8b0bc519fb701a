"""Seconds that changes of the fleet take, learned from those that ended: moves of requests, and the forming of groups."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core import messages as m
from spotwise.core.migration.planning.link_times import Links

#: Weight of the newest move, and of the newest re-shape.
_NEWEST, _NEWEST_FORMING = 0.25, 0.5
#: A link has no bandwidth without a limit.
_LEAST_S = 1e-9
#: Bytes a second at which a device is expected to get the weights that it lacks, until that was measured.
STORAGE_BYTES_PER_S = 1e9


@dataclass(slots=True)
class ChangeCost:
    """What was learned so far.

    Attributes:
        latency_s, token_s: of a move, whatever its tokens, and for each token with KV.
        pause_s: of a request that moves, as measured; 0: none has.
        forming_s: until new groups serve, beside the time in which their weights travel.
        weight_bytes_per_s: at which one device gets weights from another; `storage_bytes_per_s`: from its model folder.
    """

    latency_s: float
    token_s: float
    pause_s: float = 0.0
    forming_s: float = 2.0
    weight_bytes_per_s: float = STORAGE_BYTES_PER_S
    storage_bytes_per_s: float = STORAGE_BYTES_PER_S

    @property
    def links(self) -> Links:
        """The links over which weights travel."""
        return Links(self.weight_bytes_per_s, self.weight_bytes_per_s, self.storage_bytes_per_s)

    def move_s(self, tokens: int) -> float:
        """Return the expected seconds of a move, from its order to its end."""
        return self.latency_s + tokens * self.token_s

    def learn_forming(self, seconds: float, expected_s: float) -> None:
        """Learn from groups that were formed in so many seconds, of which `expected_s` were expected."""
        self.forming_s = max(0.0, self.forming_s + _NEWEST_FORMING * (seconds - expected_s))

    def learn(self, ended: m.MoveEnded) -> None:
        """Learn from a move that was made."""
        if ended.tokens > 0:
            token_s = ended.copy_s / ended.tokens
            self.token_s = max(self.token_s + _NEWEST * (token_s - self.token_s), _LEAST_S)
        if ended.pause_s > 0:
            self.pause_s += (_NEWEST if self.pause_s else 1.0) * (ended.pause_s - self.pause_s)
