"""Kept API requests in Redis: a hash and a list of tokens each, and a key for each claim. What must be one step runs in the
server.

The hash has `form`, `owner`, `ending`, for each choice `attempt:ID` and `saved:INDEX`, the number of its tokens in the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from redis.asyncio import Redis

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
from spotwise.core.record import RequestRecord
from spotwise.mesh.json_types import reader_of
from spotwise.mesh.request_store import NO_ATTEMPTS
from spotwise.wire import subjects
from spotwise.wire.codec_records import encode_record

#: How long a request is kept that nobody writes to.
KEPT_TTL_S = 3600
#: How long a claim is at least: longer than any request runs. One whose request is gone counts for nothing.
CLAIM_TTL_S = 86_400
#: Requests of one call that saves tokens: the server does nothing else meanwhile.
_MAX_SAVED = 128

#: Whether an owner has a request; `nil` where there is none. The one of a later turn than is known has it from now on: the
#: server has lost that turn.
_OWNS = """
local function turn_of(owner) return tonumber(string.match(owner, '^%d+')) end
local function owns(key, owner)
  local held = redis.call('HGET', key, 'owner')
  if not held then return nil end
  if turn_of(owner) > turn_of(held) then redis.call('HSET', key, 'owner', owner); return true end
  return held == owner
end
"""

# KEYS: request, claim (or the request again, without one); ARGV: id, time to live, that of the claim, prefix of requests' keys,
# fields of the hash and their values. Returns the id of another request that has the claim.
_KEEP = f"""{_OWNS}
if owns(KEYS[1], ARGV[8]) == false then return false end
if KEYS[2] ~= KEYS[1] then
  local id = redis.call('GET', KEYS[2])
  if id and id ~= ARGV[1] and redis.call('EXISTS', ARGV[4] .. id) == 1 then return id end
  redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[3])
end
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('EXPIRE', KEYS[1], ARGV[2])
return false
"""

# KEYS: request, tokens; ARGV: process. Turns have the clock's milliseconds, so that one that was lost is not given again.
_TAKE = f"""{_OWNS}
local held = redis.call('HGET', KEYS[1], 'owner')
if not held or held == '{FORGOTTEN}' then return false end
if redis.call('HEXISTS', KEYS[1], 'ending') == 0 then
  local time = redis.call('TIME')
  local turn = math.max(turn_of(held) + 1, time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('HSET', KEYS[1], 'owner', string.format('%.0f %s', turn, ARGV[1]))
end
return {{redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1)}}
"""

# KEYS: request and tokens of each; ARGV: time to live, then of each its owner, choice, first token, count and tokens. Returns
# how many tokens of each choice are saved; -1 where the request has another owner, -2 where there is none.
_SAVE = f"""{_OWNS}
local saved = {{}}
for i = 1, #KEYS, 2 do
  local at = 2 + (i - 1) / 2 * 5
  local is_owner = owns(KEYS[i], ARGV[at])
  if is_owner == nil then
    saved[#saved + 1] = -2
  elseif not is_owner then
    saved[#saved + 1] = -1
  else
    local field = 'saved:' .. ARGV[at + 1]
    local have = tonumber(redis.call('HGET', KEYS[i], field) or '0')
    local first, chunk = tonumber(ARGV[at + 2]), ARGV[at + 4]
    local count = tonumber(ARGV[at + 3])
    if chunk ~= '' and first <= have and have < first + count then
      have = first + count
      redis.call('RPUSH', KEYS[i + 1], chunk)
      redis.call('HSET', KEYS[i], field, have)
      redis.call('EXPIRE', KEYS[i + 1], ARGV[1])
      redis.call('EXPIRE', KEYS[i], ARGV[1])
    end
    saved[#saved + 1] = have
  end
end
return saved
"""

# KEYS: request, tokens, claim (or the request again); ARGV: owner, ending, time to live in milliseconds, whether the claim is
# lost, id.
_END = f"""{_OWNS}
if not owns(KEYS[1], ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'ending', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if KEYS[3] ~= KEYS[1] and redis.call('GET', KEYS[3]) == ARGV[5] then
  if ARGV[4] == '1' then redis.call('DEL', KEYS[3]) else redis.call('PEXPIRE', KEYS[3], ARGV[3]) end
end
return 1
"""

# KEYS: request, tokens, claim (or the request again); ARGV: id, time to live, prefix of records' keys. An owner stays that none
# comes after, so that no gateway writes the request again.
_FORGET = f"""
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  local choice = string.match(field, '^attempt:(.*)$')
  if choice then redis.call('DEL', ARGV[3] .. choice) end
end
redis.call('DEL', KEYS[2])
if KEYS[3] ~= KEYS[1] and redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('DEL', KEYS[3]) end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'owner', '{FORGOTTEN}')
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""

# KEYS: request, record; ARGV: owner, record, time to live, field of the attempt, attempt.
_PUT_RECORD = f"""{_OWNS}
local is_owner = owns(KEYS[1], ARGV[1])
if is_owner == false then return 0 end
if is_owner then redis.call('HSET', KEYS[1], ARGV[4], ARGV[5]) end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return 1
"""

# KEYS: request, record; ARGV: owner. A request that is not kept any more has no other owner.
_DELETE_RECORD = f"""{_OWNS}
if owns(KEYS[1], ARGV[1]) ~= false then redis.call('DEL', KEYS[2]) end
return 0
"""

_ATTEMPT_OF = "attempt:"
_NOT_SAVED = {-1: NotSaved.TAKEN, -2: NotSaved.FORGOTTEN}


class RedisRequests:
    """See `KeptRequestStore`; the part of `RedisStore` that keeps API requests."""

    _redis: Redis

    def _turn(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    async def keep_request(
        self, request: KeptRequest, owner: str, attempts: Mapping[str, KeptAttempt] = NO_ATTEMPTS
    ) -> KeptState | None:
        """See `KeptRequestStore`."""
        keys = [subjects.kept_request_key(request.request_id)] * 2
        if request.claim:
            keys[1] = subjects.claim_key(request.claim)
        prefix = subjects.kept_request_key("")
        noted = [part for each, attempt in attempts.items() for part in (_ATTEMPT_OF + each, orjson.dumps(attempt))]
        fields = "form", orjson.dumps(request), "owner", owner, *noted
        claimed = await self._eval(_KEEP, keys, request.request_id, KEPT_TTL_S, CLAIM_TTL_S, prefix, *fields)
        return None if claimed is None else await self.get_request(claimed.decode())

    async def claimed_request(self, claim: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        async with self._turn():
            request_id: Any = await self._redis.get(subjects.claim_key(claim))
        return None if request_id is None else await self.get_request(request_id.decode())

    async def get_request(self, request_id: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hgetall(subjects.kept_request_key(request_id))
            pipe.lrange(subjects.kept_tokens_key(request_id), 0, -1)
            async with self._turn():
                fields, chunks = await pipe.execute()
        return _state(fields, chunks)

    async def take_request(self, request_id: str, process: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        keys = [subjects.kept_request_key(request_id), subjects.kept_tokens_key(request_id)]
        taken = await self._eval(_TAKE, keys, process)
        if taken is None:
            return None
        fields, chunks = taken
        return _state(dict(zip(fields[::2], fields[1::2], strict=True)), chunks)

    async def save_tokens(self, tokens: Sequence[KeptTokens]) -> list[SavedTokens]:
        """See `KeptRequestStore`."""
        saved: list[SavedTokens] = []
        for first in range(0, len(tokens), _MAX_SAVED):
            part = tokens[first : first + _MAX_SAVED]
            keys = [
                key
                for each in part
                for key in (subjects.kept_request_key(each.request_id), subjects.kept_tokens_key(each.request_id))
            ]
            arguments = [
                argument for each in part for argument in (each.owner, each.choice, each.first, each.count, each.chunk)
            ]
            saved += [_NOT_SAVED.get(count, count) for count in await self._eval(_SAVE, keys, KEPT_TTL_S, *arguments)]
        return saved

    async def end_request(self, request: KeptRequest, owner: str, ending: KeptEnding, keep_s: float) -> bool:
        """See `KeptRequestStore`."""
        key = subjects.kept_request_key(request.request_id)
        claim = subjects.claim_key(request.claim) if request.claim else key
        keys = [key, subjects.kept_tokens_key(request.request_id), claim]
        loses_claim = "0" if ending.state == "finished" else "1"
        arguments = owner, orjson.dumps(ending), int(keep_s * 1000), loses_claim, request.request_id
        return bool(await self._eval(_END, keys, *arguments))

    async def forget_request(self, request: KeptRequest) -> None:
        """See `KeptRequestStore`."""
        key = subjects.kept_request_key(request.request_id)
        claim = subjects.claim_key(request.claim) if request.claim else key
        keys = [key, subjects.kept_tokens_key(request.request_id), claim]
        await self._eval(_FORGET, keys, request.request_id, KEPT_TTL_S, subjects.request_key(""))

    async def put_owned_record(self, record: RequestRecord, owner: str) -> bool:
        """See `KeptRequestStore`."""
        keys = [
            subjects.kept_request_key(subjects.request_id_of(record.choice_id)),
            subjects.request_key(record.choice_id),
        ]
        attempt = orjson.dumps(KeptAttempt(record.epoch, record.stop))
        field = _ATTEMPT_OF + record.choice_id
        return bool(await self._eval(_PUT_RECORD, keys, owner, encode_record(record), KEPT_TTL_S, field, attempt))

    async def delete_owned_record(self, choice_id: str, owner: str) -> None:
        """See `KeptRequestStore`."""
        keys = [subjects.kept_request_key(subjects.request_id_of(choice_id)), subjects.request_key(choice_id)]
        await self._eval(_DELETE_RECORD, keys, owner)

    async def _eval(self, script: str, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        async with self._turn():
            evaluated: Any = self._redis.eval(script, len(keys), *keys, *arguments)
            return await evaluated


def _state(fields: Mapping[bytes, bytes], chunks: Sequence[bytes]) -> KeptState | None:
    form, owner, ending = (fields.get(name) for name in (b"form", b"owner", b"ending"))
    if form is None or owner is None:
        return None
    attempts = {
        name.decode().removeprefix(_ATTEMPT_OF): reader_of(KeptAttempt).validate_json(attempt)
        for name, attempt in fields.items()
        if name.startswith(_ATTEMPT_OF.encode())
    }
    return KeptState(
        reader_of(KeptRequest).validate_json(form),
        owner.decode(),
        None if ending is None else reader_of(KeptEnding).validate_json(ending),
        attempts,
        tuple(chunks),
        sum(int(count) for name, count in fields.items() if name.startswith(b"saved:")),
    )
