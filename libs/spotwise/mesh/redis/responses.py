"""Stored responses in Redis: a hash each. Changes run in the server."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from spotwise.core.access.store_budget import ENTRY_BYTES, Kind, RoomUse, RoomVerdict, StoreBudget
from spotwise.core.gateway.kept_request import StoredResponse
from spotwise.mesh.redis.room import ROOM, RedisRoom, Turn
from spotwise.wire import subjects

#: How long a deleted response is not stored again: longer than an answer takes to be read.
DELETED_S = 86_400

# ARGV, further: prefix of responses' keys, id.
_RESPONSES = (
    ROOM
    + """
drop = function(id) redis.call('DEL', ARGV[4] .. id) end
stays = function() return false end
local id = ARGV[5]
"""
)

# ARGV, further: scope, size, time to live in milliseconds, body, items.
_PUT = (
    _RESPONSES
    + f"""
forget_expired()
if redis.call('EXISTS', ARGV[4] .. id) == 1 then return '{RoomVerdict.KEPT}' end
forget(id)
local verdict = make_room(ARGV[6], tonumber(ARGV[7]))
if verdict ~= '{RoomVerdict.KEPT}' then return verdict end
redis.call('HSET', ARGV[4] .. id, 'scope', ARGV[6], 'body', ARGV[9], 'items', ARGV[10])
redis.call('PEXPIRE', ARGV[4] .. id, ARGV[8])
put(id, ARGV[6], tonumber(ARGV[7]), now_ms + ARGV[8])
return verdict
"""
)

# ARGV, further: how long the response is not stored again, in milliseconds, and what that takes.
_DELETE = (
    _RESPONSES
    + """
local is_stored = redis.call('HEXISTS', ARGV[4] .. id, 'body')
local _, scope = entry_of(id)
forget(id)
redis.call('HSET', ARGV[4] .. id, 'is_deleted', 1)
redis.call('PEXPIRE', ARGV[4] .. id, ARGV[6])
put(id, scope, tonumber(ARGV[7]), now_ms + ARGV[6])
return is_stored
"""
)


class RedisResponses:
    """See `ResponseStore`.

    Args:
        redis: the server.
        turn: surrounds each call.
        budget: memory budget of all entries that the store keeps for a while.
    """

    def __init__(self, redis: Redis, turn: Turn, budget: StoreBudget) -> None:
        self._redis = redis
        self._turn = turn
        self._room = RedisRoom(redis, turn, Kind.RESPONSES, budget)

    async def put_response(self, response: StoredResponse, kept_s: float) -> RoomVerdict:
        """See `ResponseStore`."""
        lives_ms = int(kept_s * 1000)
        contents = response.scope, response.size_bytes, lives_ms, response.body, response.items
        return await self._room.verdict(_PUT, (), subjects.response_key(""), response.response_id, *contents)

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """See `ResponseStore`."""
        async with self._turn():
            read: Any = self._redis.hmget(subjects.response_key(response_id), ["scope", "body", "items"])
            scope, body, items = await read
        if scope is None or body is None or items is None:
            return None
        return StoredResponse(response_id, scope.decode(), body, items)

    async def delete_response(self, response_id: str) -> bool:
        """See `ResponseStore`."""
        deleted = subjects.response_key(""), response_id, DELETED_S * 1000, ENTRY_BYTES
        return bool(await self._room.eval(_DELETE, (), *deleted))

    async def use(self) -> RoomUse:
        """Return how full their room is."""
        return await self._room.use()
