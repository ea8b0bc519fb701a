"""The tokens of a resumable request, which come whether a connection reads them or not. Any number of connections reads them,
each from the first on. Once all choices have ended the tokens are kept in the store alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from spotwise.gateway.generate.generation import Generate, GeneratedTokens, SequenceSpec, TextEndedError
from spotwise.gateway.generate.prepared_request import PreparedSequence
from spotwise.http.errors import GenerationError
from spotwise.mesh.process.background_work import end_tasks


@dataclass(slots=True)
class _ChoiceLog:
    items: list[GeneratedTokens] = field(default_factory=list)
    error: Exception | None = None
    is_over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class RequestLog:
    """The tokens of one request, for any number of readers.

    Args:
        generate: gives them.
        sequences: the request's choices.
        joined, left: called where a reader of a choice begins, and where it ends.
        ended: called once, when all choices have ended, with the number of their tokens and the first error, if any.
    """

    def __init__(
        self,
        generate: Generate,
        sequences: Sequence[PreparedSequence],
        joined: Callable[[], None],
        left: Callable[[], None],
        ended: Callable[[int, Exception | None], None],
    ) -> None:
        self._generate = generate
        self._choices = {each.choice_id: _ChoiceLog() for each in sequences}
        self._tasks = {
            each.choice_id: asyncio.create_task(self._pump(each), name=f"pump {each.choice_id}") for each in sequences
        }
        self._joined = joined
        self._left = left
        self._ended = ended
        self._error: Exception | None = None
        self._until_over = asyncio.create_task(self._wait_until_over(), name=f"log {sequences[0].choice_id}")

    async def generate(self, choice_id: str, spec: SequenceSpec) -> AsyncGenerator[GeneratedTokens, None]:
        """Read a choice from its first token; as `Generation.generate`, but closing it cancels nothing."""
        log, position = self._choices[choice_id], 0
        self._joined()
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
            self._tasks[choice_id].cancel()
            raise
        finally:
            self._left()

    def cancel(self) -> None:
        """End the choices that have not ended."""
        for choice_id, task in self._tasks.items():
            if not task.done():
                log = self._choices[choice_id]
                log.error = log.error or cancelled()
                self._error = self._error or log.error
                task.cancel()

    async def _pump(self, sequence: PreparedSequence) -> None:
        log = self._choices[sequence.choice_id]
        try:
            async with aclosing(self._generate(sequence.choice_id, sequence.spec)) as items:
                async for item in items:
                    log.items.append(item)
                    log.wake()
        except Exception as error:
            log.error = error
            self._error = self._error or error
        finally:
            log.is_over = True
            log.wake()

    async def _wait_until_over(self) -> None:
        try:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            output_tokens = sum(len(item.tokens) for log in self._choices.values() for item in log.items)
            self._ended(output_tokens, self._error)
        finally:
            await end_tasks(list(self._tasks.values()))


def cancelled() -> GenerationError:
    """Return the error of a request that a caller has cancelled; what was computed is charged."""
    return GenerationError(409, "cancelled", "This request was cancelled.", is_charged=True)
