"""What every `KeyStore` keeps to: the same tests for Redis and for its in-memory twin."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.access.keys import KeyRecord, KeyScope, KeySecret
from spotwise.core.access.quotas import Ask, KeyAdmission, KeyLimit, KeyLimits, KeyReport, Settlement
from spotwise.mesh.ports.keys import KeyRing, KeyStore
from tests.fakes.memory import FakeClock

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


class Calls:
    """The calls of one gateway on one key, in order; `None`: it asks for nothing."""

    def __init__(self, keys: KeyStore, source: str = "g/1", key: str = "acme") -> None:
        self._keys = keys
        self._key = key
        self._source = source
        self.last = 0

    def next(self) -> int:
        """Return the next number."""
        self.last += 1
        return self.last

    def settled(
        self, back: int = 0, day: int = 0, ended: tuple[int, ...] = (), undone: tuple[int, ...] = ()
    ) -> Settlement:
        """Return the next settlement; what is given back was reserved on `day`."""
        return Settlement(self.next(), back, back, day, ended, undone)

    async def use(
        self,
        limits: KeyLimits,
        ask: int | Ask | None = None,
        *settlements: Settlement,
        running: tuple[int, ...] = (),
        floor: int = 0,
    ) -> KeyAdmission:
        """Ask for so many tokens, under the next number."""
        asked = Ask(self.next(), ask) if isinstance(ask, int) else ask
        return await self._keys.use(
            self._key, limits, KeyReport(self._source, self.last, floor, settlements, running), asked
        )


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

    async def test_a_change_that_is_repeated_is_one(self, keys: KeyStore) -> None:
        """A client sends it again where a connection was lost, and may have been executed."""
        assert await keys.put_key(KEY, None)
        revision = await keys.revision()
        assert await keys.put_key(KEY, None)
        changed = replace(KEY, limits=KeyLimits())
        for _ in range(2):
            assert await keys.put_key(changed, KEY)
        assert await keys.revision() > revision

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
        """Whole, from who knows later changes; who knows earlier ones changes nothing."""
        known = KeyRing(41, {"acme": KEY, "zeta": OTHER}, {"acme": 40, "zeta": 41})
        assert await keys.restore(known) == 2
        assert await keys.keys() == known
        assert await keys.restore(known) == 0
        older = KeyRing(40, {"zeta": replace(OTHER, created_unix_s=0.0)}, {"zeta": 39})
        assert await keys.restore(older) == 0
        assert await keys.keys() == known

    async def test_what_was_changed_since_is_not_lost(self, keys: KeyStore) -> None:
        """A key that was made in a store that had forgotten all stays, and takes none of the others' place; a key that was
        deleted stays so, where the store has forgotten that.
        """
        many = {f"t{number}": replace(KEY, name=f"t{number}") for number in range(500)}
        known = KeyRing(900, many, dict.fromkeys(many, 7))
        await keys.put_key(OTHER, None)
        made = await keys.keys()
        assert await keys.restore(known.lost_in(made)) == 500
        held = await keys.keys()
        assert held.keys == dict(sorted({**many, "zeta": OTHER}.items()))
        assert held.revision > made.revision
        gone = KeyRing(held.revision + 9, {}, {"t7": held.revision + 9, "never": held.revision + 8})
        assert list(gone.lost_in(held).changed) == ["t7"]
        assert await keys.restore(gone.lost_in(held)) == 1
        assert set((await keys.keys()).keys) == {*many, "zeta"} - {"t7"}

    async def test_a_key_that_was_made_again_stays(self, keys: KeyStore) -> None:
        """Who knows that its former one was deleted deletes nothing."""
        await keys.put_key(KEY, None)
        await keys.delete_key("acme")
        known = await keys.keys()
        assert list(known.changed) == ["acme"]
        await keys.put_key(KEY, None)
        assert known.lost_in(await keys.keys()) == KeyRing(known.revision)

    async def test_the_last_use_is_the_latest(self, keys: KeyStore) -> None:
        await keys.note_use({})
        await keys.note_use({"acme": 1_700_000_002.5, "zeta": 1.0})
        await keys.note_use({"acme": 1_700_000_001.0, "zeta": 2.0})
        assert await keys.last_use() == {"acme": 1_700_000_002.5, "zeta": 2.0}

    async def test_a_minutes_requests_may_come_at_once(self, keys: KeyStore, clock: FakeClock) -> None:
        """Then one comes as often as the limit says, and the refused ones took nothing."""
        limits, calls = KeyLimits(requests_per_minute=3), Calls(keys)
        for number in range(3):
            admitted = await calls.use(limits, 10**6)
            assert (admitted.refused_by, admitted.used_requests) == (None, number + 1)
        for _ in range(2):
            refused = await calls.use(limits, 1)
            assert (refused.refused_by, refused.retry_after_s) == (KeyLimit.REQUESTS, 20.0)
        assert (await Calls(keys, key="zeta").use(limits, 1)).refused_by is None
        clock.advance(20.0)
        assert (await calls.use(limits, 1)).refused_by is None
        assert (await calls.use(limits, 1)).refused_by is KeyLimit.REQUESTS

    async def test_tokens_are_reserved_and_settled(self, keys: KeyStore, clock: FakeClock) -> None:
        """What was not used is there for the next request; what was used beyond the reservation is owed."""
        limits, calls = KeyLimits(tokens_per_minute=600), Calls(keys)
        assert (await calls.use(limits, 600)).refused_by is None
        refused = await calls.use(limits, 100)
        assert (refused.refused_by, refused.retry_after_s) == (KeyLimit.TOKENS, 10.0)
        assert (await calls.use(limits, 100, calls.settled(500))).used_tokens == 200.0
        owed = await calls.use(limits, None, calls.settled(-1000))
        assert owed.used_tokens == 1200.0
        clock.advance(60.0)
        assert (await calls.use(limits, 1)).refused_by is KeyLimit.TOKENS

    async def test_what_goes_on_is_counted_and_not_refused(self, keys: KeyStore) -> None:
        """By any limit; the next request pays."""
        limits, calls = KeyLimits(1, 600, 600, 1), Calls(keys)
        await calls.use(limits, 600)
        due = await calls.use(limits, Ask(calls.next(), 100, is_due=True))
        assert (due.refused_by, due.used_requests, due.used_tokens, due.used_day_tokens) == (None, 2, 700, 700)
        back = calls.settled(700, due.day, (1,))
        assert (await calls.use(KeyLimits(max_streams=1), 1, back)).refused_by is KeyLimit.STREAMS

    async def test_what_takes_a_place_over_needs_no_other(self, keys: KeyStore) -> None:
        """But has to wait as any other request for what else is full."""
        limits, calls = KeyLimits(requests_per_minute=2, max_streams=1), Calls(keys)
        await calls.use(limits, 1)
        assert (await calls.use(limits, 1)).refused_by is KeyLimit.STREAMS
        assert (await calls.use(limits, Ask(calls.next(), 1, has_place=True))).refused_by is None
        assert (await calls.use(limits, Ask(calls.next(), 1, has_place=True))).refused_by is KeyLimit.REQUESTS

    async def test_a_request_beyond_the_bucket_waits_for_a_full_one(self, keys: KeyStore, clock: FakeClock) -> None:
        limits, calls = KeyLimits(tokens_per_minute=600), Calls(keys)
        await calls.use(limits, 60)
        refused = await calls.use(limits, 1200)
        assert (refused.refused_by, refused.retry_after_s) == (KeyLimit.TOKENS, 6.0)
        clock.advance(6.0)
        assert (await calls.use(limits, 1200)).used_tokens == 1200.0
        assert (await calls.use(limits, 60)).retry_after_s == 66.0

    async def test_a_days_tokens_are_those_of_the_calendar_day(self, keys: KeyStore, clock: FakeClock) -> None:
        """A refusal lasts until midnight (UTC); what is given back counts for the day on which it was reserved."""
        limits, calls = KeyLimits(tokens_per_day=1000), Calls(keys)
        first = await calls.use(limits, 900)
        refused = await calls.use(limits, 200)
        assert refused.refused_by is KeyLimit.DAY
        assert refused.retry_after_s == (first.day + 1) * 86_400 - clock.now()
        assert (await calls.use(limits, 200, calls.settled(400, first.day))).used_day_tokens == 700
        clock.advance(refused.retry_after_s)
        assert (await calls.use(limits, 200, calls.settled(400, first.day))).used_day_tokens == 200

    async def test_requests_in_flight_are_leases(self, keys: KeyStore, clock: FakeClock) -> None:
        """Those that end make room at once, those that are not renewed after their time: a gateway that died holds none."""
        limits, calls = KeyLimits(max_streams=2), Calls(keys)
        for _ in range(2):
            assert (await calls.use(limits, 1)).refused_by is None
        assert (await calls.use(limits, 1)).refused_by is KeyLimit.STREAMS
        assert (await calls.use(limits, 1, calls.settled(ended=(1,)))).refused_by is None
        clock.advance(10.0)
        await calls.use(limits, running=(2,))
        clock.advance(10.0)  # that of the last one is over
        assert (await calls.use(limits, 1)).refused_by is None
        assert (await calls.use(limits, 1)).refused_by is KeyLimit.STREAMS

    async def test_all_limits_admit_a_request_or_it_takes_nothing(self, keys: KeyStore) -> None:
        limits, calls = KeyLimits(requests_per_minute=60, tokens_per_minute=100, max_streams=1), Calls(keys)
        before = await calls.use(limits, 90)
        refused = await calls.use(limits, 90)
        assert (refused.refused_by, refused.used_requests) == (KeyLimit.TOKENS, before.used_requests)
        assert refused.used_tokens == before.used_tokens

    async def test_a_call_that_is_repeated_counts_once(self, keys: KeyStore) -> None:
        """Its request, what it reserved, and what it settled; of two gateways each has its own numbers."""
        limits, calls, other = KeyLimits(10, 10_000, 10_000, 9), Calls(keys), Calls(keys, "g/2")
        day = (await calls.use(limits, 1000)).day
        settlement = calls.settled(900, day, (1,))
        again = Ask(calls.next(), 500)
        for _ in range(3):
            found = await calls.use(limits, again, settlement)
            assert (found.refused_by, found.used_requests) == (None, 2)
            assert (found.used_tokens, found.used_day_tokens) == (600, 600)
        assert (await other.use(limits, 7, other.settled(100, day))).used_day_tokens == 507

    async def test_an_ask_without_an_answer_is_undone(self, keys: KeyStore) -> None:
        """Whether it was executed before, is after that, or never: its tokens are given back at most once."""
        limits, calls = KeyLimits(tokens_per_minute=10_000, tokens_per_day=10_000, max_streams=9), Calls(keys)
        executed, late = Ask(calls.next(), 1000), Ask(calls.next(), 2000)
        await calls.use(limits, executed, floor=1)
        undone = calls.settled(undone=(executed.number, late.number), ended=(executed.number, late.number))
        for _ in range(2):
            assert (await calls.use(limits, None, undone, floor=calls.last)).used_day_tokens == 0
        calls.last = late.number  # what it knew when it asked
        for ask in (late, executed, late):
            found = await calls.use(limits, ask, floor=1)
            assert (found.used_tokens, found.used_day_tokens) == (0, 0)
        assert (await calls.use(KeyLimits(max_streams=1), Ask(9, 1))).refused_by is None  # neither holds a place

    async def test_calls_may_overtake_one_another(self, keys: KeyStore) -> None:
        """A settlement that came with a later call is not applied again; a place that was given up is not renewed."""
        limits, calls = KeyLimits(tokens_per_day=10_000, max_streams=1), Calls(keys)
        day = (await calls.use(limits, 1000)).day
        first = calls.settled(100, day)
        known = calls.last
        second = calls.settled(500, day, (1,))
        assert (await calls.use(limits, None, first, second)).used_day_tokens == 400
        calls.last = known
        assert (await calls.use(limits, None, first, running=(1,))).used_day_tokens == 400
        calls.last = second.number
        assert (await calls.use(limits, 1)).refused_by is None
