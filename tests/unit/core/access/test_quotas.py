"""Laws of rate limits and quotas, under any order of requests, settlements and pauses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.access.quotas import (
    DAY_S,
    STREAM_LEASE_S,
    UNBOUNDED_OUTPUT_TOKENS,
    Ask,
    KeyLimit,
    KeyLimits,
    KeyReport,
    KeyUsage,
    Settlement,
    tokens_to_reserve,
)

NOTHING = KeyReport("g")
Arrivals = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 500)), min_size=1, max_size=60)


@given(Arrivals, st.integers(1, 20), st.integers(1, 1000))
def test_no_minute_admits_more_than_two_minutes_worth(
    arrivals: list[tuple[float, int]], requests: int, tokens: int
) -> None:
    """A full bucket and its filling; a request larger than the bucket counts whole."""
    limits, usage = KeyLimits(requests_per_minute=requests, tokens_per_minute=tokens), KeyUsage()
    now_s, admitted = 1e6, []
    for number, (pause_s, wanted) in enumerate(arrivals):
        now_s += pause_s
        if usage.use(limits, now_s, NOTHING, Ask(number, wanted)).refused_by is None:
            admitted.append((now_s, wanted))
    for index, (start_s, _) in enumerate(admitted):
        for end_s, _ in admitted[index:]:
            within = [wanted for at_s, wanted in admitted if start_s <= at_s <= end_s]
            minutes = (end_s - start_s) / 60
            assert len(within) <= requests * (1 + minutes) + 1e-3
            # The last one may be larger than what is left for it.
            assert sum(within[:-1]) + min(within[-1], tokens) <= tokens * (1 + minutes) + 1e-3


@given(Arrivals, st.integers(1, 20), st.integers(1, 1000), st.integers(1, 3000))
def test_after_retry_after_the_same_request_is_admitted(
    arrivals: list[tuple[float, int]], requests: int, tokens: int, per_day: int
) -> None:
    """If no other came; and not before."""
    limits = KeyLimits(requests_per_minute=requests, tokens_per_minute=tokens, tokens_per_day=per_day)
    usage, now_s = KeyUsage(), 1e6
    for number, (pause_s, wanted) in enumerate(arrivals):
        now_s += pause_s
        ask = Ask(number, wanted)
        refused = usage.use(limits, now_s, NOTHING, ask)
        if refused.refused_by is not None:
            assert refused.retry_after_s > 0
            if refused.retry_after_s > 0.01:
                assert usage.use(limits, now_s + refused.retry_after_s * 0.99, NOTHING, ask).refused_by is not None
            now_s += refused.retry_after_s
            assert usage.use(limits, now_s + 1e-6, NOTHING, ask).refused_by is None


@given(Arrivals, st.integers(1, 5000))
def test_a_days_tokens_are_never_exceeded_by_reservations(arrivals: list[tuple[float, int]], per_day: int) -> None:
    """But by one request that alone reserves more than a day has; the next day begins at nothing."""
    limits, usage = KeyLimits(tokens_per_day=per_day), KeyUsage()
    now_s = 1e6
    by_day: dict[int, list[int]] = {}
    for number, (pause_s, wanted) in enumerate(arrivals):
        now_s += pause_s * 1000
        admission = usage.use(limits, now_s, NOTHING, Ask(number, wanted))
        if admission.refused_by is None:
            by_day.setdefault(int(now_s // DAY_S), []).append(min(wanted, per_day))
        else:
            assert admission.refused_by is KeyLimit.DAY
            assert admission.retry_after_s == (now_s // DAY_S + 1) * DAY_S - now_s
    assert all(sum(taken) <= per_day for taken in by_day.values())


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), min_size=1, max_size=40))
def test_what_is_settled_is_what_was_used(requests: list[tuple[int, int]]) -> None:
    """However much was reserved: afterwards exactly the used tokens count, a minute's and a day's."""
    limits, usage = KeyLimits(tokens_per_minute=10**6, tokens_per_day=10**6), KeyUsage()
    used_tokens = 0
    for number, (reserved, used) in enumerate(requests, 1):
        day = usage.use(limits, 1e6, NOTHING, Ask(number, reserved)).day
        back = reserved - used
        usage.use(limits, 1e6, KeyReport("g", number, settlements=(Settlement(number, back, back, day),)))
        used_tokens += used
    assert (usage.tokens, usage.day_tokens) == (used_tokens, used_tokens)


@given(st.lists(st.tuples(st.floats(0, 8), st.booleans(), st.booleans()), max_size=60), st.integers(1, 4))
def test_requests_in_flight_stay_within_their_limit(steps: list[tuple[float, bool, bool]], most: int) -> None:
    """Whichever end, die or are renewed; a lease that is not renewed is free after its time."""
    limits, usage = KeyLimits(max_streams=most), KeyUsage()
    now_s = 1e6
    renewed_s: dict[int, float] = {}
    for number, (pause_s, ends, dies) in enumerate(steps, 1):
        now_s += pause_s
        alive = {lease: at_s for lease, at_s in renewed_s.items() if now_s - at_s < STREAM_LEASE_S}
        ended = (next(iter(alive)),) if alive and ends else ()
        settlement = Settlement(number, ended=ended)
        admission = usage.use(limits, now_s, KeyReport("g", number, settlements=(settlement,)), Ask(number, 1))
        alive = {lease: at_s for lease, at_s in alive.items() if lease not in ended}
        assert (admission.refused_by is None) == (len(alive) < most)
        if admission.refused_by is None:
            alive[number] = now_s
        if not dies:
            usage.use(limits, now_s, KeyReport("g", number, running=tuple(alive)))
            alive = dict.fromkeys(alive, now_s)
        renewed_s = alive
        assert len(usage.leases) <= most


def test_without_limits_nothing_is_refused_or_kept() -> None:
    """Nor does what was counted before a limit was taken away."""
    usage = KeyUsage()
    limits = KeyLimits()
    assert limits.is_unlimited and not KeyLimits(max_streams=1).is_unlimited
    for number in range(100):
        admission = usage.use(limits, 1e6, NOTHING, Ask(number, 10**9))
        assert (admission.refused_by, admission.used_requests, admission.used_tokens) == (None, 0.0, 0.0)
    assert not usage.leases


def test_a_clock_that_goes_back_gives_nothing_back() -> None:
    """Nor takes."""
    limits, usage = KeyLimits(requests_per_minute=2), KeyUsage()
    usage.use(limits, 1000.0, NOTHING, Ask(1, 1))
    assert usage.use(limits, 900.0, NOTHING, Ask(2, 1)).used_requests == 2.0
    assert usage.use(limits, 1030.0, NOTHING).used_requests == 1.0


def test_what_is_given_back_of_yesterday_is_not_of_today() -> None:
    """A request that ends after midnight leaves the new day's tokens as they are."""
    limits, usage = KeyLimits(tokens_per_day=1000), KeyUsage()
    yesterday = usage.use(limits, 10 * DAY_S - 1.0, NOTHING, Ask(1, 100)).day
    usage.use(limits, 10 * DAY_S + 1.0, NOTHING, Ask(2, 50))
    settled = Settlement(1, given_back=80, given_back_today=80, day=yesterday)
    assert usage.use(limits, 10 * DAY_S + 2.0, KeyReport("g", 1, settlements=(settled,))).used_day_tokens == 50


def test_a_request_without_max_tokens_reserves_what_answers_usually_take() -> None:
    """Not the rest of the context; where the client named a bound, that."""
    assert tokens_to_reserve(10, [(8000, True), (8000, False), (5, True)]) == 10 + UNBOUNDED_OUTPUT_TOKENS + 8000 + 5


def test_an_empty_report_says_so() -> None:
    assert NOTHING.is_empty
    assert not KeyReport("g", settlements=(Settlement(1),)).is_empty
    assert not KeyReport("g", running=(1,)).is_empty


def test_of_what_is_answered_nothing_is_remembered() -> None:
    """Of a gateway's asks those that it still waits for; so that its record stays small."""
    limits, usage = KeyLimits(tokens_per_day=10**6), KeyUsage()
    for number in range(1, 100):
        usage.use(limits, 1e6, KeyReport("g", number, max(1, number - 2)), Ask(number, 5))
    assert list(usage.sources["g"].counted) == [97, 98, 99]
