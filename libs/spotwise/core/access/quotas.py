"""Rate limits and token quotas of a key: what a request may take, and what it gives back.

Law:
- Requests and tokens a minute are token buckets that hold a minute's worth and fill evenly; tokens a day are counted by the
  calendar day (UTC); requests in flight are leases that end by themselves.
- A request is admitted by all limits at once or takes nothing.
- It reserves its prompt and its `max_tokens` and settles with the tokens it used.

A request that reserves more than a bucket holds waits for a full bucket, takes all of it and owes the rest, so that none is
impossible. A request of several sequences can be divided, and is refused.

A resumed answer (another connection or gateway takes it over) counts as a request and reserves the rest of its tokens. It was
admitted once: a full limit lets it continue, and makes the key's next requests wait.

The reservations of a gateway that died stay counted: a bucket forgets them in time, a day at its end, a lease within seconds.

A gateway's call counts once, however often and in whatever order its calls are executed: asks and settlements are numbered. A
call without an answer is undone by its number, whether it was executed, will be, or is lost.
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
        number: counts up with each ask of a gateway; with the gateway's name it names the request's lease.
        tokens: tokens that the request reserves.
        is_due: it was admitted before and continues: it is counted and never refused.
        has_place: it takes the place of a request in flight, whose lease still counts.
    """

    number: int
    tokens: int
    is_due: bool = False
    has_place: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """What ended at a gateway, of one key; applied once.

    Attributes:
        number: counts up with each settlement of a gateway.
        given_back: reserved tokens that were not used; negative where more were used.
        given_back_today: those of them that were reserved on the day `day`.
        day: as `KeyAdmission.day`.
        ended: asks whose leases are over.
        undone: asks that the gateway got no answer to: the tokens that they reserved are given back, if they did.
    """

    number: int
    given_back: int = 0
    given_back_today: int = 0
    day: int = 0
    ended: tuple[int, ...] = ()
    undone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyReport:
    """What a gateway says of a key with each of its calls.

    Attributes:
        source: the gateway's process, `id/incarnation`.
        last: the highest number that the gateway has given by then; a call with a lower one than an earlier call's is late.
        floor: the lowest ask that the gateway waits for; calls with lower ones are late, and count nothing.
        settlements: all that are not known to be applied, in order.
        running: asks whose leases are renewed.
    """

    source: str
    last: int = 0
    floor: int = 0
    settlements: tuple[Settlement, ...] = ()
    running: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (self.settlements or self.running)


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
class SourceUsage:
    """What was counted of one gateway's calls.

    Attributes:
        settled: settlements up to this number are applied.
        floor: asks below this number are answered or undone.
        counted: tokens and day of the asks from there on that were admitted.
    """

    settled: int = 0
    floor: int = 0
    counted: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class KeyUsage:
    """What a key has taken. The same arithmetic as the store's script (`spotwise.mesh.redis.keys`).

    Attributes:
        at_s: when the buckets were last looked at.
        requests, tokens: taken out of the buckets and not yet filled up.
        day, day_tokens: the last day on which it took some, and how many.
        leases: ends of the requests in flight, by the names of their leases.
        sources: the last calls of each gateway, by its name.
    """

    at_s: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0
    day: int = 0
    day_tokens: int = 0
    leases: dict[str, float] = field(default_factory=dict)
    sources: dict[str, SourceUsage] = field(default_factory=dict)

    def use(self, limits: KeyLimits, now_s: float, report: KeyReport, ask: Ask | None = None) -> KeyAdmission:
        """Take in a report, and then what a request asks for, if all limits admit it."""
        self._advance(limits, now_s)
        source = self.sources.setdefault(report.source, SourceUsage())
        self._take_report(limits, now_s, source, report)
        refused_by, wait_s = None, 0.0
        if ask is not None and ask.number >= source.floor:
            if ask.number not in source.counted:
                refused_by, wait_s = (None, 0.0) if ask.is_due else self._longest_wait(limits, now_s, ask)
                if refused_by is None:
                    self._count(limits, ask)
                    source.counted[ask.number] = ask.tokens, self.day
            if refused_by is None and limits.max_streams is not None:
                self.leases[lease_of(report.source, ask.number)] = now_s + STREAM_LEASE_S
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

    def _take_report(self, limits: KeyLimits, now_s: float, source: SourceUsage, report: KeyReport) -> None:
        for settlement in report.settlements:
            if settlement.number <= source.settled:
                continue
            self._give_back(limits, settlement.given_back, settlement.given_back_today, settlement.day)
            for number in settlement.ended:
                self.leases.pop(lease_of(report.source, number), None)
            for number in settlement.undone:
                tokens, day = source.counted.pop(number, (0, 0))
                self._give_back(limits, tokens, tokens, day)
        is_late = report.last < source.settled
        for number in report.running:
            lease = lease_of(report.source, number)
            if limits.max_streams is not None and (lease in self.leases or not is_late):
                self.leases[lease] = now_s + STREAM_LEASE_S
        source.settled, source.floor = max(source.settled, report.last), max(source.floor, report.floor)
        source.counted = {number: each for number, each in source.counted.items() if number >= source.floor}

    def _give_back(self, limits: KeyLimits, tokens: int, today_tokens: int, day: int) -> None:
        if limits.tokens_per_minute is not None:
            self.tokens = max(0.0, self.tokens - tokens)
        if limits.tokens_per_day is not None and day == self.day:
            self.day_tokens = max(0, self.day_tokens - today_tokens)

    def _count(self, limits: KeyLimits, ask: Ask) -> None:
        self.requests += 1 if limits.requests_per_minute is not None else 0
        self.tokens += ask.tokens if limits.tokens_per_minute is not None else 0
        self.day_tokens += ask.tokens if limits.tokens_per_day is not None else 0

    def _longest_wait(self, limits: KeyLimits, now_s: float, ask: Ask) -> tuple[KeyLimit | None, float]:
        waits_s = [
            (_bucket_wait_s(self.requests, 1, limits.requests_per_minute), KeyLimit.REQUESTS),
            (_bucket_wait_s(self.tokens, ask.tokens, limits.tokens_per_minute), KeyLimit.TOKENS),
            (self._day_wait_s(limits, now_s, ask), KeyLimit.DAY),
        ]
        if limits.max_streams is not None and len(self.leases) - ask.has_place >= limits.max_streams:
            waits_s.append((STREAM_RETRY_S, KeyLimit.STREAMS))
        wait_s, limit = max(waits_s, key=lambda wait: wait[0])
        return (limit, wait_s) if wait_s > 0 else (None, 0.0)

    def _day_wait_s(self, limits: KeyLimits, now_s: float, ask: Ask) -> float:
        most = limits.tokens_per_day
        if most is None or self.day_tokens + min(ask.tokens, most) <= most:
            return 0.0
        return (self.day + 1) * DAY_S - now_s


@dataclass(slots=True)
class KeyBook:
    """What a gateway has to report of a key.

    Attributes:
        given_back, given_back_today, day, ended, undone: figures of the next settlement.
        unanswered: settlements that the store may have.
        asking: asks that are under way.
        running: asks whose requests run.
    """

    limits: KeyLimits
    given_back: int = 0
    given_back_today: int = 0
    day: int = 0
    ended: list[int] = field(default_factory=list)
    undone: list[int] = field(default_factory=list)
    unanswered: list[Settlement] = field(default_factory=list)
    asking: dict[int, None] = field(default_factory=dict)
    running: dict[int, None] = field(default_factory=dict)

    def give_back(self, tokens: int, day: int) -> None:
        """Count reserved tokens of a day that were not used; negative where more were used."""
        self.given_back += tokens
        if day > self.day:
            self.day, self.given_back_today = day, 0
        if day == self.day:
            self.given_back_today += tokens

    def settle(self, number: int) -> None:
        """Make a settlement of what has ended."""
        figures = self.given_back, self.given_back_today, self.day
        self.unanswered.append(Settlement(number, *figures, tuple(self.ended), tuple(self.undone)))
        self.given_back = self.given_back_today = 0
        self.ended, self.undone = [], []

    @property
    def has_news(self) -> bool:
        """Whether something has ended since the last settlement."""
        return bool(self.ended or self.undone or self.given_back or self.given_back_today)

    @property
    def floor(self) -> int | None:
        """The first ask that the store has to remember."""
        return min((*self.asking, *self.undone), default=None)

    def answered(self, report: KeyReport) -> None:
        """Forget the settlements of a report that the store has."""
        self.unanswered = [each for each in self.unanswered if each.number > report.last]

    @property
    def is_done(self) -> bool:
        """Whether nothing runs and nothing is to be reported."""
        return not (self.running or self.asking or self.unanswered or self.has_news)


def lease_of(source: str, number: int) -> str:
    """Return the name of the lease of a gateway's ask."""
    return f"{source}/{number}"


def tokens_to_reserve(prompt_tokens: int, outputs: Sequence[tuple[int, bool]]) -> int:
    """Return what a request reserves.

    Args:
        prompt_tokens: tokens of all prompts of the request.
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
