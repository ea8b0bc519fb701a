"""Kept API requests in Redis: a hash and a list of tokens each, and a key for each claim. What must be one step runs in the
server.

The hash has `form`, `body`, `owner`, `ending`, the key of its `claim`, for each choice `attempt:ID` and `saved:INDEX`, the
number of its tokens in the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import orjson
from redis.asyncio import Redis

from spotwise.core.access.store_budget import ENTRY_BYTES, PART_BYTES, RoomVerdict, size_of
from spotwise.core.gateway.kept_request import (
    FORGOTTEN,
    KeptAttempt,
    KeptEnding,
    KeptRequest,
    KeptState,
    KeptTokens,
    NotSaved,
    SavedTokens,
)
from spotwise.mesh.ports.requests import NO_ATTEMPTS
from spotwise.mesh.process.json_types import reader_of
from spotwise.mesh.redis.records import ATTEMPT_OF, OWNS
from spotwise.mesh.redis.room import AGAIN, MOST_CALLS, ROOM, RedisRoom
from spotwise.wire import subjects

#: Seconds for which a request is kept after its last write.
KEPT_TTL_S = 3600
#: How long a claim is at least: longer than any request runs. One whose request is gone counts for nothing.
CLAIM_TTL_S = 86_400
#: Requests of one call that saves tokens: the server does nothing else meanwhile.
_MAX_SAVED = 128
#: Before the id of the request that has a claim.
_CLAIMED = "claimed:"

# ARGV, further: prefixes of requests' keys and of tokens'.
_REQUESTS = (
    ROOM
    + """
drop = function(id)
  local claim = redis.call('HGET', ARGV[4] .. id, 'claim')
  redis.call('DEL', ARGV[4] .. id, ARGV[5] .. id)
  if claim and redis.call('GET', claim) == id then redis.call('DEL', claim) end
end
stays = function(id)
  return redis.call('HEXISTS', ARGV[4] .. id, 'form') == 1 and redis.call('HEXISTS', ARGV[4] .. id, 'ending') == 0
end
"""
    + OWNS
)

# KEYS: request, claim (or the request again, without one); ARGV, further: id, scope, size, time to live, that of the claim,
# fields of the hash and their values, the owner first. Returns a verdict, or the id of another request that has the claim.
_KEEP = (
    _REQUESTS
    + f"""
local id, scope, size = ARGV[6], ARGV[7], tonumber(ARGV[8])
forget_expired()
if owns(KEYS[1], ARGV[12]) == false then return '{RoomVerdict.KEPT}' end
if KEYS[2] ~= KEYS[1] then
  local other = redis.call('GET', KEYS[2])
  if other and other ~= id and redis.call('EXISTS', ARGV[4] .. other) == 1 then return '{_CLAIMED}' .. other end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  forget(id)
  local verdict = make_room(scope, size)
  if verdict ~= '{RoomVerdict.KEPT}' then return verdict end
end
redis.call('HDEL', KEYS[1], 'claim')
redis.call('HSET', KEYS[1], unpack(ARGV, 11))
redis.call('EXPIRE', KEYS[1], ARGV[9])
if KEYS[2] ~= KEYS[1] then
  redis.call('HSET', KEYS[1], 'claim', KEYS[2])
  redis.call('SET', KEYS[2], id, 'EX', ARGV[10])
end
if not entry_of(id) then put(id, scope, size, now_ms + ARGV[9] * 1000) end
return '{RoomVerdict.KEPT}'
"""
)

_GET = """
return {redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1)}
"""

# KEYS: request, tokens; ARGV: process. Turns have the clock's milliseconds, so that one that was lost is not given again.
_TAKE = f"""{OWNS}
local held = redis.call('HGET', KEYS[1], 'owner')
if not held or held == '{FORGOTTEN}' then return false end
if redis.call('HEXISTS', KEYS[1], 'ending') == 0 then
  local time = redis.call('TIME')
  local turn = math.max(turn_of(held) + 1, time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('HDEL', KEYS[1], 'owner')
  redis.call('HSET', KEYS[1], 'owner', string.format('%.0f %s', turn, ARGV[1]))
end
{_GET}"""

# KEYS: request and tokens of each; ARGV, further: time to live, what a chunk takes beside its tokens, then of each its id,
# owner, choice, first token, count and tokens. Returns how many tokens of each choice are saved; -1 where the request has
# another owner, -2 where there is none, -3 where it is forgotten for want of room.
_SAVE = (
    _REQUESTS
    + f"""
local ttl, saved, without_room = tonumber(ARGV[6]), {{}}, {{}}
local function append(i, at)
  local id, chunk = ARGV[at], ARGV[at + 5]
  local size, scope = entry_of(id)
  local more = #chunk + ARGV[7]
  local verdict = size and make_room(scope, more) or '{RoomVerdict.KEPT}'
  if verdict ~= '{RoomVerdict.KEPT}' and verdict ~= '{AGAIN}' then
    forget(id)
    without_room[id] = true
    return -3
  end
  if is_full then redis.call('HDEL', KEYS[i], '') end
  if redis.call('RPUSH', KEYS[i + 1], chunk) == 1 then redis.call('EXPIRE', KEYS[i + 1], ttl) end
  local have = ARGV[at + 3] + ARGV[at + 4]
  redis.call('HSET', KEYS[i], 'saved:' .. ARGV[at + 2], have)
  if size then
    note_size(id, scope, size + more)
    add(scope, more)
  end
  if redis.call('TTL', KEYS[i]) < ttl / 2 then
    redis.call('EXPIRE', KEYS[i], ttl)
    redis.call('EXPIRE', KEYS[i + 1], ttl)
    if size then note_end(id, scope, now_ms + ttl * 1000) end
  end
  return have
end
for i = 1, #KEYS, 2 do
  local at = 8 + (i - 1) / 2 * 6
  local is_owner = owns(KEYS[i], ARGV[at + 1])
  local held = redis.call('HMGET', KEYS[i], 'ending', 'saved:' .. ARGV[at + 2])
  local have, first = tonumber(held[2] or '0'), tonumber(ARGV[at + 3])
  if without_room[ARGV[at]] then
    have = -3
  elseif is_owner == nil then
    have = -2
  elseif not is_owner then
    have = -1
  elseif ARGV[at + 5] ~= '' and not held[1] and first <= have and have < first + ARGV[at + 4] then
    have = append(i, at)
  end
  saved[#saved + 1] = have
end
return saved
"""
)

# KEYS: request, tokens, claim (or the request again); ARGV, further: id, owner, ending, time to live in milliseconds, whether
# the claim is lost.
_END = (
    _REQUESTS
    + """
if not owns(KEYS[1], ARGV[7]) then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[9])
redis.call('PEXPIRE', KEYS[2], ARGV[9])
redis.call('HSET', KEYS[1], 'ending', ARGV[8])
local size, scope = entry_of(ARGV[6])
if size then note_end(ARGV[6], scope, now_ms + ARGV[9]) end
if KEYS[3] ~= KEYS[1] and redis.call('GET', KEYS[3]) == ARGV[6] then
  if ARGV[10] == '1' then redis.call('DEL', KEYS[3]) else redis.call('PEXPIRE', KEYS[3], ARGV[9]) end
end
return 1
"""
)

# KEYS: request; ARGV, further: id, time to live, what is left. An owner stays that none comes after, so that no gateway writes
# the request again. Returns the choices that had attempts.
_FORGET = (
    _REQUESTS
    + f"""
local choices = {{}}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  choices[#choices + 1] = string.match(field, '^{ATTEMPT_OF}(.*)$')
end
local _, scope = entry_of(ARGV[6])
forget(ARGV[6])
redis.call('HSET', KEYS[1], 'owner', '{FORGOTTEN}')
redis.call('EXPIRE', KEYS[1], ARGV[7])
put(ARGV[6], scope, tonumber(ARGV[8]), now_ms + ARGV[7] * 1000)
return choices
"""
)

_PREFIXES = subjects.kept_request_key(""), subjects.kept_tokens_key("")
_NOT_SAVED = {-1: NotSaved.TAKEN, -2: NotSaved.FORGOTTEN, -3: NotSaved.NO_ROOM}


class RedisRequests:
    """See `KeptRequestStore`; the part of `RedisStore` that keeps API requests."""

    _redis: Redis
    _requests: RedisRoom

    def _turn(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    async def delete_record(self, choice_id: str) -> None:
        """See `MeshStore`."""
        raise NotImplementedError

    async def keep_request(
        self, request: KeptRequest, owner: str, attempts: Mapping[str, KeptAttempt] = NO_ATTEMPTS
    ) -> KeptState | RoomVerdict:
        """See `KeptRequestStore`."""
        key, request_id = subjects.kept_request_key(request.request_id), request.request_id
        claim = subjects.claim_key(request.claim) if request.claim else key
        noted = [part for each, attempt in attempts.items() for part in (ATTEMPT_OF + each, orjson.dumps(attempt))]
        form, body = orjson.dumps(replace(request, body="")), request.body.encode()
        size = size_of(form, body, *(part for part in noted if isinstance(part, bytes)))
        fields = "owner", owner, "form", form, "body", body, *noted
        arguments = *_PREFIXES, request_id, request.scope, size, KEPT_TTL_S, CLAIM_TTL_S, *fields
        for _ in range(MOST_CALLS):
            answer = (await self._requests.eval(_KEEP, (key, claim), *arguments)).decode()
            if answer.startswith(_CLAIMED):
                known = await self.get_request(answer.removeprefix(_CLAIMED))
                if known is not None:
                    return known
            elif answer != AGAIN:
                return RoomVerdict(answer)
        return RoomVerdict.NO_ROOM

    async def claimed_request(self, claim: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        async with self._turn():
            request_id: Any = await self._redis.get(subjects.claim_key(claim))
        return None if request_id is None else await self.get_request(request_id.decode())

    async def get_request(self, request_id: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        return await self._read(_GET, request_id)

    async def take_request(self, request_id: str, process: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        return await self._read(_TAKE, request_id, process)

    async def _read(self, script: str, request_id: str, *arguments: str) -> KeptState | None:
        keys = subjects.kept_request_key(request_id), subjects.kept_tokens_key(request_id)
        async with self._turn():
            evaluated: Any = self._redis.eval(script, len(keys), *keys, *arguments)
            read = await evaluated
        if read is None:
            return None
        fields, chunks = read
        return _state(dict(zip(fields[::2], fields[1::2], strict=True)), chunks)

    async def save_tokens(self, tokens: Sequence[KeptTokens]) -> list[SavedTokens]:
        """See `KeptRequestStore`."""
        saved: list[SavedTokens] = []
        for first in range(0, len(tokens), _MAX_SAVED):
            part = tokens[first : first + _MAX_SAVED]
            keys = tuple(
                key
                for each in part
                for key in (subjects.kept_request_key(each.request_id), subjects.kept_tokens_key(each.request_id))
            )
            arguments = [
                argument
                for each in part
                for argument in (each.request_id, each.owner, each.choice, each.first, each.count, each.chunk)
            ]
            counts = await self._requests.eval(_SAVE, keys, *_PREFIXES, KEPT_TTL_S, PART_BYTES, *arguments)
            saved += [_NOT_SAVED.get(count, count) for count in counts]
        return saved

    async def end_request(self, request: KeptRequest, owner: str, ending: KeptEnding, keep_s: float) -> bool:
        """See `KeptRequestStore`."""
        key = subjects.kept_request_key(request.request_id)
        claim = subjects.claim_key(request.claim) if request.claim else key
        keys = key, subjects.kept_tokens_key(request.request_id), claim
        loses_claim = "0" if ending.state == "finished" else "1"
        arguments = request.request_id, owner, orjson.dumps(ending), int(keep_s * 1000), loses_claim
        return bool(await self._requests.eval(_END, keys, *_PREFIXES, *arguments))

    async def forget_request(self, request: KeptRequest) -> None:
        """See `KeptRequestStore`."""
        request_id = request.request_id
        keys, left = (subjects.kept_request_key(request_id),), (request_id, KEPT_TTL_S, ENTRY_BYTES)
        for choice_id in await self._requests.eval(_FORGET, keys, *_PREFIXES, *left):
            await self.delete_record(choice_id.decode())


def _state(fields: Mapping[bytes, bytes], chunks: Sequence[bytes]) -> KeptState | None:
    form, body, owner, ending = (fields.get(name) for name in (b"form", b"body", b"owner", b"ending"))
    if form is None or body is None or owner is None:
        return None
    attempts = {
        name.decode().removeprefix(ATTEMPT_OF): reader_of(KeptAttempt).validate_json(attempt)
        for name, attempt in fields.items()
        if name.startswith(ATTEMPT_OF.encode())
    }
    return KeptState(
        replace(reader_of(KeptRequest).validate_json(form), body=body.decode()),
        owner.decode(),
        None if ending is None else reader_of(KeptEnding).validate_json(ending),
        attempts,
        tuple(chunks),
        sum(int(count) for name, count in fields.items() if name.startswith(b"saved:")),
    )
