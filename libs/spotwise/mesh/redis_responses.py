"""Stored responses in Redis: a hash each, and indexes of all and of each scope's, the oldest first. Changes run in the server.

An entry of an index is `SIZE ID SCOPE`, its score the time when the response expires, in microseconds. The sums of sizes are in
one hash, of all under `*`, of a scope under `/SCOPE`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from redis.asyncio import Redis

from spotwise.core.gateway.stored_response import ResponseLimits, StoredResponse
from spotwise.wire import subjects

#: How long a deleted response is not stored again: longer than an answer takes to be read.
DELETED_S = 86_400
#: Expired entries that one call forgets, at most: the server does nothing else meanwhile.
_MAX_FORGOTTEN = 1000

# KEYS: index of all, sums; ARGV: id, prefix of responses' keys, prefix of scopes' indexes.
_FORGET = """
local function forget(entry)
  local size, id, scope = string.match(entry, '^(%d+) (%S+) (%S*)$')
  redis.call('DEL', ARGV[2] .. id)
  redis.call('ZREM', KEYS[1], entry)
  redis.call('ZREM', ARGV[3] .. scope, entry)
  redis.call('HINCRBY', KEYS[2], '*', -size)
  if redis.call('HINCRBY', KEYS[2], '/' .. scope, -size) <= 0 then redis.call('HDEL', KEYS[2], '/' .. scope) end
end
"""

# ARGV, further: scope, size, room of the scope's and of all, time to live in milliseconds, most to forget, body, items.
_PUT = (
    _FORGET
    + """
if redis.call('EXISTS', ARGV[2] .. ARGV[1]) == 1 then return 0 end
local size, index, sum = tonumber(ARGV[5]), ARGV[3] .. ARGV[4], '/' .. ARGV[4]
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_us), 'LIMIT', 0, ARGV[9])
for _, each in ipairs(expired) do forget(each) end
local function make_room(of_index, of_sum, most)
  while tonumber(redis.call('HGET', KEYS[2], of_sum) or '0') + size > most do
    local oldest = redis.call('ZRANGE', of_index, 0, 0)[1]
    if not oldest then return end
    forget(oldest)
  end
end
make_room(index, sum, tonumber(ARGV[6]))
make_room(KEYS[1], '*', tonumber(ARGV[7]))
local key, new = ARGV[2] .. ARGV[1], ARGV[5] .. ' ' .. ARGV[1] .. ' ' .. ARGV[4]
redis.call('HSET', key, 'entry', new, 'scope', ARGV[4], 'body', ARGV[10], 'items', ARGV[11])
redis.call('PEXPIRE', key, ARGV[8])
local ends = string.format('%.0f', now_us + ARGV[8] * 1000)
redis.call('ZADD', KEYS[1], ends, new)
redis.call('ZADD', index, ends, new)
redis.call('HINCRBY', KEYS[2], '*', size)
redis.call('HINCRBY', KEYS[2], sum, size)
for _, each in ipairs({KEYS[1], KEYS[2], index}) do redis.call('PEXPIRE', each, 2 * ARGV[8]) end
return 1
"""
)

# ARGV, further: how long the response is not stored again, in milliseconds.
_DELETE = (
    _FORGET
    + """
local key = ARGV[2] .. ARGV[1]
local entry = redis.call('HGET', key, 'entry')
if entry then forget(entry) end
redis.call('HSET', key, 'is_deleted', 1)
redis.call('PEXPIRE', key, ARGV[4])
return entry and 1 or 0
"""
)


class RedisResponses:
    """See `ResponseStore`.

    Args:
        redis: the server.
        turn: surrounds each call; it waits for its turn, and turns failures into `MeshError`.
    """

    def __init__(self, redis: Redis, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._redis = redis
        self._turn = turn

    async def put_response(self, response: StoredResponse, limits: ResponseLimits) -> None:
        """See `ResponseStore`."""
        room = response.size_bytes, limits.scope_bytes, limits.all_bytes
        lives_ms = int(limits.kept_s * 1000)
        arguments = response.scope, *room, lives_ms, _MAX_FORGOTTEN, response.body, response.items
        await self._eval(_PUT, response.response_id, *arguments)

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """See `ResponseStore`."""
        async with self._turn():
            read: Any = self._redis.hmget(subjects.response_key(response_id), ["scope", "body", "items"])
            fields = await read
        scope, body, items = (None if field is None else field.decode() for field in fields)
        if scope is None or body is None or items is None:
            return None
        return StoredResponse(response_id, scope, body, items)

    async def delete_response(self, response_id: str) -> bool:
        """See `ResponseStore`."""
        return bool(await self._eval(_DELETE, response_id, DELETED_S * 1000))

    async def _eval(self, script: str, response_id: str, *arguments: str | int) -> Any:
        keys = subjects.RESPONSES_KEY, subjects.RESPONSES_BYTES_KEY
        prefixes = subjects.response_key(""), subjects.responses_key("")
        async with self._turn():
            evaluated: Any = self._redis.eval(script, len(keys), *keys, response_id, *prefixes, *arguments)
            return await evaluated
