"""Key usage behind a network that loses, repeats and delays calls and their answers, and what a gateway counts through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from spotwise.core.access.keys import KeyRecord, KeyScope, KeySecret
from spotwise.core.access.quotas import Ask, KeyAdmission, KeyLimits, KeyReport
from spotwise.gateway.access.auth import Caller
from spotwise.gateway.access.quotas import COUNT_ALONE_S, Quotas, Reservation
from spotwise.mesh.ports.keys import KeyStore
from spotwise.mesh.ports.ports import MeshError
from tests.fakes.memory import FakeClock
from tests.fakes.memory_keys import MemoryKeys

LIMITS = KeyLimits(tokens_per_day=10**9, max_streams=10**6)
CALLER = Caller("acme", KeyRecord("acme", (KeySecret("a" * 64),), (KeyScope.GENERATE,), 0.0, None, LIMITS))


class Fate(Enum):
    """What becomes of a call."""

    ANSWERED = auto()
    TWICE = auto()  #: executed again before its answer comes
    AND_LATER = auto()  #: answered, and executed again later
    UNANSWERED = auto()  #: executed
    LOST = auto()  #: never executed
    LATE = auto()  #: executed later, and not answered
    LEFT = auto()  #: executed, but its caller is cancelled
    LEFT_LATE = auto()  #: executed later, and its caller is cancelled


_EXECUTED = {Fate.ANSWERED: 1, Fate.TWICE: 2, Fate.AND_LATER: 1, Fate.UNANSWERED: 1, Fate.LEFT: 1}
_LATER = {Fate.AND_LATER, Fate.LATE, Fate.LEFT_LATE}
_LEFT = {Fate.LEFT, Fate.LEFT_LATE}
_ANSWERED = {Fate.ANSWERED, Fate.TWICE, Fate.AND_LATER}


class LossyKeys(MemoryKeys):
    """Counts in `keys`; `fate` decides of each call."""

    def __init__(self, keys: KeyStore, clock: FakeClock, fate: Callable[[], Fate]) -> None:
        super().__init__(clock)
        self._keys = keys
        self._fate = fate
        self._late: list[tuple[str, KeyLimits, KeyReport, Ask | None]] = []

    async def use(self, name: str, limits: KeyLimits, report: KeyReport, ask: Ask | None = None) -> KeyAdmission:
        fate, admission = self._fate(), None
        for _ in range(_EXECUTED.get(fate, 0)):
            admission = await self._keys.use(name, limits, report, ask)
        if fate in _LATER:
            self._late.append((name, limits, report, ask))
        if fate in _LEFT:
            raise asyncio.CancelledError
        if fate not in _ANSWERED or admission is None:
            raise MeshError("Redis: gone")
        return admission

    async def execute_late(self, index: int) -> None:
        """Execute one of the calls that are late, if there is one."""
        if self._late:
            await self._keys.use(*self._late.pop(index % len(self._late)))


#: The most tokens of the only choice of a request, which its client has set.
OUTPUTS = ((4000, False),)


@dataclass(frozen=True)
class Step:
    """A request that begins or ends, or a report.

    Attributes:
        kind: `begin`, `end`, `report`, `late` or `wait`.
        number: tokens of a prompt or an answer, or which of the requests or calls.
        fate: of the call.
    """

    kind: str
    number: int
    fate: Fate


async def count(keys: KeyStore, clock: FakeClock, steps: Sequence[Step]) -> tuple[int, int]:
    """Take the steps at one gateway; return what its requests used, and what `keys` have counted in the end."""
    fate, used = Fate.ANSWERED, 0
    lossy = LossyKeys(keys, clock, lambda: fate)
    quotas = Quotas(lossy, clock, "g/1", lambda _: None)
    running: list[tuple[Reservation, int]] = []

    def end(index: int, tokens: int) -> int:
        reservation, prompt_tokens = running.pop(index % len(running))
        reservation.settle(tokens)
        return prompt_tokens + tokens

    for step in steps:
        fate = step.fate
        try:
            if step.kind == "begin":
                running.append((await quotas.reserve(CALLER, step.number, OUTPUTS), step.number))
            elif step.kind == "end" and running:
                used += end(step.number, step.number % 4000)
            elif step.kind == "report":
                await quotas.report(renew=step.number % 2 == 0)
            elif step.kind == "late":
                await lossy.execute_late(step.number)
            else:
                clock.advance(COUNT_ALONE_S)
        except asyncio.CancelledError:
            pass
    fate = Fate.ANSWERED
    clock.advance(COUNT_ALONE_S)
    while running:
        used += end(0, 10)
    for _ in range(2):
        await quotas.report(renew=True)
        while lossy._late:
            await lossy.execute_late(0)
    assert not quotas._books
    counted = await keys.use("acme", LIMITS, KeyReport("reader"))
    one = await keys.use("acme", KeyLimits(max_streams=1), KeyReport("reader", 1), Ask(1, 0))
    assert one.refused_by is None, "a request that is over has a place"
    return used, counted.used_day_tokens
