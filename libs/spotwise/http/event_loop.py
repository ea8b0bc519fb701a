"""Work beside the event loop: in bounded threads, in turns for a crowd, and a time-out that a busy loop does not use up.

What takes a millisecond takes seconds for thousands, in which neither a token nor a heartbeat passes: a gateway that is silent
for so long counts as lost.

The loop feeds every stream, so no work that grows with a request's size runs on it, and of small work a few in each iteration.
Running and waiting work is bounded by number, and by owner: callers take turns, whatever one of them brings. Large work and
grammars never block other work. A thread continues when its client leaves, and its owner's turn ends with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from typing import TypeVar

from spotwise.engine.sampling.fair_threads import FairThreads
from spotwise.http.body import overloaded
from spotwise.mesh.process.long_work import LongWorkError, no_long_work

#: Turns in one iteration of the loop.
AT_ONCE = 8


class LoopTurns:
    """Gives turns, first come, first served; of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._given = 0  # in this iteration

    async def turn(self) -> None:
        """Return once it is the caller's turn: at once where this iteration has some left."""
        loop = asyncio.get_running_loop()
        if not self._given:
            loop.call_soon(self._next_iteration, loop)
        if self._given < AT_ONCE:
            self._given += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._given = 0
        while self._waiting and self._given < AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else its client has left
                turn.set_result(None)
                self._given += 1
        if self._given:
            loop.call_soon(self._next_iteration, loop)


#: Iterations of the loop that an operation has after its time: an answer is read and taken in some of them.
ITERATIONS = 20


@asynccontextmanager
async def patience(limit_s: float) -> AsyncIterator[None]:
    """End a block after `limit_s`, but not before the loop has gone round `ITERATIONS` times since; raises `TimeoutError`.

    A loop that takes a second for each iteration has the answers of a quick server lying before it when their time is over.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Handle
    async with asyncio.timeout(None) as scope:

        def go_round(left: int) -> None:
            nonlocal waiting
            if left:
                waiting = loop.call_soon(go_round, left - 1)
            else:
                scope.reschedule(loop.time())

        waiting = loop.call_later(limit_s, go_round, ITERATIONS)
        try:
            yield
        finally:
            waiting.cancel()


Result = TypeVar("Result")

#: Below, work takes a millisecond or two, less trouble than a thread.
INLINE_BYTES = 4096
#: From here on work may take seconds.
LARGE_BYTES = 256 << 10


class Effort(Enum):
    """How long work takes, and so where it is done."""

    #: A millisecond or two.
    ON_LOOP = "on the loop"
    SHORT = "short"
    #: May take seconds, and much memory.
    LARGE = "large"
    #: Long for what it does, as compiling a grammar is; see `long_work.py`.
    GRAMMAR = "grammar"
    #: Reads all tokens that are kept of a request.
    REPLAY = "replay"


def effort_of_size(size_bytes: int) -> Effort:
    """Return the effort of work that grows with what it looks at."""
    if size_bytes <= INLINE_BYTES:
        return Effort.ON_LOOP
    return Effort.SHORT if size_bytes <= LARGE_BYTES else Effort.LARGE


def effort_of_kept(size_bytes: int) -> Effort:
    """Return the effort of reading what is kept of a request."""
    return Effort.ON_LOOP if size_bytes <= INLINE_BYTES else Effort.REPLAY


class OffLoop:
    """Runs functions by their effort: on the loop, or in a few threads for each kind, of which owners have fair shares."""

    def __init__(self) -> None:
        self._turns = LoopTurns()
        self._lanes = {
            Effort.SHORT: FairThreads(3, "plan", max_waiting=1024),
            Effort.LARGE: FairThreads(1, "plan-large", max_waiting=32),
            Effort.GRAMMAR: FairThreads(3, "plan-grammar", max_waiting=1024),
            Effort.REPLAY: FairThreads(2, "replay", max_waiting=128),
        }
        self._answers = FairThreads(2, "answer")

    async def run(self, owner: str, effort: Effort, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, whose turn comes beside those of other owners.

        Work that proves to be long is begun again where it may be.

        Raises:
            ApiError: 503, too much of this owner waits already.
            Exception: what `work` raised.
        """
        try:
            return await self.begin(owner, effort, work)
        except LongWorkError:
            return await self.begin(owner, Effort.GRAMMAR, work)

    async def begin(self, owner: str, effort: Effort, work: Callable[[], Result]) -> Result:
        """Return what `work` returns; raises as `run`, and `LongWorkError`."""
        if effort in (Effort.ON_LOOP, Effort.SHORT):
            work = partial(_shortly, work)
        if effort is Effort.ON_LOOP:
            await self._turns.turn()
            return work()
        lane = self._lanes[effort]
        if not lane.has_room(owner):
            raise overloaded("The server is busy with other requests like this one; try again later.")
        return await asyncio.wrap_future(lane.submit(owner, work))

    async def write(self, owner: str, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, a part of an answer, written in a thread; none is refused, since its tokens are computed.
        What waits is bounded by the sequences that are open.
        """
        return await asyncio.wrap_future(self._answers.submit(owner, work))


def _shortly(work: Callable[[], Result]) -> Result:
    with no_long_work():
        return work()
