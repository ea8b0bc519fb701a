"""The part of a choice that its client has already: computed again from the same tokens, and not sent again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spotwise.gateway.generate.choice import Choice, ChoiceText
from spotwise.gateway.generate.generation import GeneratedTokens
from spotwise.gateway.generate.stream_position import ChoicePosition
from spotwise.http.errors import GenerationError


class ReplayedChoice:
    """Brings a new choice to the position of its client.

    Args:
        choice: the new one.
        had: how much of it the client has.
        take: called with each piece that the client has.
        by_token: pieces are of single tokens.

    Attributes:
        finish_reason: once the choice is over.
    """

    def __init__(
        self, choice: Choice, had: ChoicePosition, take: Callable[[ChoiceText], None], *, by_token: bool
    ) -> None:
        self._choice = choice
        self._had = had
        self._take = take
        self._by_token = by_token
        self._replayed = ChoicePosition()
        self.finish_reason: str | None = None

    def advance(self, batch: GeneratedTokens) -> GeneratedTokens | None:
        """Take tokens; return those that the client does not have, and `None` while it has them all.

        Raises:
            GenerationError: the tokens are not those that the client was sent.
        """
        lacking = self._had.tokens - self._replayed.tokens
        following: GeneratedTokens | None = None
        if not self._had.has_end and (len(batch.tokens) > lacking or batch.finish_reason is not None):
            following = replace(batch, tokens=batch.tokens[lacking:])
            batch = replace(batch, tokens=batch.tokens[:lacking], finish_reason=None)
        for piece in self._choice.pieces(batch, by_token=self._by_token):
            self._take(piece)
            self.finish_reason = piece.finish_reason
            self._replayed.add(piece.token_ids, is_end=piece.finish_reason is not None)
        if self._replayed.has_end:
            following = GeneratedTokens(())
        if following is None:
            return None
        if self._replayed != self._had:
            raise GenerationError(
                409, "diverged", "The tokens computed now are not those that you received; send the request anew."
            )
        return following
