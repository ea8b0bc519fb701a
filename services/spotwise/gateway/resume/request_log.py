"""A resumable request: its tokens, which come whether a client is connected or not.

Any number of connections reads them, each from the first on. Without one for `resume_s` the request is cancelled. Once all
choices have ended it is kept in the store alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from spotwise.core.gateway.kept_request import KeptEnding
from spotwise.gateway.access.quotas import Reservation
from spotwise.gateway.generate.generation import GeneratedTokens, Generation, SequenceSpec, TextEndedError
from spotwise.gateway.generate.prepared_request import PreparedRequest, PreparedSequence
from spotwise.http.errors import GenerationError, describe
from spotwise.mesh.process.background_work import end_tasks

FINISHED, CANCELLED = KeptEnding("finished"), KeptEnding("cancelled")


class _ChoiceLog:
    def __init__(self) -> None:
        self.items: list[GeneratedTokens] = []
        self.error: Exception | None = None
        self.is_over = False
        self.text_ended = False
        self.news = asyncio.Event()

    def wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class RequestLog:
    """The tokens of one request, for any number of readers.

    Args:
        generation: the mesh.
        prepared: the request.
        resume_s: how long it continues without a reader.
        reservation: what it has taken of its key's limits; it is settled at the end, if no reader has done that before.
        ended: awaited once, when all choices have ended.
    """

    def __init__(
        self,
        generation: Generation,
        prepared: PreparedRequest,
        resume_s: float,
        reservation: Reservation,
        ended: Callable[[KeptEnding], Awaitable[None]],
    ) -> None:
        self._generation = generation
        self._choices = {sequence.choice_id: _ChoiceLog() for sequence in prepared.sequences}
        self._tasks = {
            sequence.choice_id: asyncio.create_task(self._pump(sequence), name=f"pump {sequence.choice_id}")
            for sequence in prepared.sequences
        }
        self._resume_s = resume_s
        self._reservation = reservation
        self._ended = ended
        self._readers = 0
        self._ending: KeptEnding | None = None
        self._expiry = asyncio.get_running_loop().call_later(resume_s, self._expire)
        self.over = asyncio.create_task(self._until_over(), name=f"log {prepared.request_id}")

    async def generate(self, choice_id: str, spec: SequenceSpec) -> AsyncGenerator[GeneratedTokens, None]:
        """Read a choice from its first token; as `Generation.generate`, but closing it cancels nothing."""
        log, position = self._choices[choice_id], 0
        self._readers += 1
        self._expiry.cancel()
        try:
            while True:
                while position < len(log.items):
                    item = log.items[position]
                    position += 1
                    yield item
                    if item.finish_reason is not None:
                        return
                if log.error is not None:
                    raise log.error
                if log.is_over:
                    return
                await log.news.wait()
        except TextEndedError:
            log.text_ended = True
            self._tasks[choice_id].cancel()
            raise
        finally:
            self._readers -= 1
            if not self._readers:
                self._expiry = asyncio.get_running_loop().call_later(self._resume_s, self._expire)

    def cancel(self, ending: KeptEnding = CANCELLED) -> None:
        """End the request where it is."""
        self._ending = self._ending or ending
        for choice_id, task in self._tasks.items():
            if not task.done():
                log = self._choices[choice_id]
                log.error = log.error or cancelled()
                task.cancel()

    def _expire(self) -> None:
        if not self._readers:
            self.cancel()

    async def _pump(self, sequence: PreparedSequence) -> None:
        log = self._choices[sequence.choice_id]
        try:
            async with aclosing(self._generation.generate(sequence.choice_id, sequence.spec)) as items:
                async for item in items:
                    log.items.append(item)
                    log.wake()
        except Exception as error:
            log.error = error
            self._ending = self._ending or ending_of(error)
        finally:
            log.is_over = True
            log.wake()

    def _settle(self) -> None:
        output_tokens = sum(len(item.tokens) for log in self._choices.values() for item in log.items)
        error = next((log.error for log in self._choices.values() if log.error is not None), None)
        self._reservation.settle(output_tokens, error)

    async def _until_over(self) -> None:
        try:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._settle()
            await self._ended(self._ending or FINISHED)
        finally:
            self._expiry.cancel()
            await end_tasks(list(self._tasks.values()))


def cancelled() -> GenerationError:
    """Return the error of a request that a caller has cancelled; what was computed is charged."""
    return GenerationError(409, "cancelled", "This request was cancelled.", is_charged=True)


def ending_of(error: BaseException | None) -> KeptEnding:
    """Return the ending that an error is; none is the good one, and what is no `Exception` a cancellation."""
    if error is None:
        return FINISHED
    if not isinstance(error, Exception):
        return CANCELLED
    described = describe(error, "")
    return KeptEnding("failed", described.status, described.code or "", described.message)
