"""Kept API requests in Redis: a hash (`form`, `owner`, `ending`) and a list of tokens each, and a key for each claim. What must
be one step runs in the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from pydantic import TypeAdapter
from redis.asyncio import Redis

from spotwise.core.gateway.kept_request import KeptEnding, KeptRequest, KeptState, KeptTokens
from spotwise.core.record import RequestRecord
from spotwise.wire import subjects
from spotwise.wire.codec_tokens import encode_record

#: How long a request is kept that nobody writes to.
KEPT_TTL_S = 3600
#: Requests of one call that saves tokens: the server does nothing else meanwhile.
_MAX_SAVED = 128

# KEYS: request, claim (or the request again, without one); ARGV: id, form, owner, time to live, prefix of
# requests' keys. Returns the id that has the claim.
_KEEP = """
if KEYS[2] ~= KEYS[1] then
  local id = redis.call('GET', KEYS[2])
  if id and redis.call('EXISTS', ARGV[5] .. id) == 1 then return id end
  redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[4])
end
redis.call('HSET', KEYS[1], 'form', ARGV[2], 'owner', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return false
"""

# KEYS: request, tokens; ARGV: owner.
_TAKE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
if redis.call('HEXISTS', KEYS[1], 'ending') == 0 then redis.call('HSET', KEYS[1], 'owner', ARGV[1]) end
return {redis.call('HGET', KEYS[1], 'form'), redis.call('HGET', KEYS[1], 'owner'),
        redis.call('HGET', KEYS[1], 'ending'), redis.call('LRANGE', KEYS[2], 0, -1)}
"""

# KEYS: request and tokens of each; ARGV: owner, time to live, the tokens of each.
_SAVE = """
local lost = {}
for i = 1, #KEYS, 2 do
  local chunk = ARGV[2 + (i + 1) / 2]
  local owner = redis.call('HGET', KEYS[i], 'owner')
  if owner and owner ~= ARGV[1] then
    lost[#lost + 1] = (i - 1) / 2
  elseif owner and chunk ~= '' then
    redis.call('RPUSH', KEYS[i + 1], chunk)
    redis.call('EXPIRE', KEYS[i + 1], ARGV[2])
    redis.call('EXPIRE', KEYS[i], ARGV[2])
  end
end
return lost
"""

# KEYS: request, tokens, claim (or the request again); ARGV: owner, ending, time to live in milliseconds, whether the claim is
# lost.
_END = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'ending', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if KEYS[3] ~= KEYS[1] then
  if ARGV[4] == '1' then redis.call('DEL', KEYS[3]) else redis.call('PEXPIRE', KEYS[3], ARGV[3]) end
end
return 1
"""

# KEYS: request, record; ARGV: owner, record, time to live.
_PUT_RECORD = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return 1
"""

# KEYS: request, record; ARGV: owner. A request that is not kept any more has no other owner.
_DELETE_RECORD = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner or owner == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 0
"""

_FORM: TypeAdapter[KeptRequest] = TypeAdapter(KeptRequest)
_ENDING: TypeAdapter[KeptEnding] = TypeAdapter(KeptEnding)


class RedisRequests:
    """See `KeptRequestStore`; the part of `RedisStore` that keeps API requests."""

    _redis: Redis

    def _turn(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    async def keep_request(self, request: KeptRequest, owner: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        keys = [subjects.kept_request_key(request.request_id)] * 2
        if request.claim:
            keys[1] = subjects.claim_key(request.claim)
        prefix = subjects.kept_request_key("")
        claimed = await self._eval(_KEEP, keys, request.request_id, orjson.dumps(request), owner, KEPT_TTL_S, prefix)
        return None if claimed is None else await self.get_request(claimed.decode())

    async def claimed_request(self, claim: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        async with self._turn():
            request_id: Any = await self._redis.get(subjects.claim_key(claim))
        return None if request_id is None else await self.get_request(request_id.decode())

    async def get_request(self, request_id: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(subjects.kept_request_key(request_id), "form", "owner", "ending")
            pipe.lrange(subjects.kept_tokens_key(request_id), 0, -1)
            async with self._turn():
                (form, owner, ending), chunks = await pipe.execute()
        return _state(form, owner, ending, chunks)

    async def take_request(self, request_id: str, owner: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        keys = [subjects.kept_request_key(request_id), subjects.kept_tokens_key(request_id)]
        taken = await self._eval(_TAKE, keys, owner)
        return None if taken is None else _state(*taken)

    async def save_tokens(self, owner: str, tokens: Sequence[KeptTokens]) -> set[str]:
        """See `KeptRequestStore`."""
        lost = set[str]()
        for first in range(0, len(tokens), _MAX_SAVED):
            part = tokens[first : first + _MAX_SAVED]
            keys = [
                key
                for each in part
                for key in (subjects.kept_request_key(each.request_id), subjects.kept_tokens_key(each.request_id))
            ]
            indexes = await self._eval(_SAVE, keys, owner, KEPT_TTL_S, *(each.chunk for each in part))
            lost.update(part[index].request_id for index in indexes)
        return lost

    async def end_request(self, request: KeptRequest, owner: str, ending: KeptEnding, keep_s: float) -> bool:
        """See `KeptRequestStore`."""
        key = subjects.kept_request_key(request.request_id)
        claim = subjects.claim_key(request.claim) if request.claim else key
        keys = [key, subjects.kept_tokens_key(request.request_id), claim]
        loses_claim = "0" if ending.state == "finished" else "1"
        return bool(await self._eval(_END, keys, owner, orjson.dumps(ending), int(keep_s * 1000), loses_claim))

    async def put_owned_record(self, record: RequestRecord, owner: str) -> bool:
        """See `KeptRequestStore`."""
        keys = [
            subjects.kept_request_key(subjects.request_id_of(record.choice_id)),
            subjects.request_key(record.choice_id),
        ]
        return bool(await self._eval(_PUT_RECORD, keys, owner, encode_record(record), KEPT_TTL_S))

    async def delete_owned_record(self, choice_id: str, owner: str) -> None:
        """See `KeptRequestStore`."""
        keys = [subjects.kept_request_key(subjects.request_id_of(choice_id)), subjects.request_key(choice_id)]
        await self._eval(_DELETE_RECORD, keys, owner)

    async def _eval(self, script: str, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        async with self._turn():
            evaluated: Any = self._redis.eval(script, len(keys), *keys, *arguments)
            return await evaluated


def _state(form: Any, owner: Any, ending: Any, chunks: Sequence[bytes]) -> KeptState | None:
    if form is None or owner is None:
        return None
    return KeptState(
        _FORM.validate_json(form),
        owner.decode(),
        None if ending is None else _ENDING.validate_json(ending),
        tuple(chunks),
    )
