"""Where the parts of an answer are written: what a few tokens make on the event loop, more of it in a thread.

An answer grows with its sequences, their tokens and the alternatives of each, and may be there all at once: a prompt's
log-probabilities, or the tokens of a request that goes on elsewhere. So work is counted in *scores*: one for each token, and
one for each of its log-probabilities. Several thousand small parts in a row are as long as a large one: after some of them the
loop has a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from spotwise.core.requests.sampling import SampledToken, TokenLogprobs
from spotwise.gateway.generate.choice import ChoiceText
from spotwise.gateway.generate.generation import GeneratedTokens
from spotwise.http.off_loop import INLINE_BYTES, Effort, OffLoop

Result = TypeVar("Result")

#: Scores that are written on the loop before it has a turn, and in a thread where they are one part: a few milliseconds.
TURN_SCORES = 512
#: Tokens of one part at most: of more, the pieces would fill memory before the first of them is written.
PART_TOKENS = 256
#: Scores that are read or written again, as bytes, in the time of a new one.
_AS_BYTES = 16


class AnswerWork:
    """Does the work of one answer.

    Args:
        off_loop: the gateway's threads and turns.
        owner: whose answer it is.
    """

    def __init__(self, off_loop: OffLoop, owner: str) -> None:
        self._off_loop = off_loop
        self._owner = owner
        self._scores = 0  # since the loop last had a turn

    async def do(self, scores: int, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, which writes so many scores."""
        if scores > TURN_SCORES:
            return await self._off_loop.write(self._owner, work)
        self._scores += scores
        if self._scores <= TURN_SCORES:
            return work()
        self._scores = scores
        return await self._off_loop.run(self._owner, Effort.ON_LOOP, work)

    async def again(self, scores: int, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, which joins so many scores that are written."""
        return await self.do(scores // _AS_BYTES, work)

    async def read(self, size_bytes: int, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, which reads so many bytes of tokens that are kept."""
        return await self.do(size_bytes * TURN_SCORES // INLINE_BYTES, work)


def parts_of(batch: GeneratedTokens) -> Iterator[GeneratedTokens]:
    """Return the same tokens in parts, each of which is work of a bounded time."""
    tokens = batch.tokens
    if len(tokens) <= PART_TOKENS:
        yield batch
        return
    for first in range(0, len(tokens), PART_TOKENS):
        is_last = first + PART_TOKENS >= len(tokens)
        part = GeneratedTokens(tokens[first : first + PART_TOKENS], batch.finish_reason if is_last else None)
        yield part if first else replace(part, cached_tokens=batch.cached_tokens, prefill_s=batch.prefill_s)


def scores_of_batch(batch: GeneratedTokens) -> int:
    """Return how many scores there are in tokens as the mesh gives them."""
    return sum(map(_scores_of_token, batch.tokens))


def scores_of_piece(piece: ChoiceText) -> int:
    """Return how many scores there are in what an answer takes next."""
    scores = len(piece.token_ids)
    if piece.scored:
        scores += len(piece.scored) * _scores_at(piece.scored[-1].logprobs)
    if piece.prompt_logprobs:
        scores += len(piece.prompt_logprobs) * _scores_at(piece.prompt_logprobs[-1])
    return scores


def _scores_of_token(token: SampledToken) -> int:
    scores = 1 + _scores_at(token.logprobs)
    if token.prompt_logprobs:
        scores += len(token.prompt_logprobs) * _scores_at(token.prompt_logprobs[-1])
    return scores


def _scores_at(logprobs: TokenLogprobs | None) -> int:
    return 0 if logprobs is None else 1 + len(logprobs.top_token_ids)
