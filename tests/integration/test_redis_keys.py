"""API keys over a real Redis server: their contract, and the script's arithmetic beside core's."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from spotwise.core.access.quotas import Ask, KeyLimits, KeyReport, KeyUsage, Settlement
from spotwise.mesh.ports.keys import MAX_DELETED, KeyStore
from spotwise.mesh.redis.keys import RedisKeys
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire import subjects
from tests.contracts.key_store import KEY, KeyStoreContract
from tests.fakes.memory import FakeClock

pytestmark = pytest.mark.mesh


class TestRedisKeys(KeyStoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        """On some day at noon."""
        return FakeClock(1_700_000_000.0 // 86_400 * 86_400 + 43_200)

    @pytest.fixture
    def keys(self, store: RedisStore, clock: FakeClock) -> KeyStore:
        return RedisKeys(store._redis, store._turn, clock)

    async def test_usage_does_not_stay_for_ever(self, keys: KeyStore, store: RedisStore, redis_url: str) -> None:
        """Of a key that is not used any more nothing is counted; the keys themselves stay."""
        await keys.put_key(KEY, None)
        await keys.use(KEY.name, KEY.limits, KeyReport("g/1"), Ask(1, 1))
        async with Redis.from_url(redis_url) as redis:
            assert await redis.ttl(subjects.key_usage_key(KEY.name)) > 0
            assert await redis.ttl(subjects.key_streams_key(KEY.name)) > 0
            assert await redis.ttl(subjects.key_usage_of(KEY.name, "g/1")) > 0
            assert await redis.ttl(subjects.KEYS_KEY) == -1

    async def test_few_deleted_keys_are_remembered(self, keys: KeyStore, redis_url: str) -> None:
        """The latest, so that the store does not grow with each that is made and deleted."""
        async with Redis.from_url(redis_url) as redis:
            earlier: Any = {f"t{number}": str(number) for number in range(MAX_DELETED)}
            await redis.hset(subjects.KEYS_CHANGED_KEY, mapping=earlier)
            await keys.put_key(KEY, None)
            await keys.delete_key(KEY.name)
            held = await keys.keys()
            assert len(held.changed) == MAX_DELETED // 2 + 1
            assert KEY.name in held.changed and f"t{MAX_DELETED - 1}" in held.changed and "t1" not in held.changed

    async def test_the_server_counts_by_its_own_clock(self, store: RedisStore) -> None:
        """So that gateways whose clocks differ share one limit."""
        limits = KeyLimits(requests_per_minute=1, tokens_per_day=5)
        assert (await store.keys.use("a", limits, KeyReport("g/1"), Ask(1, 1))).refused_by is None
        refused = await store.keys.use("a", limits, KeyReport("g/1"), Ask(2, 1))
        assert refused.refused_by is not None and 0 < refused.retry_after_s <= 60

    @pytest.mark.parametrize("seed", range(6))
    async def test_the_script_and_core_count_alike(self, keys: KeyStore, clock: FakeClock, seed: int) -> None:
        """Over random reports of two gateways, late and repeated ones among them, requests, changes of limits and pauses, to
        the last digit but rounding.
        """
        rng, usage = random.Random(seed), KeyUsage()

        def some(most: int) -> int | None:
            return rng.choice((None, rng.randint(1, most)))

        def numbers_below(last: int, most: int = 3) -> tuple[int, ...]:
            return tuple(rng.randint(max(1, last - 20), last) for _ in range(rng.randint(0, most)))

        limits = KeyLimits(some(9), some(3000), some(20_000), some(4))
        calls: list[tuple[KeyReport, Ask | None]] = []
        last = 0
        for _ in range(300):
            clock.advance(rng.choice((0.0, 0.001, rng.random() * 10, rng.random() * 4000 * (rng.random() < 0.1))))
            if rng.random() < 0.05:
                limits = replace(limits, tokens_per_minute=some(3000), max_streams=some(4))
            if calls and rng.random() < 0.3:
                report, ask = rng.choice(calls[-10:])
            else:
                last += rng.randint(1, 3)
                settlements = tuple(
                    Settlement(
                        number,
                        rng.randint(-500, 800),
                        rng.randint(-500, 800),
                        usage.day - rng.randint(0, 1),
                        numbers_below(last),
                        numbers_below(last),
                    )
                    for number in sorted(set(numbers_below(last)))
                )
                report = KeyReport(
                    rng.choice(("g/1", "h/2")),
                    last,
                    max(0, last - rng.randint(-1, 12)),
                    settlements,
                    numbers_below(last),
                )
                kinds = rng.random() < 0.2, rng.random() < 0.2
                ask = Ask(last, rng.randint(1, 4000), *kinds) if rng.random() < 0.7 else None
                calls.append((report, ask))
            expected = usage.use(limits, clock.now(), report, ask)
            found = await keys.use("acme", limits, report, ask)
            assert (found.refused_by, found.day) == (expected.refused_by, expected.day)
            assert numbers(found) == pytest.approx(numbers(expected), abs=1e-6)


def numbers(admission: object) -> list[float]:
    names: Iterable[str] = ("retry_after_s", "used_requests", "used_tokens", "used_day_tokens")
    return [float(getattr(admission, name)) for name in names]
