"""The response of both endpoints: generates the planned sequences and sends their text, whole or as a stream.

Every generator that is opened here is closed here: at the end of its text, at an error of a sibling, or when the client leaves.
A stream's status line waits for the mesh's first item, so that a full mesh is a 429 or 503 and not a broken stream; from then
on an error is an event, followed by `[DONE]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from spotwise.gateway.choice import Choice, ChoiceText
from spotwise.gateway.errors import describe
from spotwise.gateway.generation import Generation, GenerationError, TextEndedError
from spotwise.gateway.metrics import GatewayMetrics
from spotwise.gateway.plan import GenerationPlan, PlannedSequence
from spotwise.gateway.quotas import Reservation
from spotwise.gateway.response_format import ResponseFormat, Usage, WholeChoice
from spotwise.gateway.sse import DONE, event, interleave, run_while_connected, stream_start
from spotwise.gateway.text import ChatText


class GenerationResponse(Response):
    """The response of both endpoints.

    Args:
        plan: the sequences to generate.
        response_format: the endpoint's.
        generation: the mesh.
        text: tokenizer of the model.
        metrics: the gateway's.
        arrived_s: `time.monotonic()` when the request came.
        reserve: takes what the request needs of its key's limits.
    """

    def __init__(
        self,
        plan: GenerationPlan,
        response_format: ResponseFormat,
        generation: Generation,
        text: ChatText,
        metrics: GatewayMetrics,
        arrived_s: float,
        reserve: Callable[[], Awaitable[Reservation]],
    ) -> None:
        super().__init__()
        self._reserve = reserve
        self._reservation = Reservation()
        self._has_failed = False
        self._plan = plan
        self._format = response_format
        self._generation = generation
        self._metrics = metrics
        self._arrived_s = arrived_s
        with_logprobs = plan.sequences[0].spec.sampling.logprobs is not None
        self._choices = [Choice(text, plan.rules, sequence.prompt, with_logprobs) for sequence in plan.sequences]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification."""
        self._reservation = await self._reserve()
        try:
            self._metrics.count_prompt(self._plan.prompt_tokens)
            work = self._send_stream(send) if self._plan.stream else self._send_whole(scope, receive, send)
            await run_while_connected(receive, work)
        except GenerationError:
            self._has_failed = True
            raise
        finally:
            self._settle()

    def _settle(self) -> None:
        """Give back what was reserved and not used; a request that the mesh failed before its first token used nothing."""
        output_tokens = sum(choice.output_tokens for choice in self._choices)
        prompt_tokens = 0 if self._has_failed and not output_tokens else self._plan.prompt_tokens
        self._reservation.settle(prompt_tokens + output_tokens)

    def _pieces(self) -> Any:
        return aclosing(
            interleave([self._run(*pair) for pair in zip(self._plan.sequences, self._choices, strict=True)])
        )

    async def _run(self, sequence: PlannedSequence, choice: Choice) -> AsyncGenerator[ChoiceText, None]:
        timeline = self._metrics.sequence(self._arrived_s, sequence.spec)
        ended = "error"
        try:
            async with aclosing(self._generation.generate(sequence.choice_id, sequence.spec)) as batches:
                async for batch in batches:
                    piece = choice.advance(batch)
                    if piece.token_ids:
                        timeline.received(len(piece.token_ids), batch.prefill_s)
                    if piece.finish_reason is not None:
                        ended = piece.finish_reason
                        if batch.finish_reason is None:
                            with suppress(TextEndedError):
                                await batches.athrow(TextEndedError())
                        break
                    yield piece
                else:
                    raise GenerationError(500, "generation_failed", "The mesh ended this sequence without a reason.")
        except (GeneratorExit, asyncio.CancelledError):
            ended = "abort"
            raise
        finally:
            timeline.ended(ended)
        yield piece  # the mesh has freed the sequence before the client receives the end

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        choices = [WholeChoice() for _ in self._choices]
        async with self._pieces() as pieces:
            async for index, piece in pieces:
                choices[index].add(piece)
        self._count_requests()
        self._settle()  # before the client receives the end, and may send its next request
        body = self._format.whole(choices, self._usage())
        await Response(body, headers=self._answer_headers(), media_type="application/json")(scope, receive, send)

    async def _send_stream(self, send: Send) -> None:
        async with self._pieces() as pieces:
            index, piece = await anext(pieces)
            await send(stream_start(self._answer_headers()))
            await _send_part(send, self._format.opening())
            try:
                await self._send_piece(send, index, piece)
                async for index, piece in pieces:
                    await self._send_piece(send, index, piece)
            except Exception as error:
                self._has_failed = True
                described = describe(error, self._plan.request_id)
                self._metrics.count_error(described.code or str(described.status))
                await _send_part(send, event(described.body()))
            else:
                self._count_requests()
                if self._plan.include_usage:
                    await _send_part(send, self._format.usage(self._usage()))
        self._settle()
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _send_piece(self, send: Send, index: int, piece: ChoiceText) -> None:
        if not piece.is_silent or (self._plan.return_token_ids and piece.token_ids):
            await send({"type": "http.response.body", "body": self._format.delta(index, piece), "more_body": True})

    def _count_requests(self) -> None:
        """Count what has been answered whole: a request a prompt, with all its choices."""
        output_tokens: dict[int, list[int]] = {}
        for choice in self._choices:
            output_tokens.setdefault(id(choice.prompt), []).append(choice.output_tokens)
        for of_choices in output_tokens.values():
            self._metrics.ended.request_ended(of_choices)

    def _answer_headers(self) -> dict[str, str]:
        return {"X-Request-Id": self._plan.request_id, **self._reservation.headers}

    def _usage(self) -> Usage:
        """Count tokens: a prompt once, however many choices answer it, and as cached what its first choice found cached."""
        first_choices = {id(choice.prompt): choice for choice in reversed(self._choices)}
        prompt_tokens = self._plan.prompt_tokens
        completion_tokens = sum(choice.output_tokens for choice in self._choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in first_choices.values())},
        }


async def _send_part(send: Send, part: bytes) -> None:
    if part:
        await send({"type": "http.response.body", "body": part, "more_body": True})
