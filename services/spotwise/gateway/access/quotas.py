"""Rate limits and quotas of API keys, shared by all gateways through the store.

A request asks once, when its prompt's tokens are known, and settles once, at its end. What ended is reported at once, and at
the latest with the key's next request, in the same step: a client that sends one request after the other never stands in its
own way. While the store is away the gateway counts by itself: limits hold for each gateway then, not for all together.

A call without an answer may have been executed, may be later, or is lost. So a settlement goes with every call until one of
them is answered, under a number by which the store applies it once; and an ask without an answer is undone by its number.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from spotwise.core.access.quotas import (
    MINUTE_S,
    STREAM_LEASE_S,
    Ask,
    KeyAdmission,
    KeyBook,
    KeyLimit,
    KeyLimits,
    KeyReport,
    KeyUsage,
    Settlement,
    lease_of,
    tokens_to_reserve,
)
from spotwise.gateway.access.auth import Caller
from spotwise.http.errors import ApiError, GenerationError
from spotwise.mesh.ports.keys import KeyStore
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.clock import Clock

#: How long a request waits for the store's count, before the gateway counts by itself.
COUNT_TIMEOUT_S = 0.5
#: How long it then counts by itself, before it tries the store again.
COUNT_ALONE_S = 1.0
#: Settlements that are sent before one is answered, at most; what ends then waits.
_MOST_UNANSWERED = 64
#: How often the leases of requests that run are renewed.
_RENEW_EVERY_S = STREAM_LEASE_S / 3

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{figure}-{what}" for what in ("requests", "tokens") for figure in ("limit", "remaining", "reset")
)

_log = structlog.get_logger("spotwise.gateway")


class Reservation:
    """What a running request has reserved.

    Args:
        headers: how the key stands, for the answer.
        settle: takes the tokens that were used.
        prompt_tokens: prompt tokens that are computed for it.

    Attributes:
        earlier_tokens: tokens of its answer that were counted where they were computed.
    """

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        settle: Callable[[int], None] | None = None,
        prompt_tokens: int = 0,
        earlier_tokens: int = 0,
    ) -> None:
        self.headers = dict(headers or {})
        self.earlier_tokens = earlier_tokens
        self._settle = settle
        self._prompt_tokens = prompt_tokens

    def settle(self, output_tokens: int, error: BaseException | None = None) -> None:
        """End the request, whose answer has so many tokens, and ended with an error, if with any; only the first call counts.

        A request that the mesh failed before its first token has used nothing.
        """
        is_charged = isinstance(error, GenerationError) and error.is_charged
        if isinstance(error, Exception) and not output_tokens and not is_charged:
            self.cancel()
        else:
            self._end(self._prompt_tokens + max(0, output_tokens - self.earlier_tokens))

    def cancel(self) -> None:
        """Give all back, as `settle` does for a request that never was."""
        self._end(0)

    def _end(self, used_tokens: int) -> None:
        settle, self._settle = self._settle, None
        if settle is not None:
            settle(used_tokens)


@dataclass(frozen=True, slots=True)
class Continued:
    """A request that another connection or gateway had before.

    Attributes:
        earlier_tokens: tokens of its answer that are counted there.
        is_alive: the other gateway counts what it computes; the prompt is computed again because its client wants it so.
        is_first: the request is continued for the first time.
    """

    earlier_tokens: int
    is_alive: bool
    is_first: bool

    @property
    def is_due(self) -> bool:
        """Whether it is never refused. What loses its gateway is not; nor is what may have lost it a moment ago, once."""
        return self.is_first or not self.is_alive


class Quotas:
    """Admits requests by their keys' limits.

    Args:
        store: where all gateways count; None: each by itself.
        clock: time of this gateway's own counts.
        source: this process, for the store.
        count_limited: receives the limit of every refusal.
    """

    def __init__(
        self, store: KeyStore | None, clock: Clock, source: str, count_limited: Callable[[KeyLimit], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._source = source
        self._last = 0
        self._count_limited = count_limited
        self._books: dict[str, KeyBook] = {}
        self._own_counts: dict[str, KeyUsage] = {}
        self._alone_until_s = -math.inf
        self._refused_until_s: dict[str, float] = {}
        self._has_news = asyncio.Event()

    def require_room(self, caller: Caller) -> None:
        """Refuse, before its body is read, a request of a key that a moment ago had too many.

        Raises:
            ApiError: 429.
        """
        until_s, now_s = self._refused_until_s.get(caller.name, 0.0), self._clock.now()
        if caller.limits.requests_per_minute is None or until_s <= now_s:
            self._refused_until_s.pop(caller.name, None)
            return
        limits = KeyLimits(caller.limits.requests_per_minute)
        refused = KeyAdmission(KeyLimit.REQUESTS, until_s - now_s, float(caller.limits.requests_per_minute), 0.0, 0, 0)
        self._refuse(caller, refused, _headers(limits, refused))

    async def reserve(
        self,
        caller: Caller,
        prompt_tokens: int,
        outputs: Sequence[tuple[int, bool]],
        continued: Continued | None = None,
    ) -> Reservation:
        """Admit a request; to be settled at its end.

        Args:
            caller: whose it is.
            prompt_tokens: tokens of its prompts, each counted once.
            outputs: the most tokens of each sequence, and whether its client set no bound.
            continued: where it was counted before.

        Raises:
            ApiError: 429, a limit is full, or one of several sequences that needs more than a minute gives.
        """
        if caller.limits.is_unlimited:
            return Reservation()
        is_alive, earlier_tokens = (True, 0) if continued is None else (continued.is_alive, continued.earlier_tokens)
        prompt_tokens = prompt_tokens if is_alive else 0  # what a dead gateway had reserved stays counted
        tokens = max(prompt_tokens, tokens_to_reserve(prompt_tokens, outputs) - earlier_tokens)
        most = caller.limits.tokens_per_minute
        if continued is None and len(outputs) > 1 and most is not None and tokens > most:
            await self.count_refused(caller)
            raise self._too_large(caller, tokens, most)
        is_due, has_place = (False, False) if continued is None else (continued.is_due, is_alive)
        ask = Ask(self._next_number(), tokens, is_due, has_place)
        book, admission, is_alone = await self._asked(caller, ask)
        headers = _headers(caller.limits, admission)
        if admission.refused_by is not None:
            if continued is None and admission.refused_by is not KeyLimit.REQUESTS:
                await self.count_refused(caller)  # its body was understood, which is work
            self._refuse(caller, admission, headers)
        book.running[ask.number] = None

        def settle(used_tokens: int) -> None:
            book.running.pop(ask.number, None)
            book.ended.append(ask.number)
            # What was reserved from this gateway's own count, the store never counted, or undoes.
            book.give_back((0 if is_alone else ask.tokens) - used_tokens, admission.day)
            if is_alone and (own := self._own_counts.get(caller.name)) is not None:
                back, number = ask.tokens - used_tokens, self._next_number()
                given_back = Settlement(number, back, back, admission.day)
                own.use(caller.limits, self._clock.now(), KeyReport(self._source, number, number, (given_back,)))
            self._has_news.set()

        return Reservation(headers, settle, prompt_tokens, earlier_tokens)

    async def count(self, caller: Caller) -> None:
        """Count a request that the mesh computes nothing for; it takes no tokens and no place among those in flight.

        Raises:
            ApiError: 429, the key has no requests left in this minute.
        """
        if (most := caller.limits.requests_per_minute) is None:
            return
        ask = Ask(self._next_number(), 0)
        book, admission, _ = await self._asked(caller, ask)
        if admission.refused_by is not None:
            excess = admission.used_requests + 1 - most
            if admission.refused_by is KeyLimit.REQUESTS or excess > 0:
                wait_s = excess * MINUTE_S / most
                refused = replace(admission, refused_by=KeyLimit.REQUESTS, retry_after_s=wait_s)
                self._refuse(caller, refused, _headers(caller.limits, refused))
            ask = Ask(self._next_number(), 0, is_due=True)  # it was a limit of something else
            book, _, _ = await self._asked(caller, ask)
        book.ended.append(ask.number)
        self._has_news.set()

    async def count_refused(self, caller: Caller) -> None:
        """Count a request that was refused once its body was read; beyond the limit, later ones are refused before that."""
        with suppress(ApiError):
            await self.count(caller)

    async def run(self) -> None:
        """Report what ended, and renew what runs, for ever."""
        loop = asyncio.get_running_loop()
        renew_at_s = loop.time() + _RENEW_EVERY_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(renew_at_s):
                    await self._has_news.wait()
            self._has_news.clear()
            renews = loop.time() >= renew_at_s
            if renews:
                renew_at_s = loop.time() + _RENEW_EVERY_S
            await self.report(renew=renews)

    async def report(self, *, renew: bool) -> None:
        """Report what ended, of keys that have limits; with `renew` also what runs. What the store does not take waits."""
        if self._is_alone:
            return
        for name, book in list(self._books.items()):
            report = self._report(book, renew=renew)
            if report.is_empty:
                if book.is_done and self._books.get(name) is book:
                    del self._books[name]
                continue
            if await self._ask_store(name, book, report, None) is None:
                return

    def _next_number(self) -> int:
        self._last += 1
        return self._last

    def _report(self, book: KeyBook, *, renew: bool) -> KeyReport:
        if book.has_news and len(book.unanswered) < _MOST_UNANSWERED:
            book.settle(self._next_number())
        running = tuple(book.running) if renew and book.limits.max_streams is not None else ()
        floor = self._last + 1 if book.floor is None else book.floor
        return KeyReport(self._source, self._last, floor, tuple(book.unanswered), running)

    async def _asked(self, caller: Caller, ask: Ask) -> tuple[KeyBook, KeyAdmission, bool]:
        """Return the key's book, the answer to a request, and whether this gateway gave it alone."""
        book = self._books.setdefault(caller.name, KeyBook(caller.limits))
        book.limits = caller.limits
        book.asking[ask.number] = None
        admission = None
        try:
            if not self._is_alone:
                admission = await self._ask_store(caller.name, book, self._report(book, renew=False), ask)
        finally:
            del book.asking[ask.number]
        is_alone = admission is None
        if admission is None:
            admission = self._counted_alone(caller, book, ask)
        else:
            self._own_counts.pop(caller.name, None)
        if admission.refused_by is not None and ask.number in book.undone:
            book.ended.append(ask.number)  # the store may have given it a place
        return book, admission, is_alone

    @property
    def _is_alone(self) -> bool:
        """Whether this gateway counts by itself."""
        return self._clock.now() < self._alone_until_s

    def _counted_alone(self, caller: Caller, book: KeyBook, ask: Ask) -> KeyAdmission:
        own = self._own_counts.setdefault(caller.name, KeyUsage())
        own.leases = dict.fromkeys((lease_of(self._source, number) for number in book.running), math.inf)
        number = self._next_number()
        report = KeyReport(self._source, number, number)
        return own.use(caller.limits, self._clock.now(), report, replace(ask, number=number))

    async def _ask_store(self, name: str, book: KeyBook, report: KeyReport, ask: Ask | None) -> KeyAdmission | None:
        """Return the store's answer; None where it gives none, and this gateway counts alone for a while."""
        if self._store is None:
            self._alone_until_s = math.inf
            return None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                admission = await self._store.use(name, book.limits, report, ask)
        except (MeshError, TimeoutError) as error:
            if ask is not None:
                book.undone.append(ask.number)
            self._alone_until_s = self._clock.now() + COUNT_ALONE_S
            _log.warning("quotas_counted_alone", error=str(error) or "the store is slow")
            return None
        except asyncio.CancelledError:
            if ask is not None:
                book.undone.append(ask.number)
                book.ended.append(ask.number)
            raise
        book.answered(report)
        return admission

    def _too_large(self, caller: Caller, tokens: int, most: int) -> ApiError:
        """Return the refusal of a request that can be divided, for which no wait makes room."""
        self._count_limited(KeyLimit.TOKENS)
        message = (
            f"The request reserves {tokens} tokens, and the key '{caller.name}' has a limit of {most} tokens a minute; "
            "send fewer prompts or choices in a request, or a lower 'max_tokens'."
        )
        return ApiError(429, message, code="request_exceeds_limit", headers={"x-should-retry": "false"})

    def _refuse(self, caller: Caller, admission: KeyAdmission, headers: Mapping[str, str]) -> None:
        limit, wait_s = admission.refused_by, admission.retry_after_s
        assert limit is not None
        self._count_limited(limit)
        retry_after = {"Retry-After": str(max(1, math.ceil(wait_s)))}
        if limit is KeyLimit.DAY:
            message = (
                f"The key '{caller.name}' has used its {caller.limits.tokens_per_day} tokens of this day (UTC); "
                f"it has more in {math.ceil(wait_s)} s."
            )
            # No retry within a client's patience will help.
            given = {**headers, **retry_after, "x-should-retry": "false"}
            raise ApiError(429, message, code="insufficient_quota", headers=given)
        if limit is KeyLimit.REQUESTS:
            self._refused_until_s[caller.name] = self._clock.now() + wait_s
        most, of = {
            KeyLimit.REQUESTS: (caller.limits.requests_per_minute, "requests a minute"),
            KeyLimit.TOKENS: (caller.limits.tokens_per_minute, "tokens a minute"),
            KeyLimit.STREAMS: (caller.limits.max_streams, "requests at the same time"),
        }[limit]
        message = f"The key '{caller.name}' has a limit of {most} {of}; try again in {max(1, math.ceil(wait_s))} s."
        raise ApiError(429, message, code="rate_limit_exceeded", headers={**headers, **retry_after})


def _headers(limits: KeyLimits, admission: KeyAdmission) -> dict[str, str]:
    """Return the headers that OpenAI's clients read, of the limits that the key has."""
    headers: dict[str, str] = {}
    for what, limit, used in (
        ("requests", limits.requests_per_minute, admission.used_requests),
        ("tokens", limits.tokens_per_minute, admission.used_tokens),
    ):
        if limit is not None:
            headers[f"x-ratelimit-limit-{what}"] = str(limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(limit - used)))
            headers[f"x-ratelimit-reset-{what}"] = _duration(used * MINUTE_S / limit)
    return headers


def _duration(seconds: float) -> str:
    """Return a time as OpenAI's API writes it: `6m0s`, `1.5s`, `12ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 10) / 10, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
