"""Rate limits and token quotas of a key: what a request may take, and what it gives back.

Law:
- Requests and tokens a minute are token buckets that hold a minute's worth and fill evenly; tokens a day are counted by the
  calendar day (UTC); requests in flight are leases that end by themselves.
- A request is admitted by all limits at once or takes nothing.
- It reserves its prompt and its `max_tokens` and settles with what it used. One that reserves more than a bucket holds waits
  for a full one, takes all of it and owes the rest, so that none is impossible.
- What goes on after a break (an answer that another connection or gateway takes over) counts as a request and reserves its
  rest. It was admitted once: a full limit lets it go on, and makes the key's next requests wait.
- What a gateway that died has reserved stays counted: a bucket forgets it in time, a day at its end, a lease within seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MINUTE_S = 60.0
DAY_S = 86_400
#: How long a request's lease of its place lasts, unless its gateway renews it.
STREAM_LEASE_S = 15.0
#: When a request that found no place may find one.
STREAM_RETRY_S = 1.0
#: Output tokens that a request without `max_tokens` reserves: few answers are longer, and it pays for those at its end.
UNBOUNDED_OUTPUT_TOKENS = 1024
#: Tolerance of sums of fractions of requests and tokens.
_ROUNDING = 1e-6


class KeyLimit(StrEnum):
    """What a request was refused by."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    DAY = "day"
    STREAMS = "streams"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a key; None: unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    max_streams: int | None = None

    def __post_init__(self) -> None:
        for limit in (self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day, self.max_streams):
            if limit is not None and not 1 <= limit <= 10**12:
                raise ValueError("a limit is at least 1 and at most 10^12")

    @property
    def is_unlimited(self) -> bool:
        """Whether there is nothing to count."""
        return self == KeyLimits()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants to begin.

    Attributes:
        lease_id: names its place among the key's requests in flight.
        tokens: that it reserves.
        is_due: it was admitted before, and goes on: it is counted and never refused.
    """

    lease_id: str
    tokens: int
    is_due: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a gateway has to report of a key.

    Attributes:
        given_back: reserved tokens that were not used; negative where more were used.
        given_back_today: those of them that were reserved on the day `day`.
        day: as `KeyAdmission.day`.
        ended, running: leases that are over, and that go on.
    """

    given_back: int = 0
    given_back_today: int = 0
    day: int = 0
    ended: tuple[str, ...] = ()
    running: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (self.given_back or self.given_back_today or self.ended or self.running)


@dataclass(frozen=True, slots=True)
class KeyAdmission:
    """The answer to an `Ask`, and where the key stands then.

    Attributes:
        refused_by: the limit that is full for longest; None: admitted.
        retry_after_s: until that limit would admit the same request, if no other came.
        used_requests, used_tokens: in the buckets, of a minute's worth each; tokens may exceed it.
        day: days since 1970, by the clock that counts.
        used_day_tokens: tokens of that day.
    """

    refused_by: KeyLimit | None
    retry_after_s: float
    used_requests: float
    used_tokens: float
    day: int
    used_day_tokens: int


@dataclass(slots=True)
class KeyUsage:
    """What a key has taken. The same arithmetic as the store's script (`spotwise.mesh.redis_keys`).

    Attributes:
        at_s: when the buckets were last looked at.
        requests, tokens: taken out of the buckets and not yet filled up.
        day, day_tokens: the last day on which it took some, and how many.
        leases: ends of the requests in flight, by their ids.
    """

    at_s: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0
    day: int = 0
    day_tokens: int = 0
    leases: dict[str, float] = field(default_factory=dict)

    def use(self, limits: KeyLimits, now_s: float, settlement: Settlement, ask: Ask | None = None) -> KeyAdmission:
        """Take in a settlement, and then what a request asks for, if all limits admit it."""
        self._advance(limits, now_s)
        self._settle(limits, now_s, settlement)
        refused_by, wait_s = (None, 0.0) if ask is None or ask.is_due else self._longest_wait(limits, now_s, ask)
        if ask is not None and refused_by is None:
            self.requests += 1 if limits.requests_per_minute is not None else 0
            self.tokens += ask.tokens if limits.tokens_per_minute is not None else 0
            self.day_tokens += ask.tokens if limits.tokens_per_day is not None else 0
            if limits.max_streams is not None:
                self.leases[ask.lease_id] = now_s + STREAM_LEASE_S
        return KeyAdmission(refused_by, wait_s, self.requests, self.tokens, self.day, self.day_tokens)

    def _advance(self, limits: KeyLimits, now_s: float) -> None:
        minutes = max(0.0, now_s - self.at_s) / MINUTE_S
        self.at_s = max(self.at_s, now_s)
        self.requests = max(0.0, self.requests - minutes * (limits.requests_per_minute or 0))
        self.tokens = max(0.0, self.tokens - minutes * (limits.tokens_per_minute or 0))
        today = int(now_s // DAY_S)
        if today > self.day:
            self.day, self.day_tokens = today, 0
        self.leases = {lease: ends_s for lease, ends_s in self.leases.items() if ends_s > now_s}

    def _settle(self, limits: KeyLimits, now_s: float, settlement: Settlement) -> None:
        if limits.tokens_per_minute is not None:
            self.tokens = max(0.0, self.tokens - settlement.given_back)
        if limits.tokens_per_day is not None and settlement.day == self.day:
            self.day_tokens = max(0, self.day_tokens - settlement.given_back_today)
        for lease in settlement.ended:
            self.leases.pop(lease, None)
        if limits.max_streams is not None:
            for lease in settlement.running:
                self.leases[lease] = now_s + STREAM_LEASE_S

    def _longest_wait(self, limits: KeyLimits, now_s: float, ask: Ask) -> tuple[KeyLimit | None, float]:
        waits_s = [
            (_bucket_wait_s(self.requests, 1, limits.requests_per_minute), KeyLimit.REQUESTS),
            (_bucket_wait_s(self.tokens, ask.tokens, limits.tokens_per_minute), KeyLimit.TOKENS),
            (self._day_wait_s(limits, now_s, ask), KeyLimit.DAY),
        ]
        if limits.max_streams is not None and len(self.leases) >= limits.max_streams:
            waits_s.append((STREAM_RETRY_S, KeyLimit.STREAMS))
        wait_s, limit = max(waits_s, key=lambda wait: wait[0])
        return (limit, wait_s) if wait_s > 0 else (None, 0.0)

    def _day_wait_s(self, limits: KeyLimits, now_s: float, ask: Ask) -> float:
        most = limits.tokens_per_day
        if most is None or self.day_tokens + min(ask.tokens, most) <= most:
            return 0.0
        return (self.day + 1) * DAY_S - now_s


def tokens_to_reserve(prompt_tokens: int, outputs: Sequence[tuple[int, bool]]) -> int:
    """Return what a request reserves.

    Args:
        prompt_tokens: of all its prompts.
        outputs: for each of its choices the most output tokens, and whether the client left that open.
    """
    return prompt_tokens + sum(
        min(most, UNBOUNDED_OUTPUT_TOKENS) if is_unbounded else most for most, is_unbounded in outputs
    )


def _bucket_wait_s(used: float, wanted: int, per_minute: int | None) -> float:
    """Return the seconds until a bucket has room for what is wanted, or is full where that is more than it holds."""
    if per_minute is None:
        return 0.0
    excess = used + min(wanted, per_minute) - per_minute
    return excess * MINUTE_S / per_minute if excess > _ROUNDING else 0.0
