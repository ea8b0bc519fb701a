"""Ledgers in Redis: a list each. All members write them, and the oldest make room for new ones."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import orjson
from redis.asyncio import Redis

from spotwise.core.access.store_budget import ENTRY_BYTES, PART_BYTES, RoomVerdict
from spotwise.mesh.redis.room import AGAIN, MOST_CALLS, ROOM, RedisRoom, Turn
from spotwise.wire import subjects

if TYPE_CHECKING:  # see `ports.py`
    from spotwise.core.messages.mesh import LedgerEntry

LEDGER_TTL_S = 3600
LEDGER_MAX_ENTRIES = 256
#: Ledgers of one call: the server does nothing else meanwhile.
_MOST_LEDGERS = 64

# ARGV, further: prefix of ledgers' keys, time to live in milliseconds, most entries, what a ledger takes beside them, what an
# entry takes beside its text, then of each ledger its id, the number of entries and these. Returns the place of the first
# ledger that a further call shall write, 0 for none; what has no room is dropped.
_APPEND = (
    ROOM
    + f"""
drop = function(id) redis.call('DEL', ARGV[4] .. id) end
stays = function() return false end
local function written(lines)
  local size = 0
  for _, line in ipairs(lines) do size = size + #line + ARGV[8] end
  return size
end
forget_expired()
local at = 9
while at <= #ARGV do
  local id, count = ARGV[at], tonumber(ARGV[at + 1])
  local lines = {{unpack(ARGV, at + 2, at + 1 + count)}}
  local verdict = make_room('', ARGV[7] + written(lines))
  if verdict == '{AGAIN}' then return at end
  if verdict == '{RoomVerdict.KEPT}' then
    local key, size = ARGV[4] .. id, entry_of(id)
    local more = written(lines)
    if not size then
      redis.call('DEL', key)
      size, more = 0, more + ARGV[7]
    end
    if is_full then redis.call('HDEL', sums, '') end
    local surplus = redis.call('RPUSH', key, unpack(lines)) - ARGV[6]
    for _ = 1, surplus do more = more - #redis.call('LPOP', key) - ARGV[8] end
    redis.call('PEXPIRE', key, ARGV[5])
    note_size(id, '', size + more)
    add('', more)
    note_end(id, '', now_ms + ARGV[5])
  end
  at = at + 2 + count
end
return 0
"""
)


class RedisLedgers:
    """The part of `RedisStore` that has requests' ledgers.

    Args:
        redis: the server.
        turn: surrounds each call.
        room: the ledgers' part of the store's memory budget.
    """

    def __init__(self, redis: Redis, turn: Turn, room: RedisRoom) -> None:
        self._redis = redis
        self._turn = turn
        self._room = room

    async def append(self, entries: Iterable[LedgerEntry]) -> None:
        """Append to the ledgers of the requests that the entries are about."""
        lines: defaultdict[str, list[bytes]] = defaultdict(list)
        for entry in entries:
            lines[subjects.request_id_of(entry.choice_id)].append(orjson.dumps(dataclasses.asdict(entry)))
        ledgers = [(request_id, of_request[-LEDGER_MAX_ENTRIES:]) for request_id, of_request in lines.items()]
        for first in range(0, len(ledgers), _MOST_LEDGERS):
            await self._append(ledgers[first : first + _MOST_LEDGERS])

    async def _append(self, ledgers: list[tuple[str, list[bytes]]]) -> None:
        fixed = subjects.ledger_key(""), LEDGER_TTL_S * 1000, LEDGER_MAX_ENTRIES, ENTRY_BYTES, PART_BYTES
        given: list[str | bytes | int] = []
        for request_id, lines in ledgers:
            given += (request_id, len(lines), *lines)
        for _ in range(MOST_CALLS):
            place = await self._room.eval(_APPEND, (), *fixed, *given)
            if not place:
                return
            given = given[place - _FIRST_PLACE :]

    async def get(self, choice_id: str) -> list[LedgerEntry]:
        """Return an API request's ledger in order of time; empty where there is none."""
        async with self._turn():
            lines = await self._redis.lrange(subjects.ledger_key(choice_id), 0, -1)
        entries = [_ledger_entry(orjson.loads(line)) for line in lines]
        return sorted(entries, key=lambda entry: entry.at_s)


#: Of the ledgers in the script's arguments.
_FIRST_PLACE = 9


def _ledger_entry(fields: dict[str, object]) -> LedgerEntry:
    from spotwise.core.messages.mesh import LedgerEntry

    facts = fields.pop("facts")
    assert isinstance(facts, list)
    return LedgerEntry(**fields, facts=tuple((name, value) for name, value in facts))  # type: ignore[arg-type]
