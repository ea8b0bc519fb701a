"""What every `KeyStore` keeps to: the same tests for Redis and for its in-memory twin."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.access.keys import KeyRecord, KeyScope, KeySecret
from spotwise.core.access.quotas import Ask, KeyLimit, KeyLimits, Settlement
from spotwise.mesh.key_ports import KeyRing, KeyStore
from spotwise.mesh.memory import FakeClock

LIMITS = KeyLimits(requests_per_minute=60, tokens_per_minute=6000, tokens_per_day=100_000, max_streams=2)
KEY = KeyRecord(
    "acme",
    (KeySecret("a" * 64), KeySecret("b" * 64, 1_700_000_500.25)),
    (KeyScope.GENERATE, KeyScope.METRICS),
    created_unix_s=1_700_000_000.125,
    expires_unix_s=1_800_000_000.0,
    limits=LIMITS,
)
OTHER = KeyRecord("zeta", (KeySecret("c" * 64),), (KeyScope.READ,), 1.0)
NOTHING = Settlement()


class KeyStoreContract:
    """Subclasses have the fixtures `clock` and `keys`: an empty store that counts by it."""

    async def test_keys_come_back_whole_and_by_name(self, keys: KeyStore) -> None:
        """Every field; each change raises the revision, which is 0 before the first key alone."""
        assert await keys.keys() == KeyRing()
        assert await keys.put_key(OTHER, None)
        first = await keys.revision()
        assert await keys.put_key(KEY, None)
        ring = await keys.keys()
        assert list(ring.keys.items()) == [("acme", KEY), ("zeta", OTHER)]
        assert ring.revision == await keys.revision() > first > 0

    async def test_a_key_is_replaced_only_as_it_was_read(self, keys: KeyStore) -> None:
        """Of two commands that change one key at a time the second is refused, so that no change is lost."""
        assert await keys.put_key(KEY, None)
        changed = replace(KEY, limits=KeyLimits())
        revision = await keys.revision()
        assert not await keys.put_key(changed, None)
        assert not await keys.put_key(changed, OTHER)
        assert await keys.revision() == revision
        assert await keys.put_key(changed, KEY)
        assert (await keys.keys()).keys == {"acme": changed}

    async def test_a_deleted_key_leaves_the_revision(self, keys: KeyStore) -> None:
        """Without any key left, it still shows that there were some."""
        assert not await keys.delete_key("acme")
        await keys.put_key(KEY, None)
        await keys.note_use({"acme": 5.0})
        revision = await keys.revision()
        assert await keys.delete_key("acme")
        assert not await keys.delete_key("acme")
        ring = await keys.keys()
        assert not ring.keys and ring.revision > revision
        assert await keys.last_use() == {}

    async def test_a_store_that_forgot_gets_its_keys_back(self, keys: KeyStore) -> None:
        """Whole, from who knows a later revision; who knows an earlier one changes nothing."""
        known = KeyRing(41, {"acme": KEY, "zeta": OTHER})
        assert await keys.restore(known)
        assert await keys.keys() == known
        assert not await keys.restore(known)
        assert not await keys.restore(KeyRing(40, {}))
        assert await keys.restore(KeyRing(42, {"zeta": OTHER}))
        assert await keys.keys() == KeyRing(42, {"zeta": OTHER})

    async def test_the_last_use_is_the_latest(self, keys: KeyStore) -> None:
        """Whichever gateway reports it last."""
        await keys.note_use({})
        await keys.note_use({"acme": 1_700_000_002.5, "zeta": 1.0})
        await keys.note_use({"acme": 1_700_000_001.0, "zeta": 2.0})
        assert await keys.last_use() == {"acme": 1_700_000_002.5, "zeta": 2.0}

    async def test_a_minutes_requests_may_come_at_once(self, keys: KeyStore, clock: FakeClock) -> None:
        """Then one comes as often as the limit says, and the refused ones took nothing."""
        limits = KeyLimits(requests_per_minute=3)
        for number in range(3):
            admitted = await keys.use("acme", limits, NOTHING, Ask(str(number), 10**6))
            assert (admitted.refused_by, admitted.used_requests) == (None, number + 1)
        for _ in range(2):
            refused = await keys.use("acme", limits, NOTHING, Ask("x", 1))
            assert (refused.refused_by, refused.retry_after_s) == (KeyLimit.REQUESTS, 20.0)
        assert (await keys.use("zeta", limits, NOTHING, Ask("x", 1))).refused_by is None
        clock.advance(20.0)
        assert (await keys.use("acme", limits, NOTHING, Ask("y", 1))).refused_by is None
        assert (await keys.use("acme", limits, NOTHING, Ask("z", 1))).refused_by is KeyLimit.REQUESTS

    async def test_tokens_are_reserved_and_settled(self, keys: KeyStore, clock: FakeClock) -> None:
        """What was not used is there for the next request; what was used beyond the reservation is owed."""
        limits = KeyLimits(tokens_per_minute=600)
        assert (await keys.use("acme", limits, NOTHING, Ask("a", 600))).refused_by is None
        refused = await keys.use("acme", limits, NOTHING, Ask("b", 100))
        assert (refused.refused_by, refused.retry_after_s) == (KeyLimit.TOKENS, 10.0)
        assert (await keys.use("acme", limits, Settlement(given_back=500), Ask("b", 100))).used_tokens == 200.0
        owed = await keys.use("acme", limits, Settlement(given_back=-1000))
        assert owed.used_tokens == 1200.0
        clock.advance(60.0)
        assert (await keys.use("acme", limits, NOTHING, Ask("c", 1))).refused_by is KeyLimit.TOKENS

    async def test_what_goes_on_is_counted_and_not_refused(self, keys: KeyStore) -> None:
        """By any limit; the next request pays."""
        limits = KeyLimits(1, 600, 600, 1)
        await keys.use("acme", limits, NOTHING, Ask("a", 600))
        due = await keys.use("acme", limits, NOTHING, Ask("b", 100, is_due=True))
        assert (due.refused_by, due.used_requests, due.used_tokens, due.used_day_tokens) == (None, 2, 700, 700)
        back = Settlement(given_back=700, given_back_today=700, day=due.day, ended=("a",))
        assert (await keys.use("acme", KeyLimits(max_streams=1), back, Ask("c", 1))).refused_by is KeyLimit.STREAMS

    async def test_a_request_beyond_the_bucket_waits_for_a_full_one(self, keys: KeyStore, clock: FakeClock) -> None:
        """It is admitted, and the next one pays."""
        limits = KeyLimits(tokens_per_minute=600)
        await keys.use("acme", limits, NOTHING, Ask("a", 60))
        refused = await keys.use("acme", limits, NOTHING, Ask("b", 1200))
        assert (refused.refused_by, refused.retry_after_s) == (KeyLimit.TOKENS, 6.0)
        clock.advance(6.0)
        assert (await keys.use("acme", limits, NOTHING, Ask("b", 1200))).used_tokens == 1200.0
        assert (await keys.use("acme", limits, NOTHING, Ask("c", 60))).retry_after_s == 66.0

    async def test_a_days_tokens_are_those_of_the_calendar_day(self, keys: KeyStore, clock: FakeClock) -> None:
        """A refusal lasts until midnight (UTC); what is given back counts for the day on which it was reserved."""
        limits = KeyLimits(tokens_per_day=1000)
        first = await keys.use("acme", limits, NOTHING, Ask("a", 900))
        refused = await keys.use("acme", limits, NOTHING, Ask("b", 200))
        assert refused.refused_by is KeyLimit.DAY
        assert refused.retry_after_s == (first.day + 1) * 86_400 - clock.now()
        back = Settlement(given_back=400, given_back_today=400, day=first.day)
        assert (await keys.use("acme", limits, back, Ask("b", 200))).used_day_tokens == 700
        clock.advance(refused.retry_after_s)
        assert (await keys.use("acme", limits, back, Ask("c", 200))).used_day_tokens == 200

    async def test_requests_in_flight_are_leases(self, keys: KeyStore, clock: FakeClock) -> None:
        """Those that end make room at once, those that are not renewed after their time: a gateway that died holds none."""
        limits = KeyLimits(max_streams=2)
        for lease in ("a", "b"):
            assert (await keys.use("acme", limits, NOTHING, Ask(lease, 1))).refused_by is None
        assert (await keys.use("acme", limits, NOTHING, Ask("c", 1))).refused_by is KeyLimit.STREAMS
        assert (await keys.use("acme", limits, Settlement(ended=("a",)), Ask("c", 1))).refused_by is None
        clock.advance(10.0)
        await keys.use("acme", limits, Settlement(running=("b",)))
        clock.advance(10.0)  # c's is over
        assert (await keys.use("acme", limits, NOTHING, Ask("d", 1))).refused_by is None
        assert (await keys.use("acme", limits, NOTHING, Ask("e", 1))).refused_by is KeyLimit.STREAMS

    async def test_all_limits_admit_a_request_or_it_takes_nothing(self, keys: KeyStore) -> None:
        """The limit that is full for longest is the one that is named."""
        limits = KeyLimits(requests_per_minute=60, tokens_per_minute=100, max_streams=1)
        before = await keys.use("acme", limits, NOTHING, Ask("a", 90))
        refused = await keys.use("acme", limits, NOTHING, Ask("b", 90))
        assert (refused.refused_by, refused.used_requests) == (KeyLimit.TOKENS, before.used_requests)
        assert refused.used_tokens == before.used_tokens
