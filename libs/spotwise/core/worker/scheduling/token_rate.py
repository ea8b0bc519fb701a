"""Seconds of a token, learned from pieces of work of all lengths.

Law: the rate is all seconds of late over all tokens, so that a piece counts by its tokens; what came `REMEMBERED_TOKENS`
tokens ago counts for a third. It holds up to `tokens`, the length of the pieces where most of the tokens were: a short piece
has the same fixed cost as a long one, and says little of how long a long one takes.
"""

from __future__ import annotations

import math

REMEMBERED_TOKENS = 4096


class TokenRate:
    """The rate of one kind of work on one worker."""

    __slots__ = ("_seconds", "_squares", "_tokens")

    def __init__(self) -> None:
        self._seconds = self._tokens = self._squares = 0.0

    def saw(self, tokens: int, seconds: float) -> None:
        """Learn from a piece of work of so many tokens, one at least."""
        kept = math.exp(-tokens / REMEMBERED_TOKENS)
        self._seconds = kept * self._seconds + seconds
        self._tokens = kept * self._tokens + tokens
        self._squares = kept * self._squares + tokens * tokens

    @property
    def token_s(self) -> float | None:
        """Seconds of a token; `None` before the first piece."""
        return self._seconds / self._tokens if self._tokens else None

    @property
    def tokens(self) -> int | None:
        """Up to how many tokens in one piece that was measured; `None` before the first piece."""
        return max(1, round(self._squares / self._tokens)) if self._tokens else None
