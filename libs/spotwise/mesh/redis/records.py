"""Records of attempts in Redis. They are what requests run by: written also where the server has no more memory, and bounded by
their room. Changes run in the server.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import orjson
from redis.asyncio import Redis

from spotwise.core.access.store_budget import PART_BYTES, Kind, RoomVerdict, size_of
from spotwise.core.gateway.kept_request import KeptAttempt
from spotwise.core.requests.record import RequestRecord
from spotwise.mesh.ports.ports import NoRoomError
from spotwise.mesh.redis.room import ROOM, RedisRoom
from spotwise.wire import subjects
from spotwise.wire.codec_records import decode_record, encode_record

RECORD_TTL_S = 3600
#: Before the id of a choice: its attempt, in the hash of its request.
ATTEMPT_OF = "attempt:"
_TAKEN_OVER = "taken over"

#: Whether an owner has a request; `nil` where there is none. The one of a later turn than is known has it from now on: the
#: server has lost that turn.
OWNS = """
local function turn_of(owner) return tonumber(string.match(owner, '^%d+')) end
local function owns(key, owner)
  local held = redis.call('HGET', key, 'owner')
  if not held then return nil end
  if turn_of(owner) > turn_of(held) then
    redis.call('HDEL', key, 'owner')
    redis.call('HSET', key, 'owner', owner)
    return true
  end
  return held == owner
end
"""

# ARGV, further: prefix of records' keys. An attempt that runs makes room for no other one.
_RECORDS = (
    ROOM
    + """
drop = function(id) redis.call('DEL', ARGV[4] .. id) end
stays = function() return true end
is_full = false
"""
    + OWNS
)

# KEYS: request; ARGV, further: choice, owner (empty: it needs none), scope, size, record, time to live, field of the attempt,
# attempt, what that takes beside its text, room of requests and id of this one, which the attempt is counted with. Returns a
# verdict, or that the request has another owner. The next attempt of a choice needs no room.
_PUT = (
    _RECORDS
    + f"""
local is_owner
if ARGV[6] ~= '' then is_owner = owns(KEYS[1], ARGV[6]) end
if is_owner == false then return '{_TAKEN_OVER}' end
forget_expired()
local before = entry_of(ARGV[5])
forget(ARGV[5])
if not before then
  local verdict = make_room(ARGV[7], tonumber(ARGV[8]))
  if verdict ~= '{RoomVerdict.KEPT}' then return verdict end
end
if is_owner then
  local earlier = redis.call('HGET', KEYS[1], ARGV[11])
  redis.call('HSET', KEYS[1], ARGV[11], ARGV[12])
  local more = #ARGV[12] - (earlier and #earlier or -ARGV[13])
  local request = redis.call('HGET', ARGV[14] .. ':entries', ARGV[15])
  if request then
    local size, scope = string.match(request, '^(%d+) (.*)$')
    redis.call('HSET', ARGV[14] .. ':entries', ARGV[15], string.format('%.0f', size + more) .. ' ' .. scope)
    redis.call('HINCRBY', ARGV[14] .. ':bytes', '*', more)
    redis.call('HINCRBY', ARGV[14] .. ':bytes', '/' .. scope, more)
  end
end
redis.call('SET', ARGV[4] .. ARGV[5], ARGV[9], 'EX', ARGV[10])
put(ARGV[5], ARGV[7], tonumber(ARGV[8]), now_ms + ARGV[10] * 1000)
return '{RoomVerdict.KEPT}'
"""
)

# KEYS: request; ARGV, further: choice, owner (empty: it needs none). A request that is not kept any more has no other owner.
_DELETE = (
    _RECORDS
    + """
if ARGV[6] == '' or owns(KEYS[1], ARGV[6]) ~= false then forget(ARGV[5]) end
return 0
"""
)


class RedisRecords:
    """The part of `RedisStore` that has attempts' records."""

    _redis: Redis
    _records: RedisRoom

    def _turn(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    async def put_record(self, record: RequestRecord) -> None:
        """See `MeshStore`."""
        await self.put_owned_record(record, "")

    async def get_record(self, choice_id: str) -> RequestRecord | None:
        """See `MeshStore`."""
        async with self._turn():
            payload = await self._redis.get(subjects.request_key(choice_id))
        return decode_record(payload) if isinstance(payload, bytes) else None

    async def delete_record(self, choice_id: str) -> None:
        """See `MeshStore`."""
        await self.delete_owned_record(choice_id, "")

    async def put_owned_record(self, record: RequestRecord, owner: str) -> bool:
        """See `KeptRequestStore`."""
        choice_id, payload = record.choice_id, encode_record(record)
        attempt = orjson.dumps(KeptAttempt(record.epoch, record.stop))
        written = record.tenant, size_of(payload), payload, RECORD_TTL_S, ATTEMPT_OF + choice_id, attempt
        request = PART_BYTES + len(choice_id), subjects.room_key(Kind.REQUESTS), subjects.request_id_of(choice_id)
        arguments = _PREFIX, choice_id, owner, *written, *request
        answer = (await self._records.eval(_PUT, _request(choice_id), *arguments)).decode()
        if answer not in (_TAKEN_OVER, RoomVerdict.KEPT):
            raise NoRoomError("the records of requests that run leave no room in the store for another")
        return bool(answer == RoomVerdict.KEPT)

    async def delete_owned_record(self, choice_id: str, owner: str) -> None:
        """See `KeptRequestStore`."""
        await self._records.eval(_DELETE, _request(choice_id), _PREFIX, choice_id, owner)


_PREFIX = subjects.request_key("")


def _request(choice_id: str) -> tuple[str]:
    return (subjects.kept_request_key(subjects.request_id_of(choice_id)),)
