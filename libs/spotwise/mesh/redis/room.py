"""The room of what is kept in Redis: how much there is of a kind and of a scope, and what goes first.

`core/access/store_budget.py` has the rule.

A kind has a sorted set of its entries' ids by the millisecond in which they end, one for each scope, a hash with `SIZE SCOPE`
of each, and one of sums: of all under `*`, of a scope under `/SCOPE`; `most` is its room, `full_ms` when the server had no
memory last. Redis refuses the first write of a script that needs memory where it has reached its limit (`maxmemory`), and no
later one: what is kept then takes the place of what was, and what the mesh cannot do without begins with a write that needs
none.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from spotwise.core.access.store_budget import Kind, Room, RoomUse, RoomVerdict, StoreBudget
from spotwise.wire import subjects

#: Entries that one call forgets, at most: the server does nothing else meanwhile.
_MOST_FORGOTTEN = 256
#: What a script answers that has forgotten so many, and is to be called again.
AGAIN = "again"
#: How often it is called again.
MOST_CALLS = 256

#: How long it is known at least that the server had no memory.
_FULL_TTL_MS = 86_400_000

# ARGV: room of all, room of a scope (0: scopes have none), name of the sorted set. A script that begins with this assigns
# `drop`, which forgets what an id stands for and begins with a DEL, and `stays`, whether it is in use.
ROOM = f"""
local all_bytes, scope_bytes, room = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local entries, sums = room .. ':entries', room .. ':bytes'
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local forgotten, freed, needed = 0, 0, 0
local drop, stays
local probe = redis.pcall('ZADD', room, 'XX', 0, '')
local is_full = type(probe) == 'table'
if is_full and not string.find(probe.err, 'OOM', 1, true) then return probe end

local function of_scope(scope) return room .. ':of:' .. scope end
local function entry_of(id)
  local entry = redis.call('HGET', entries, id)
  if not entry then return nil, '' end
  local size, scope = string.match(entry, '^(%d+) (.*)$')
  return tonumber(size), scope
end
local function add(scope, size)
  redis.call('HINCRBY', sums, '*', size)
  if scope_bytes > 0 and redis.call('HINCRBY', sums, '/' .. scope, size) <= 0 then redis.call('HDEL', sums, '/' .. scope) end
end
local function forget(id)
  local size, scope = entry_of(id)
  drop(id)
  redis.call('ZREM', room, id)
  if not size then return end
  redis.call('HDEL', entries, id)
  if scope_bytes > 0 then redis.call('ZREM', of_scope(scope), id) end
  add(scope, -size)
  forgotten, freed = forgotten + 1, freed + size
end
local function forget_expired()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', room, '-inf', now_ms, 'LIMIT', 0, {_MOST_FORGOTTEN})) do forget(id) end
end
local function note_full()
  redis.call('HDEL', sums, '')
  redis.call('HSET', sums, 'full_ms', now_ms)
  if redis.call('PTTL', sums) < 0 then redis.call('PEXPIRE', sums, {_FULL_TTL_MS}) end
end
local function make_room(scope, size)
  if size > all_bytes or (scope_bytes > 0 and size > scope_bytes) then return '{RoomVerdict.TOO_LARGE}' end
  needed = needed + size
  local function over(sum) return tonumber(redis.call('HGET', sums, sum) or '0') + size end
  while scope_bytes > 0 and over('/' .. scope) > scope_bytes do
    local first = redis.call('ZRANGE', of_scope(scope), 0, 0)[1]
    if not first or stays(first) then return '{RoomVerdict.NO_ROOM_FOR_SCOPE}' end
    if forgotten >= {_MOST_FORGOTTEN} then return '{AGAIN}' end
    forget(first)
  end
  if is_full then note_full() end
  while over('*') > all_bytes or (is_full and freed < needed) do
    local first = redis.call('ZRANGE', room, 0, 0)[1]
    if not first or stays(first) then return '{RoomVerdict.NO_ROOM}' end
    if forgotten >= {_MOST_FORGOTTEN} then return '{AGAIN}' end
    forget(first)
  end
  return '{RoomVerdict.KEPT}'
end
local function note_end(id, scope, ends_ms)
  redis.call('ZADD', room, ends_ms, id)
  if scope_bytes > 0 then redis.call('ZADD', of_scope(scope), ends_ms, id) end
  local lives_ms = ends_ms - now_ms
  for _, each in ipairs({{room, entries, sums, of_scope(scope)}}) do
    if redis.call('PTTL', each) < lives_ms then redis.call('PEXPIRE', each, 2 * lives_ms) end
  end
  redis.call('HSET', sums, 'most', all_bytes)
end
local function note_size(id, scope, size) redis.call('HSET', entries, id, string.format('%.0f', size) .. ' ' .. scope) end
local function put(id, scope, size, ends_ms)
  note_size(id, scope, size)
  add(scope, size)
  note_end(id, scope, ends_ms)
end
"""


@functools.cache
def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


#: Surrounds each call; it waits for its turn, and turns failures into `MeshError`.
Turn = Callable[[], AbstractAsyncContextManager[None]]


class RedisRoom:
    """The room of one kind.

    Args:
        redis: the server.
        turn: surrounds each call.
        kind: what is kept.
        budget: memory budget of all kinds.
    """

    def __init__(self, redis: Redis, turn: Turn, kind: Kind, budget: StoreBudget) -> None:
        self._redis = redis
        self._turn = turn
        self._kind = kind
        self._room: Room = budget.room(kind)

    async def eval(self, script: str, keys: tuple[str, ...], *arguments: str | bytes | int) -> Any:
        """Run a script that begins with `ROOM`."""
        room = self._room.all_bytes, self._room.scope_bytes, subjects.room_key(self._kind)
        async with self._turn():
            # These are long, and a server that knows one needs not read it again.
            evaluated: Any = self._redis.evalsha(_digest(script), len(keys), *keys, *room, *arguments)
            try:
                return await evaluated
            except NoScriptError:
                evaluated = self._redis.eval(script, len(keys), *keys, *room, *arguments)
                return await evaluated

    async def verdict(self, script: str, keys: tuple[str, ...], *arguments: str | bytes | int) -> RoomVerdict:
        """Run a script that answers with a verdict, until it needs not be called again."""
        for _ in range(MOST_CALLS):
            answer = (await self.eval(script, keys, *arguments)).decode()
            if answer != AGAIN:
                return RoomVerdict(answer)
        return RoomVerdict.NO_ROOM

    async def use(self) -> RoomUse:
        """Return how full it is."""
        async with self._turn():
            read: Any = self._redis.hmget(subjects.room_bytes_key(self._kind), ["*", "most", "full_ms"])
            used, most, full_ms = (int(value or 0) for value in await read)
        return RoomUse(max(0, used), most, full_ms / 1000)
