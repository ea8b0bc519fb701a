"""The response of every endpoint that generates: generates the prepared sequences and sends their texts.

Every generator that is opened here is closed here: at the end of its text, at an error of a sibling, or when the client leaves.
A stream's status line waits for the mesh's first item, so that a full mesh is a 429 or 503 and not a broken stream; from then
on an error is an event of the endpoint's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from spotwise.gateway.access.quotas import Reservation
from spotwise.gateway.generate.answer_work import (
    AnswerWork,
    AnswerWriter,
    Usage,
    parts_of,
    scores_of_batch,
    scores_of_piece,
)
from spotwise.gateway.generate.choice import Choice, ChoiceText
from spotwise.gateway.generate.generation import Generate, GeneratedTokens, TextEndedError
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.prepared_request import PreparedRequest, PreparedSequence
from spotwise.gateway.generate.score_limits import ScoreRoom
from spotwise.gateway.generate.stream_position import ChoicePosition, EventStream, StreamPosition
from spotwise.gateway.schema.parameters import WARNING_HEADER, warning_of
from spotwise.http.errors import GenerationError, describe
from spotwise.http.json_text import PartsResponse
from spotwise.http.sse import interleave, run_while_connected
from spotwise.text.chat_text import ChatText


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


@dataclass(frozen=True, slots=True)
class AnswerTerms:
    """How one connection is answered.

    Attributes:
        prepared: the sequences to generate.
        generate: gives their tokens.
        arrived_s: `time.monotonic()` when the request came.
        reservation: what the request has taken of its key's limits; it is settled at the end.
        headers: headers of the response.
        position: what the client has of a stream, which continues after it; events carry no ids where there is none.
        ended: called once with the error that ended the answer, if any; `CancelledError` where the client left.
        explained: says of an error that ends the answer what the client is to know.
        outlives_connection: the request continues where its client leaves, and its reservation with it.
    """

    prepared: PreparedRequest
    generate: Generate
    arrived_s: float
    reservation: Reservation = field(default_factory=Reservation)
    headers: Mapping[str, str] = field(default_factory=dict)
    position: StreamPosition | None = None
    ended: Callable[[BaseException | None], None] | None = None
    explained: Callable[[Exception], Awaitable[Exception]] | None = None
    outlives_connection: bool = False


class GenerationResponse(Response):
    """The response of a prepared request.

    Args:
        terms: what is generated, and for whom.
        answer_writer: the endpoint's.
        text: tokenizer of the model.
        metrics: the gateway's.
        keep: awaited with the body of the whole answer, before the client learns that it is whole; gives whether it is kept,
            and the answer says where not.
        work: where the answer is written.
        room: for its log-probabilities.
        silence_s: after which a stream gets a comment; 0: never.
    """

    def __init__(
        self,
        terms: AnswerTerms,
        answer_writer: AnswerWriter,
        text: ChatText,
        metrics: GatewayMetrics,
        keep: Callable[[bytes], Awaitable[bool]] | None = None,
        *,
        work: AnswerWork,
        room: ScoreRoom,
        silence_s: float,
    ) -> None:
        super().__init__()
        self._terms = terms
        self._prepared = terms.prepared
        self._format = answer_writer
        self._metrics = metrics
        self._keep = keep
        self._work = work
        self._room = room
        self._silence_s = silence_s
        self._answer_headers = {
            "X-Request-Id": terms.prepared.request_id,
            **terms.reservation.headers,
            **terms.headers,
        }
        self._warn(warning_of(terms.prepared.ignored))
        self._error: BaseException | None = None
        self._choices = choices_of(terms.prepared, text)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification."""
        self._metrics.count_prompt(self._prepared.prompt_tokens)
        work = self._send_stream(send) if self._prepared.stream else self._send_whole(scope, receive, send)
        try:
            await run_while_connected(receive, self._watched(work))
        finally:
            if not self._terms.outlives_connection:
                self._settle()
            if self._terms.ended is not None:
                self._terms.ended(self._error)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            with self._room.taken(self._prepared.scope, self._prepared.scores):
                await work
        except Exception as error:
            work.close()  # it may not have had room
            self._error = explained = await self._explanation(error)
            if explained is error:
                raise
            raise explained from error
        except BaseException as error:
            self._error = error
            raise

    async def _explanation(self, error: Exception) -> Exception:
        return error if self._terms.explained is None else await self._terms.explained(error)

    def _settle(self) -> None:
        """Give back what was reserved and not used."""
        self._terms.reservation.settle(sum(choice.output_tokens for choice in self._choices), self._error)

    def _pieces(self) -> Any:
        position = self._terms.position
        had = [None] * len(self._choices) if position is None else [replace(each) for each in position.choices]
        of_choices = zip(self._prepared.sequences, self._choices, had, strict=True)
        return aclosing(interleave([self._run(index, *each) for index, each in enumerate(of_choices)]))

    async def _run(
        self, index: int, sequence: PreparedSequence, choice: Choice, had: ChoicePosition | None
    ) -> AsyncGenerator[ChoiceText, None]:
        timeline, by_token = self._metrics.sequence(self._terms.arrived_s, sequence.spec), self._format.BY_TOKEN
        ended = "error"
        try:
            async with aclosing(self._terms.generate(sequence.choice_id, sequence.spec)) as batches:
                replay = None
                if had is not None and (had.tokens or had.has_end):
                    replay = ReplayedChoice(choice, had, partial(self._format.collect, index), by_token=by_token)
                    yield ChoiceText("")  # opens the stream
                async for batch in batches:
                    for part in parts_of(batch):
                        if replay is not None:
                            following = await self._work.do(scores_of_batch(part), partial(replay.advance, part))
                            if following is None:
                                continue
                            if replay.finish_reason is not None:
                                ended = replay.finish_reason
                                return
                            part, replay = following, None
                        pieces = await self._work.do(
                            scores_of_batch(part), partial(choice.pieces, part, by_token=by_token)
                        )
                        if num_tokens := sum(len(piece.token_ids) for piece in pieces):
                            timeline.received(num_tokens, part.prefill_s)
                        if (reason := pieces[-1].finish_reason) is not None:
                            ended = reason
                            break
                        for piece in pieces:
                            yield piece
                    else:
                        continue
                    if batch.finish_reason is None:
                        with suppress(TextEndedError):
                            await batches.athrow(TextEndedError())
                    break
                else:
                    raise GenerationError(500, "generation_failed", "The mesh ended this sequence without a reason.")
        except (GeneratorExit, asyncio.CancelledError):
            ended = "abort"
            raise
        finally:
            timeline.ended(ended)
        for piece in pieces:  # the mesh has freed the sequence before the client receives the end
            yield piece

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._pieces() as pieces:
            async for index, piece in pieces:
                await self._work.do(scores_of_piece(piece), partial(self._format.collect, index, piece))
        self._count_requests()
        parts = await self._kept()
        self._settle()  # before the client receives the end, and may send its next request
        await PartsResponse(parts, self._answer_headers)(scope, receive, send)

    async def _kept(self) -> list[bytes]:
        """Return the body of the whole answer, once it is kept, or cannot be."""
        parts = await self._whole()
        if self._keep is None or await self._keep(b"".join(parts)):
            return parts
        self._format.not_stored()
        self._warn("not stored")
        return await self._whole()

    async def _whole(self) -> list[bytes]:
        return await self._work.again(self._written_scores(), partial(self._format.whole, self._usage()))

    def _warn(self, of: str) -> None:
        warnings = [self._answer_headers.get(WARNING_HEADER, ""), of]
        if any(warnings):
            self._answer_headers[WARNING_HEADER] = "; ".join(filter(None, warnings))

    async def _send_stream(self, send: Send) -> None:
        stream = EventStream(send, self._terms.position, self._format.KEEP_ALIVE, self._silence_s)
        try:
            async with self._pieces() as pieces:
                index, piece = await anext(pieces)
                await stream.start(self._answer_headers)
                openings = self._format.openings()
                if stream.is_start:
                    await stream.following(openings)
                try:
                    await stream.piece(index, piece, await self._events(index, piece))
                    async for index, piece in pieces:
                        await stream.piece(index, piece, await self._events(index, piece))
                    if self._keep is not None:
                        await self._kept()
                except Exception as error:
                    self._error = explained = await self._explanation(error)
                    described = describe(explained, self._prepared.request_id)
                    self._metrics.count_error(described.code or str(described.status))
                    await stream.failure(await self._repeated(partial(self._format.failure, described)))
                else:
                    self._count_requests()
                    await stream.following(await self._repeated(partial(self._format.endings, self._usage())))
            self._settle()
            await stream.end(self._format.END)
        finally:
            await stream.close()

    async def _events(self, index: int, piece: ChoiceText) -> list[bytes]:
        """Return the events of a piece; the last piece's may have all that came before it."""
        events = partial(self._format.events, index, piece)
        if piece.finish_reason is not None and self._format.REPEATS:
            return await self._repeated(events)
        return await self._work.do(scores_of_piece(piece), events)

    async def _repeated(self, events: Callable[[], list[bytes]]) -> list[bytes]:
        """Return events that may have the whole answer."""
        return await self._work.again(self._written_scores() if self._format.REPEATS else 0, events)

    def _written_scores(self) -> int:
        """Return how many scores were written of all choices, with the prompts that are repeated in them."""
        prepared, logprobs = self._prepared, self._prepared.rules.logprobs
        written = sum(choice.output_tokens for choice in self._choices) * (1 if logprobs is None else 2 + logprobs)
        if prepared.return_token_ids or prepared.sequences[0].prompt.echo is not None:
            written += sum(len(sequence.prompt.token_ids) for sequence in prepared.sequences)
        return written

    def _count_requests(self) -> None:
        """Count what has been answered whole: a request a prompt, with all its choices."""
        output_tokens: dict[int, list[int]] = {}
        for choice in self._choices:
            output_tokens.setdefault(id(choice.prompt), []).append(choice.output_tokens)
        for of_choices in output_tokens.values():
            self._metrics.ended.request_ended(of_choices)

    def _usage(self) -> Usage:
        return usage_of(self._prepared, self._choices)


def choices_of(prepared: PreparedRequest, text: ChatText) -> list[Choice]:
    """Return the choices of a prepared request, before their first tokens."""
    return [Choice(text, prepared.rules, sequence) for sequence in prepared.sequences]


def usage_of(prepared: PreparedRequest, choices: Sequence[Choice]) -> Usage:
    """Count tokens: a prompt once, however many choices answer it, and as cached what its first choice found cached."""
    first_choices = {id(choice.prompt): choice for choice in reversed(choices)}
    completion_tokens = sum(choice.output_tokens for choice in choices)
    return {
        "prompt_tokens": prepared.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prepared.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in first_choices.values())},
    }
