"""API keys and their usage in Redis.

All keys are fields of one hash, with a revision that every change raises: a gateway reads the revision each second, and the
keys after a change. A second hash has the revision of each key's last change, of deleted ones too: a gateway that knows of
later ones writes them back, whatever was changed in the store meanwhile. Usage is counted by a script in the server, with the
server's clock: gateways need not agree on the time.

A file has keys for gateways whose operators have no access to the store: a JSON object a line, as `spotwise keys hash` prints
them; empty lines, and those that begin with #, are skipped. A secret is in it as its digest alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
from redis.asyncio import Redis

from spotwise.core.access.keys import MAX_KEYS, KeyRecord
from spotwise.core.access.quotas import (
    DAY_S,
    MINUTE_S,
    STREAM_LEASE_S,
    STREAM_RETRY_S,
    Ask,
    KeyAdmission,
    KeyLimit,
    KeyLimits,
    KeyReport,
    Settlement,
)
from spotwise.mesh.ports.keys import MAX_DELETED, KeyRing
from spotwise.mesh.process.clock import Clock
from spotwise.mesh.process.json_types import reader_of
from spotwise.mesh.security.secrets import require_private
from spotwise.wire import subjects

# These scripts are let through where the server has no more memory: their first write is a deletion (`room.py`).

#: After that a key that is not used has nothing left to count.
USAGE_TTL_S = 2 * DAY_S

_HASHES = subjects.KEYS_KEY, subjects.KEYS_REVISION_KEY, subjects.KEYS_CHANGED_KEY

# KEYS: keys, revision, changes; ARGV: name, the record that must be there ('' for none), the new one ('' for none), least
# revision. The least revision is the wall clock's, so that those of a store that has forgotten all are higher, too.
_CHANGE = f"""
local held = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if held == ARGV[3] then return 1 end  -- a client repeats what a lost connection carried
if held ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local revision = string.format('%.0f', math.max(last + 1, tonumber(ARGV[4])))
redis.call('HSET', KEYS[3], ARGV[1], revision)
redis.call('SET', KEYS[2], revision)
if redis.call('HLEN', KEYS[3]) > redis.call('HLEN', KEYS[1]) + {MAX_DELETED} then
  local changed, deleted = redis.call('HGETALL', KEYS[3]), {{}}
  for i = 1, #changed, 2 do
    if redis.call('HEXISTS', KEYS[1], changed[i]) == 0 then
      deleted[#deleted + 1] = {{tonumber(changed[i + 1]), changed[i]}}
    end
  end
  table.sort(deleted, function(one, other) return one[1] < other[1] end)
  for i = 1, #deleted / 2 do redis.call('HDEL', KEYS[3], deleted[i][2]) end
end
return 1
"""

# In one step; a server without memory refuses transactions, also those that only read.
_READ = "return {redis.call('GET', KEYS[2]), redis.call('HVALS', KEYS[1]), redis.call('HGETALL', KEYS[3])}"

# KEYS: keys, revision, changes; ARGV: revision, then names, revisions and records ('' for none) in turn. The store's own
# revision is higher afterwards, so that all gateways look.
_RESTORE = """
local restored = 0
for i = 2, #ARGV, 3 do
  local revision = tonumber(redis.call('HGET', KEYS[3], ARGV[i]) or '0')
  if tonumber(ARGV[i + 1]) > revision then
    redis.call('HDEL', KEYS[1], ARGV[i])
    if ARGV[i + 2] ~= '' then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2]) end
    redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
    restored = restored + 1
  end
end
if restored > 0 then
  local last = tonumber(redis.call('GET', KEYS[2]) or '0')
  redis.call('SET', KEYS[2], string.format('%.0f', math.max(last + 1, tonumber(ARGV[1]))))
end
return restored
"""

# KEYS: last use; ARGV: names and Unix seconds in turn.
_NOTE_USE = """
for i = 1, #ARGV, 2 do
  local known = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  if tonumber(ARGV[i + 1]) > known then
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return 0
"""

# The arithmetic of `spotwise.core.access.quotas.KeyUsage`; a test compares the two. KEYS: usage, leases, what was counted of
# the gateway: `SETTLED FLOOR`, then `NUMBER:TOKENS:DAY` of each ask. ARGV: now ('' for the server's clock), the four limits (''
# for none), the gateway's process, its last number, its floor; the number of settlements, and of each its number, given back,
# given back today, its day, the number of asks that ended, those, the number of asks to undo, those; the number of asks whose
# leases go on, those; then where a request asks: its number, its tokens, whether it is due, whether it has a place.
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
local known = redis.call('GET', KEYS[3]) or '0 0'
local settled, floor = string.match(known, '^(%d+) (%d+)')
settled, floor = tonumber(settled), tonumber(floor)
local counted = {{}}
for ask, of_tokens, of_day in string.gmatch(known, '(%d+):(%d+):(%d+)') do
  counted[ask] = {{tonumber(of_tokens), tonumber(of_day)}}
end

local minutes = math.max(0, now - at) / {MINUTE_S}
at = math.max(at, now)
requests = math.max(0, requests - minutes * (per_minute or 0))
tokens = math.max(0, tokens - minutes * (tokens_per_minute or 0))
local today = math.floor(now / {DAY_S})
if today > day then day = today; day_tokens = 0 end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.17g', now))

local at_arg = 5
local function next_arg() at_arg = at_arg + 1; return ARGV[at_arg] end
local source = next_arg()
local function lease_of(ask) return source .. '/' .. ask end
local function give_back(of_tokens, of_today, of_day)
  if tokens_per_minute then tokens = math.max(0, tokens - of_tokens) end
  if per_day and of_day == day then day_tokens = math.max(0, day_tokens - of_today) end
end
local last, least = tonumber(next_arg()), tonumber(next_arg())
for _ = 1, tonumber(next_arg()) do
  local is_new = tonumber(next_arg()) > settled
  local back, back_today, of_day = tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
  if is_new then give_back(back, back_today, of_day) end
  for _ = 1, tonumber(next_arg()) do
    local ask = next_arg()
    if is_new then redis.call('ZREM', KEYS[2], lease_of(ask)) end
  end
  for _ = 1, tonumber(next_arg()) do
    local ask = next_arg()
    if is_new and counted[ask] then give_back(counted[ask][1], counted[ask][1], counted[ask][2]); counted[ask] = nil end
  end
end
local lease_end, is_late = string.format('%.17g', now + {STREAM_LEASE_S}), last < settled
for _ = 1, tonumber(next_arg()) do
  local lease = lease_of(next_arg())
  if most_streams and is_late then redis.call('ZADD', KEYS[2], 'XX', lease_end, lease) end
  if most_streams and not is_late then redis.call('ZADD', KEYS[2], lease_end, lease) end
end
settled, floor = math.max(settled, last), math.max(floor, least)

local wait, refused = 0, ''
local function refuse(by, seconds) if seconds > wait then wait = seconds; refused = by end end
local function bucket_wait(used, wanted, most)
  if not most then return 0 end
  local excess = used + math.min(wanted, most) - most
  if excess > 1e-6 then return excess * {MINUTE_S} / most end
  return 0
end
local ask, asked, is_due, has_place = next_arg(), tonumber(next_arg() or '0'), next_arg() == '1', next_arg() == '1'
if ask and tonumber(ask) >= floor then
  if not counted[ask] and not is_due then
    refuse('{KeyLimit.REQUESTS}', bucket_wait(requests, 1, per_minute))
    refuse('{KeyLimit.TOKENS}', bucket_wait(tokens, asked, tokens_per_minute))
    if per_day and day_tokens + math.min(asked, per_day) > per_day then
      refuse('{KeyLimit.DAY}', (day + 1) * {DAY_S} - now)
    end
    local places = redis.call('ZCARD', KEYS[2]) - (has_place and 1 or 0)
    if most_streams and places >= most_streams then refuse('{KeyLimit.STREAMS}', {STREAM_RETRY_S}) end
  end
  if refused == '' and not counted[ask] then
    if per_minute then requests = requests + 1 end
    if tokens_per_minute then tokens = tokens + asked end
    if per_day then day_tokens = day_tokens + asked end
    counted[ask] = {{asked, day}}
  end
  if refused == '' and most_streams then redis.call('ZADD', KEYS[2], lease_end, lease_of(ask)) end
end

local function shown(value) return string.format('%.17g', value) end
redis.call('HSET', KEYS[1], 'at_s', shown(at), 'requests', shown(requests), 'tokens', shown(tokens), 'day', shown(day),
  'day_tokens', shown(day_tokens))
local parts = {{string.format('%.0f %.0f', settled, floor)}}
for of_ask, each in pairs(counted) do
  if tonumber(of_ask) >= floor then parts[#parts + 1] = string.format('%s:%.0f:%.0f', of_ask, each[1], each[2]) end
end
redis.call('SET', KEYS[3], table.concat(parts, ' '), 'EX', {USAGE_TTL_S})
redis.call('EXPIRE', KEYS[1], {USAGE_TTL_S})
redis.call('EXPIRE', KEYS[2], {int(2 * STREAM_LEASE_S)})
return {{refused, shown(wait), shown(requests), shown(tokens), shown(day), shown(day_tokens)}}
"""

#: A file of as many keys as there may be is smaller.
_MAX_BYTES = 16 << 20


def _settlement_arguments(settlement: Settlement) -> Iterable[str]:
    figures = settlement.number, settlement.given_back, settlement.given_back_today, settlement.day
    ended, undone = settlement.ended, settlement.undone
    return map(str, (*figures, len(ended), *ended, len(undone), *undone))


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
        revision, payloads, changes = await self._eval(_READ, _HASHES, ())
        records = sorted((record_from_json(payload) for payload in payloads), key=lambda record: record.name)
        changed = zip(changes[::2], changes[1::2], strict=True)
        return KeyRing(
            int(revision or 0),
            {record.name: record for record in records},
            {name.decode(): int(each) for name, each in changed},
        )

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
        return bool(await self._eval(_CHANGE, _HASHES, (name, held, record, str(int(time.time() * 1000)))))

    async def restore(self, lost: KeyRing) -> int:
        """See `KeyStore`."""
        changes = [
            part
            for name, revision in lost.changed.items()
            for part in (name, str(revision), record_json(lost.keys[name]) if name in lost.keys else b"")
        ]
        return int(await self._eval(_RESTORE, _HASHES, (str(lost.revision), *changes)))

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

    async def use(self, name: str, limits: KeyLimits, report: KeyReport, ask: Ask | None = None) -> KeyAdmission:
        """See `KeyStore`."""
        bounds = (limits.requests_per_minute, limits.tokens_per_minute, limits.tokens_per_day, limits.max_streams)
        arguments = (
            "" if self._clock is None else repr(self._clock.now()),
            *("" if bound is None else str(bound) for bound in bounds),
            report.source,
            *map(str, (report.last, report.floor, len(report.settlements))),
            *(part for settlement in report.settlements for part in _settlement_arguments(settlement)),
            *map(str, (len(report.running), *report.running)),
            *(() if ask is None else map(str, (ask.number, ask.tokens, int(ask.is_due), int(ask.has_place)))),
        )
        keys = (
            subjects.key_usage_key(name),
            subjects.key_streams_key(name),
            subjects.key_usage_of(name, report.source),
        )
        answer = await self._eval(_USE, keys, arguments)
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


def read_key_file(path: Path) -> tuple[KeyRecord, ...]:
    """Return the keys of a file, in its order.

    Raises:
        ValueError: the file cannot be read, is not private, or a line is no key; the message names the line, not its content.
    """
    require_private(path)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"{path} is longer than {_MAX_BYTES >> 20} MiB")
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    keys: dict[str, KeyRecord] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            record = record_from_json(line)
        except ValueError:
            # The error's own text quotes the line.
            raise ValueError(f"{path}, line {number}: this is no key; `spotwise keys hash NAME` prints one") from None
        if record.name in keys:
            raise ValueError(f"{path}, line {number}: there is a key of that name above")
        keys[record.name] = record
    if len(keys) > MAX_KEYS:
        raise ValueError(f"{path} has more than {MAX_KEYS} keys")
    return tuple(keys.values())
