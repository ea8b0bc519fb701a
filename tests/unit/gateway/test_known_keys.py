"""Tests of the keys that a gateway knows: who is let in, how soon changes count, and what a store that is away costs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.core.access.keys import KeyScope, digest_of
from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.access.known_keys import KnownKeys
from spotwise.gateway.access.quotas import Quotas
from spotwise.http.errors import ApiError
from spotwise.mesh.ports.keys import KeyRing
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.redis.keys import record_json
from tests.fakes.memory import FakeClock
from tests.fakes.memory_keys import MemoryKeys
from tests.unit.gateway.apps import Json, MakeApp, connect
from tests.unit.gateway.fake_mesh import CHAT, CHATS
from tests.unit.gateway.limits import bearer, key, secret


class CountingKeys(MemoryKeys):
    """Counts looks; away, it fails."""

    looks = 0
    is_away = False

    async def revision(self) -> int:
        self.looks += 1
        if self.is_away:
            raise MeshError("Redis: gone")
        return await super().revision()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> CountingKeys:
    return CountingKeys(clock)


async def test_a_key_expires_by_the_wall_clock(store: CountingKeys, clock: FakeClock) -> None:
    """Which may have been set since the gateway began, or have gone on while its machine was suspended."""
    keys = KnownKeys((), clock, store)
    await store.put_key(key("acme", 1, expires_unix_s=clock.wall() + 60.0), None)
    await keys.look()
    assert await keys.caller(secret(1)) is not None
    clock.ahead_s = 61.0
    assert await keys.caller(secret(1)) is None


async def test_a_key_that_was_just_made_works_at_once(store: CountingKeys, clock: FakeClock) -> None:
    """And a revoked one no longer than until the next look; its digest is all that is known of it."""
    keys = KnownKeys((), clock, store)
    await keys.look()
    assert keys.requires_key is False
    await store.put_key(key("acme", 1), None)
    clock.advance(1.0)
    found = await keys.caller(secret(1))
    assert found is not None and found.name == "acme"
    assert keys.requires_key is True
    assert secret(1).decode() not in repr(found)
    await store.delete_key("acme")
    await keys.look()
    clock.advance(1.0)
    assert await keys.caller(secret(1)) is None
    assert keys.requires_key is True  # the last key's end opens nothing


async def test_the_first_key_of_all_has_its_limits_at_once(
    make_app: MakeApp, store: CountingKeys, clock: FakeClock
) -> None:
    """An open API looks whose key it is that it does not know; while the store is away, it stays open."""
    keys = KnownKeys((), clock, store)
    await keys.look()
    access = ApiAccess(keys, Quotas(store, clock, "g", lambda _: None))
    headers = bearer(1)
    async with connect(make_app(access=access), **headers) as client:
        store.is_away = True
        clock.advance(1.0)
        assert (await client.get("/v1/models")).status_code == 200
        store.is_away = False
        await keys.look()
        await store.put_key(key("acme", 1, KeyScope.READ), None)
        clock.advance(1.0)
        assert (await client.post(CHATS, json=CHAT)).status_code == 403


async def test_unknown_keys_cost_no_memory_and_few_looks(store: CountingKeys, clock: FakeClock) -> None:
    """However many come at once; what has not a key's form costs none."""
    await store.put_key(key("acme", 1), None)
    keys = KnownKeys((), clock, store)
    await keys.look()
    clock.advance(1.0)
    before = store.looks
    junk = [secret(number) for number in range(2, 250)]
    assert set(await asyncio.gather(*(keys.caller(each) for each in junk))) == {None}
    assert store.looks - before == 1
    for odd in (b"", b"sw-short", b"\xff" * 46, b"x" * 100_000):
        assert await keys.caller(odd) is None
    assert store.looks - before == 1
    assert (await keys.caller(secret(1))) is not None
    assert len(keys._of_store) == 1 and not keys._configured


async def test_while_the_store_is_away_known_keys_work(store: CountingKeys, clock: FakeClock) -> None:
    """For as long as it takes; of an unknown one the client hears that it cannot be checked, at once."""
    await store.put_key(key("acme", 1, expires_unix_s=clock.now() + 1000), None)
    keys = KnownKeys((ApiKey("plain", "env"),), clock, store)
    await keys.look()
    store.is_away = True
    with pytest.raises(MeshError, match="API keys"):
        await keys.look()
    clock.advance(900.0)
    assert (await keys.caller(secret(1))) is not None
    assert (await keys.caller(b"plain")) is not None
    looks = store.looks
    with pytest.raises(ApiError) as refused:
        await keys.caller(secret(2))
    assert (refused.value.status, refused.value.code) == (503, "store_unavailable")
    assert store.looks == looks
    clock.advance(100.0)
    with pytest.raises(ApiError):
        await keys.caller(secret(1))  # expired
    store.is_away = False
    await keys.look()
    assert await keys.caller(secret(1)) is None


async def test_a_key_made_in_a_store_that_forgot_all_takes_no_other_keys_place(
    store: CountingKeys, clock: FakeClock
) -> None:
    """Whatever is made or deleted before a gateway's next look: what it knows comes back, at every gateway."""
    gateways = [KnownKeys((), clock, store) for _ in range(2)]
    for number in range(1, 50):
        await store.put_key(key(f"t{number}", number), None)
    await store.delete_key("t7")
    for each in gateways:
        await each.look()
    clock.advance(10.0)
    store._ring = KeyRing()
    await store.put_key(key("new", 200), None)
    late = KnownKeys((), clock, store)
    await late.look()
    for each in (*gateways, late):
        await each.look()
        clock.advance(1.0)
        for number in (*range(1, 7), *range(8, 50), 200):
            assert await each.caller(secret(number)) is not None, number
        assert await each.caller(secret(7)) is None
    assert len((await store.keys()).keys) == 49


async def test_the_last_changes_before_a_fail_over_stay(store: CountingKeys, clock: FakeClock) -> None:
    """A key of that second is written again, a revoked one does not come back, whatever was made since."""
    await store.put_key(key("acme", 1), None)
    await store.put_key(key("old", 2), None)
    keys, replica = KnownKeys((), clock, store), await store.keys()
    clock.advance(1.0)
    await store.put_key(key("zeta", 3), None)
    await store.delete_key("old")
    await keys.look()
    store._ring = replica
    await store.put_key(key("new", 4), None)
    await keys.look()
    assert list((await store.keys()).keys) == ["acme", "new", "zeta"]


async def test_the_file_is_followed(tmp_path: Path, clock: FakeClock) -> None:
    """A line a key; a changed file counts at the next look, a broken one changes nothing."""
    path = tmp_path / "keys.jsonl"

    def write(text: bytes) -> None:
        draft = tmp_path / "draft"
        draft.write_bytes(text)
        draft.chmod(0o600)
        draft.replace(path)

    write(b"# ours\n\n" + record_json(key("acme", 1)) + b"\n" + record_json(key("zeta", 2)))
    keys = KnownKeys((), clock, None, path)
    keys.read_file()
    assert {found.name for each in (1, 2) if (found := await keys.caller(secret(each)))} == {"acme", "zeta"}
    write(record_json(key("acme", 3)))
    await keys.watch()
    assert await keys.caller(secret(1)) is None and await keys.caller(secret(2)) is None
    for broken in (b"{", record_json(key("a", 1)) * 2, b"\xff", json.dumps({"name": "a"}).encode()):
        write(broken)
        with pytest.raises(ValueError, match=r"keys.jsonl") as wrong:
            keys.read_file()
        assert digest_of(secret(1)) not in str(wrong.value)
        assert (await keys.caller(secret(3))) is not None
    write(b"")
    await keys.watch()
    assert await keys.caller(secret(3)) is None
    assert keys.requires_key is True


@pytest.mark.parametrize("options", [{"is_loopback": True}, {"is_loopback": False, "allow_anonymous": True}])
async def test_a_file_without_keys_opens_nothing(tmp_path: Path, clock: FakeClock, options: Json) -> None:
    """Nor does a start after its last key was taken out: who names a file of keys wants keys."""
    path = tmp_path / "keys.jsonl"
    path.touch(0o600)
    keys = KnownKeys((), clock, None, path, **options)
    keys.read_file()
    assert keys.requires_key is True
    assert KnownKeys((), clock, None, None, **options).requires_key is False


async def test_last_uses_are_reported(store: CountingKeys, clock: FakeClock) -> None:
    """By key, in intervals; those of the file and the environment are not the store's."""
    await store.put_key(key("acme", 1), None)
    keys = KnownKeys((ApiKey("plain", "env"),), clock, store)
    await keys.look()
    for each in (secret(1), b"plain"):
        await keys.caller(each)
    await keys.report_use()
    assert await store.last_use() == {"acme": clock.now()}


@pytest.mark.parametrize(
    ("scopes", "statuses"),
    [
        ((KeyScope.GENERATE,), {"chat": 200, "models": 200, "metrics": 403}),
        ((KeyScope.READ,), {"chat": 403, "models": 200, "metrics": 403}),
        ((KeyScope.METRICS,), {"chat": 403, "models": 403, "metrics": 200}),
        ((), {"chat": 401, "models": 401, "metrics": 401}),
    ],
)
async def test_a_key_reaches_what_its_scopes_name(
    make_app: MakeApp, store: CountingKeys, clock: FakeClock, scopes: tuple[KeyScope, ...], statuses: dict[str, int]
) -> None:
    """And health is open to all; metrics where they are not configured to need a key."""
    record = key("acme", 1, *scopes)
    await store.put_key(record if scopes else replace(record, expires_unix_s=1.0), None)
    keys = KnownKeys((), clock, store)
    await keys.look()
    quotas = Quotas(store, clock, "g", lambda _: None)
    headers = bearer(1)
    access = ApiAccess(keys, quotas, open_paths=frozenset({"/health"}))
    async with connect(make_app(access=access), **headers) as client:
        clock.advance(1.0)
        assert (await client.get("/metrics")).status_code == statuses["metrics"]
        assert (await client.get("/health", headers={"Authorization": ""})).status_code == 200
        assert (await client.get("/v1/models")).status_code == statuses["models"]
        refused = await client.post(CHATS, json=CHAT)
        assert refused.status_code == statuses["chat"]
        if refused.status_code == 403:
            assert refused.json()["error"]["code"] == "insufficient_permissions"
