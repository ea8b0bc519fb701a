"""Seconds of a move, learned from moves that ended."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core import messages as m

#: Weight of the newest move.
_NEWEST = 0.25
#: A link has no bandwidth without a limit.
_LEAST_S = 1e-9


@dataclass(slots=True)
class MoveCost:
    """A fixed part, and seconds for each token with KV."""

    latency_s: float
    token_s: float
    pause_s: float = 0.0  #: of a request that moves, as measured; 0: none has

    def move_s(self, tokens: int) -> float:
        """Return the expected seconds of a move, from its order to its end."""
        return self.latency_s + tokens * self.token_s

    def learn(self, ended: m.MoveEnded) -> None:
        """Learn from a move that was made."""
        if ended.tokens > 0:
            token_s = ended.copy_s / ended.tokens
            self.token_s = max(self.token_s + _NEWEST * (token_s - self.token_s), _LEAST_S)
        if ended.pause_s > 0:
            self.pause_s += (_NEWEST if self.pause_s else 1.0) * (ended.pause_s - self.pause_s)
