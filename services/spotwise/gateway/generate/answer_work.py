"""Schedules the writing of an answer, whole or as a stream: a few tokens on the event loop, many in a thread.

An answer grows with its sequences, their tokens and the alternatives of each, and may be there all at once: a prompt's
log-probabilities, or the tokens of a request that continues here. So work is counted in *scores*: one for each token, and
one for each of its log-probabilities. Several thousand small parts in a row are as long as a large one: after some of them the
loop has a turn.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar, TypeVar

from spotwise.core.requests.sampling import SampledToken, TokenLogprobs
from spotwise.gateway.generate.choice import ChoiceText
from spotwise.gateway.generate.generation import GeneratedTokens
from spotwise.http.errors import ApiError
from spotwise.http.event_loop import INLINE_BYTES, Effort, OffLoop
from spotwise.http.sse import COMMENT, DONE

#: Token counts of an answer, as OpenAI's older endpoints name them.
Usage = dict[str, int | dict[str, int]]


class AnswerWriter(abc.ABC):
    """Takes the pieces of an answer's choices in order, and gives bytes.

    Class attributes:
        BY_TOKEN: it takes single tokens, so that its events and their number follow from the tokens alone.
        END: ends every stream, after its events.
        KEEP_ALIVE: breaks the silence of a stream; no event of the answer.
        REPEATS: its last events have the whole answer once more.
    """

    BY_TOKEN: ClassVar[bool] = False
    END: ClassVar[bytes] = DONE
    KEEP_ALIVE: ClassVar[bytes] = COMMENT
    REPEATS: ClassVar[bool] = False

    @abc.abstractmethod
    def openings(self) -> list[bytes]:
        """Return the events that begin a stream, before there is text."""

    @abc.abstractmethod
    def events(self, index: int, piece: ChoiceText) -> list[bytes]:
        """Return the events of a piece of choice `index`; of several choices at most one each."""

    @abc.abstractmethod
    def endings(self, usage: Usage) -> list[bytes]:
        """Return the events that follow the last piece."""

    @abc.abstractmethod
    def failure(self, error: ApiError) -> list[bytes]:
        """Return the events that end a stream which cannot go on."""

    def not_stored(self) -> None:  # noqa: B027
        """Say, where the answer does, that it is not found again."""

    @abc.abstractmethod
    def collect(self, index: int, piece: ChoiceText) -> None:
        """Take a piece of an answer that is sent whole, or that the client has already."""

    @abc.abstractmethod
    def whole(self, usage: Usage) -> list[bytes]:
        """Return the body of an answer of what was collected, in parts."""


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
