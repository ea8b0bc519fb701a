"""API keys and their usage in Redis.

All keys are fields of one hash, with a revision that every change raises: a gateway reads the revision each second, and the
keys after a change. Usage is counted by a script in the server, with the server's clock: gateways need not agree on the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from redis.asyncio import Redis

from spotwise.core.access.keys import KeyRecord
from spotwise.core.access.quotas import (
    DAY_S,
    MINUTE_S,
    STREAM_LEASE_S,
    STREAM_RETRY_S,
    Ask,
    KeyAdmission,
    KeyLimit,
    KeyLimits,
    Settlement,
)
from spotwise.mesh.clock import Clock
from spotwise.mesh.json_types import reader_of
from spotwise.mesh.key_ports import KeyRing
from spotwise.wire import subjects

#: After that a key that is not used has nothing left to count.
USAGE_TTL_S = 2 * DAY_S

# KEYS: keys, revision; ARGV: name, the record that must be there ('' for none), the new one ('' for none), least revision. The
# least revision is the wall clock's, so that those of a store that has forgotten all are higher, too.
_CHANGE = """
local held = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if held ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
redis.call('SET', KEYS[2], string.format('%.0f', math.max(last + 1, tonumber(ARGV[4]))))
return 1
"""

# KEYS: keys, revision; ARGV: revision, then names and records in turn.
_RESTORE = """
if tonumber(redis.call('GET', KEYS[2]) or '0') >= tonumber(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('SET', KEYS[2], ARGV[1])
return 1
"""

# KEYS: last use; ARGV: names and Unix seconds in turn.
_NOTE_USE = """
for i = 1, #ARGV, 2 do
  local known = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  if tonumber(ARGV[i + 1]) > known then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
return 0
"""

# The arithmetic of `spotwise.core.access.quotas.KeyUsage`; a test compares the two. KEYS: usage, leases. ARGV: now ('' for the
# server's clock), the four limits ('' for none), given back, given back today, its day, number of leases that ended, number
# that go on, then those leases, then where a request asks: its lease, its tokens, whether it is due.
_USE = f"""
local function number(text) if text == '' then return nil end return tonumber(text) end
local now = number(ARGV[1])
if not now then local time = redis.call('TIME'); now = tonumber(time[1]) + tonumber(time[2]) / 1e6 end
local per_minute, tokens_per_minute = number(ARGV[2]), number(ARGV[3])
local per_day, most_streams = number(ARGV[4]), number(ARGV[5])
local held = redis.call('HMGET', KEYS[1], 'at_s', 'requests', 'tokens', 'day', 'day_tokens')
local at = tonumber(held[1] or '0')
local requests, tokens = tonumber(held[2] or '0'), tonumber(held[3] or '0')
local day, day_tokens = tonumber(held[4] or '0'), tonumber(held[5] or '0')

local minutes = math.max(0, now - at) / {MINUTE_S}
at = math.max(at, now)
requests = math.max(0, requests - minutes * (per_minute or 0))
tokens = math.max(0, tokens - minutes * (tokens_per_minute or 0))
local today = math.floor(now / {DAY_S})
if today > day then day = today; day_tokens = 0 end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.17g', now))

if tokens_per_minute then tokens = math.max(0, tokens - tonumber(ARGV[6])) end
if per_day and tonumber(ARGV[8]) == day then day_tokens = math.max(0, day_tokens - tonumber(ARGV[7])) end
local ended, running, at_arg = tonumber(ARGV[9]), tonumber(ARGV[10]), 11
local lease_end = string.format('%.17g', now + {STREAM_LEASE_S})
for _ = 1, ended do redis.call('ZREM', KEYS[2], ARGV[at_arg]); at_arg = at_arg + 1 end
for _ = 1, running do
  if most_streams then redis.call('ZADD', KEYS[2], lease_end, ARGV[at_arg]) end
  at_arg = at_arg + 1
end

local wait, refused = 0, ''
local function refuse(by, seconds) if seconds > wait then wait = seconds; refused = by end end
local function bucket_wait(used, wanted, most)
  if not most then return 0 end
  local excess = used + math.min(wanted, most) - most
  if excess > 1e-6 then return excess * {MINUTE_S} / most end
  return 0
end
local lease, asked = ARGV[at_arg], tonumber(ARGV[at_arg + 1] or '0')
if lease and ARGV[at_arg + 2] ~= '1' then
  refuse('{KeyLimit.REQUESTS}', bucket_wait(requests, 1, per_minute))
  refuse('{KeyLimit.TOKENS}', bucket_wait(tokens, asked, tokens_per_minute))
  if per_day and day_tokens + math.min(asked, per_day) > per_day then
    refuse('{KeyLimit.DAY}', (day + 1) * {DAY_S} - now)
  end
  if most_streams and redis.call('ZCARD', KEYS[2]) >= most_streams then refuse('{KeyLimit.STREAMS}', {STREAM_RETRY_S}) end
end
if lease and refused == '' then
  if per_minute then requests = requests + 1 end
  if tokens_per_minute then tokens = tokens + asked end
  if per_day then day_tokens = day_tokens + asked end
  if most_streams then redis.call('ZADD', KEYS[2], lease_end, lease) end
end

local function shown(value) return string.format('%.17g', value) end
redis.call('HSET', KEYS[1], 'at_s', shown(at), 'requests', shown(requests), 'tokens', shown(tokens), 'day', shown(day),
  'day_tokens', shown(day_tokens))
redis.call('EXPIRE', KEYS[1], {USAGE_TTL_S})
redis.call('EXPIRE', KEYS[2], {int(2 * STREAM_LEASE_S)})
return {{refused, shown(wait), shown(requests), shown(tokens), shown(day), shown(day_tokens)}}
"""


def record_json(record: KeyRecord) -> bytes:
    """Return a key's record as JSON, without secrets."""
    return orjson.dumps(record)


def record_from_json(line: bytes | str) -> KeyRecord:
    """Return the key that `record_json` wrote; raises `ValueError` where it is none."""
    record: KeyRecord = reader_of(KeyRecord).validate_json(line)
    return record


class RedisKeys:
    """See `KeyStore`.

    Args:
        redis: the server.
        turn: a context for each call, which raises `MeshError`.
        clock: instead of the server's, for tests.
    """

    def __init__(
        self, redis: Redis, turn: Callable[[], AbstractAsyncContextManager[None]], clock: Clock | None = None
    ) -> None:
        self._redis = redis
        self._turn = turn
        self._clock = clock

    async def revision(self) -> int:
        """See `KeyStore`."""
        async with self._turn():
            return int(await self._redis.get(subjects.KEYS_REVISION_KEY) or 0)

    async def keys(self) -> KeyRing:
        """See `KeyStore`."""
        async with self._turn(), self._redis.pipeline(transaction=True) as pipe:
            pipe.get(subjects.KEYS_REVISION_KEY)
            pipe.hgetall(subjects.KEYS_KEY)
            revision, payloads = await pipe.execute()
        records = sorted((record_from_json(payload) for payload in payloads.values()), key=lambda record: record.name)
        return KeyRing(int(revision or 0), {record.name: record for record in records})

    async def put_key(self, record: KeyRecord, replaced: KeyRecord | None) -> bool:
        """See `KeyStore`."""
        return await self._change(record.name, b"" if replaced is None else record_json(replaced), record_json(record))

    async def delete_key(self, name: str) -> bool:
        """See `KeyStore`."""
        while True:
            async with self._turn():
                read: Any = self._redis.hget(subjects.KEYS_KEY, name)
                held = await read
            if held is None:
                return False
            if await self._change(name, held, b""):
                break  # else it was changed in between
        async with self._turn():
            await self._redis.delete(subjects.key_usage_key(name), subjects.key_streams_key(name))
            forgotten: Any = self._redis.hdel(subjects.KEYS_USED_KEY, name)
            await forgotten
        return True

    async def _change(self, name: str, held: bytes, record: bytes) -> bool:
        changed = await self._eval(
            _CHANGE,
            (subjects.KEYS_KEY, subjects.KEYS_REVISION_KEY),
            (name, held, record, str(int(time.time() * 1000))),
        )
        return bool(changed)

    async def restore(self, ring: KeyRing) -> bool:
        """See `KeyStore`."""
        records = [part for record in ring.keys.values() for part in (record.name, record_json(record))]
        keys = (subjects.KEYS_KEY, subjects.KEYS_REVISION_KEY)
        return bool(await self._eval(_RESTORE, keys, (str(ring.revision), *records)))

    async def note_use(self, used_unix_s: Mapping[str, float]) -> None:
        """See `KeyStore`."""
        if used_unix_s:
            arguments = [part for name, at_s in used_unix_s.items() for part in (name, f"{at_s:.3f}")]
            await self._eval(_NOTE_USE, (subjects.KEYS_USED_KEY,), arguments)

    async def last_use(self) -> dict[str, float]:
        """See `KeyStore`."""
        async with self._turn():
            read: Any = self._redis.hgetall(subjects.KEYS_USED_KEY)
            used = await read
        return {name.decode(): float(at_s) for name, at_s in used.items()}

    async def use(self, name: str, limits: KeyLimits, settlement: Settlement, ask: Ask | None = None) -> KeyAdmission:
        """See `KeyStore`."""
        bounds = (limits.requests_per_minute, limits.tokens_per_minute, limits.tokens_per_day, limits.max_streams)
        arguments = (
            "" if self._clock is None else repr(self._clock.now()),
            *("" if bound is None else str(bound) for bound in bounds),
            *map(str, (settlement.given_back, settlement.given_back_today, settlement.day)),
            *map(str, (len(settlement.ended), len(settlement.running))),
            *settlement.ended,
            *settlement.running,
            *(() if ask is None else (ask.lease_id, str(ask.tokens), "1" if ask.is_due else "0")),
        )
        answer = await self._eval(_USE, (subjects.key_usage_key(name), subjects.key_streams_key(name)), arguments)
        refused_by, wait_s, requests, tokens, day, day_tokens = (part.decode() for part in answer)
        return KeyAdmission(
            KeyLimit(refused_by) if refused_by else None,
            float(wait_s),
            float(requests),
            float(tokens),
            int(float(day)),
            int(float(day_tokens)),
        )

    async def _eval(self, script: str, keys: Sequence[str], arguments: Sequence[str | bytes]) -> Any:
        async with self._turn():
            # The client's type also covers its synchronous variant.
            evaluated: Any = self._redis.eval(script, len(keys), *keys, *arguments)
            return await evaluated
