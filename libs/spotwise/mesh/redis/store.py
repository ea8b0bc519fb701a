"""The request store and the registry over Redis. Records, ledgers and registrations have a time to live, so that a process that
died leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from spotwise.core.access.store_budget import Kind, RoomUse, StoreBudget
from spotwise.core.messages.members import (
    DevicePlace,
    Member,
    MemberKind,
    MemberState,
    Pool,
    ProcessCores,
    QuarantinedPair,
)
from spotwise.core.messages.numerics import Numerics
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.json_types import reader_of
from spotwise.mesh.process.server_urls import is_sentinel_url, without_passwords
from spotwise.mesh.redis.keys import RedisKeys
from spotwise.mesh.redis.ledgers import RedisLedgers
from spotwise.mesh.redis.records import RedisRecords
from spotwise.mesh.redis.requests import RedisRequests
from spotwise.mesh.redis.responses import RedisResponses
from spotwise.mesh.redis.room import RedisRoom
from spotwise.mesh.redis.servers import open_redis
from spotwise.mesh.security.plane_tls import PlaneTls
from spotwise.wire import subjects

if TYPE_CHECKING:  # see `ports.py`
    from spotwise.core.fleet.keeper.kept import KeptFleet
    from spotwise.core.messages.mesh import LedgerEntry
    from spotwise.core.planner.plan import Plan

#: Longer than any notice.
PLAN_TTL_S = 24 * 3600
#: How long the bill and the lives of a mesh without a keeper are kept.
FLEET_TTL_S = 90 * 24 * 3600
#: How long an absent member's incarnation is kept, so that its next one is larger whatever the clock says.
INCARNATION_TTL_S = 7 * 24 * 3600

# The scripts below delete before they write: Redis refuses a first write that needs memory where it has no more, and no later
# one; the mesh cannot do without these few.

# KEYS[1]: the member's; ARGV: minimum, time to live in seconds. Runs in the server, since two members may start at once.
_NEXT_INCARNATION = """
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
local next = math.max(tonumber(ARGV[1]), last + 1)
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], string.format('%.0f', next), 'EX', ARGV[2])
return next
"""

# KEYS: registration, incarnation; ARGV: the registration, its time to live in milliseconds, the incarnation, its time to live.
_REGISTER = """
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[4])
return 1
"""

# KEYS: lease, term, last holder; ARGV: holder, lease in milliseconds, least number of a new term, time to live of a term's
# number. 0 where another holds the lease. A holder is id/incarnation: a process takes the lease from its predecessor.
_HOLD_TERM = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  local id, incarnation = string.match(holder, '^(.*)/(%d+)$')
  local own_id, own_incarnation = string.match(ARGV[1], '^(.*)/(%d+)$')
  if not id or id ~= own_id or tonumber(own_incarnation) < tonumber(incarnation) then return 0 end
end
local term = redis.call('GET', KEYS[2])
if not term or redis.call('GET', KEYS[3]) ~= ARGV[1] then
  term = string.format('%.0f', math.max(tonumber(term or '0') + 1, tonumber(ARGV[3])))
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], term, 'EX', ARGV[4])
redis.call('SET', KEYS[3], ARGV[1], 'EX', ARGV[4])
return tonumber(term)
"""

# KEYS: lease, last holder; ARGV: holder.
_END_TERM = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 0
"""

# KEYS: lease, plan; ARGV: holder, the plan, its time to live. A planner whose lease is over must not replace its successor's
# plan.
_PUT_PLAN = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return 1
"""

# KEYS: fleet; ARGV: incarnation of its keeper, the record, its time to live. A keeper that another one replaced must not write
# over its successor's record.
_PUT_FLEET = """
if tonumber(redis.call('HGET', KEYS[1], 'incarnation') or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'incarnation', ARGV[1], 'fleet', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""

# KEYS: claim; ARGV: numerics, the claim's time to live in milliseconds. Returns what is claimed; an equal claim is renewed.
_CLAIM_NUMERICS = """
local claimed = redis.call('GET', KEYS[1])
if claimed and claimed ~= ARGV[1] then return claimed end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""

_MAX_CALLS = 32
#: How long a call may take: longer than a fail-over. A server that stands still breaks no connection.
PATIENCE_S = 15.0
#: How long a term waits for a replica to have it.
_REPLICA_MS = 200
_DEFAULT_BUDGET = StoreBudget()
#: Keys that a step of a scan looks at: records of requests are many more than members.
_SCANNED = 1000


class RedisStore(RedisRecords, RedisRequests):
    """One Redis server, or the primary that Sentinel names; every method raises `MeshError` where it does not answer within
    `PATIENCE_S`. What a fail-over may lose: see docs/adr/0006.

    Attributes:
        keys: the API keys in it.
        responses: the stored responses in it.
    """

    def __init__(self, redis: Redis, *, has_replicas: bool = False, budget: StoreBudget = _DEFAULT_BUDGET) -> None:
        self._redis = redis
        self._has_replicas = has_replicas
        # The client opens a connection per concurrent call and refuses calls beyond its limit: a burst waits here.
        self._turns = asyncio.Semaphore(_MAX_CALLS)
        self.keys = RedisKeys(redis, self._turn)
        self.responses = RedisResponses(redis, self._turn, budget)
        self._rooms = {kind: RedisRoom(redis, self._turn, kind, budget) for kind in Kind}
        self._requests, self._records = self._rooms[Kind.REQUESTS], self._rooms[Kind.RECORDS]
        self._ledgers = RedisLedgers(redis, self._turn, self._rooms[Kind.LEDGERS])

    @classmethod
    async def connect(cls, url: str, tls: PlaneTls | None = None, budget: StoreBudget = _DEFAULT_BUDGET) -> RedisStore:
        """Connect; commands are retried over a server's restart, or a fail-over, for `PATIENCE_S`. Raises `MeshError` where no
        server answers at `url`, or it is no URL of a Redis server or of sentinels. `tls`: certificates for the scheme `rediss`;
        `budget`: of all that is kept in it, the same for all members.
        """
        redis = open_redis(url, tls)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await redis.ping()
        except (OSError, RedisError) as error:
            await redis.aclose()
            raise MeshError(
                f"no Redis server answers at {without_passwords(url)}: {without_passwords(str(error))}"
            ) from error
        return cls(redis, has_replicas=is_sentinel_url(url), budget=budget)

    async def append_ledger(self, *entries: LedgerEntry) -> None:
        """Append to the ledgers of the requests that the entries are about."""
        await self._ledgers.append(entries)

    async def get_ledger(self, choice_id: str) -> list[LedgerEntry]:
        """Return an API request's ledger in order of time; empty where there is none."""
        return await self._ledgers.get(choice_id)

    async def room_use(self) -> dict[Kind, RoomUse]:
        """See `MeshStore`."""
        return {kind: await room.use() for kind, room in self._rooms.items()}

    async def register(self, member: Member, ttl_s: float) -> None:
        """Write a registration that expires after `ttl_s`, and the incarnation, which is kept for longer."""
        payload = orjson.dumps(dataclasses.asdict(member))
        keys = subjects.member_key(member.id), subjects.incarnation_key(member.id)
        arguments = payload, str(int(ttl_s * 1000)), str(member.incarnation), str(INCARNATION_TTL_S)
        async with self._turn():
            evaluated: Any = self._redis.eval(_REGISTER, len(keys), *keys, *arguments)
            await evaluated

    async def next_incarnation(self, member_id: str, at_least: int) -> int:
        """Return a number above those of all members that had this id lately, and not below `at_least`."""
        async with self._turn():
            # The client's type also covers its synchronous variant.
            evaluated: Any = self._redis.eval(
                _NEXT_INCARNATION, 1, subjects.incarnation_key(member_id), str(at_least), str(INCARNATION_TTL_S)
            )
            return int(await evaluated)

    async def unregister(self, member_id: str) -> None:
        """Remove a registration; idempotent."""
        async with self._turn():
            await self._redis.delete(subjects.member_key(member_id))

    async def members(self) -> list[Member]:
        """Return the registered members in order of id."""
        async with self._turn():
            keys = [key async for key in self._redis.scan_iter(subjects.MEMBER_KEYS, count=_SCANNED)]
            payloads = await self._redis.mget(sorted(keys)) if keys else []
        return [_member(orjson.loads(payload)) for payload in payloads if payload is not None]

    async def registered(self, member_ids: Sequence[str]) -> list[Member]:
        """Return those of some members that are registered, in the order of their ids here, without their loads."""
        async with self._turn():
            keys = [subjects.member_key(member_id) for member_id in member_ids]
            payloads = await self._redis.mget(keys) if keys else []
        return [_member(orjson.loads(payload)) for payload in payloads if payload is not None]

    async def hold_term(self, service: str, holder: str, at_least: int, lease_s: float) -> int | None:
        """See `MeshStore`."""
        keys = (subjects.lease_key(service), subjects.term_key(service), subjects.term_holder_key(service))
        arguments = (holder, str(int(lease_s * 1000)), str(at_least), str(INCARNATION_TTL_S))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.eval(_HOLD_TERM, len(keys), *keys, *arguments)
            if self._has_replicas:
                # Else a fail-over right afterwards could give the same term to another holder.
                pipe.wait(1, _REPLICA_MS)
            async with self._turn():
                term, *_replicas = await pipe.execute()
        return int(term) or None

    async def end_term(self, service: str, holder: str) -> None:
        """See `MeshStore`."""
        keys = (subjects.lease_key(service), subjects.term_holder_key(service))
        async with self._turn():
            evaluated: Any = self._redis.eval(_END_TERM, len(keys), *keys, holder)
            await evaluated

    async def claim_numerics(self, model: str, numerics: str, ttl_s: float) -> str:
        """See `MeshStore`."""
        async with self._turn():
            evaluated: Any = self._redis.eval(
                _CLAIM_NUMERICS, 1, subjects.numerics_claim_key(model), numerics, str(int(ttl_s * 1000))
            )
            claimed = await evaluated
        return claimed.decode() if isinstance(claimed, bytes) else str(claimed)

    async def put_plan(self, holder: str, plan: Plan) -> bool:
        """See `MeshStore`."""
        keys = (subjects.lease_key(subjects.PLANNER), subjects.PLAN_KEY)
        async with self._turn():
            evaluated: Any = self._redis.eval(_PUT_PLAN, len(keys), *keys, holder, orjson.dumps(plan), str(PLAN_TTL_S))
            return bool(int(await evaluated))

    async def get_plan(self) -> Plan | None:
        """See `MeshStore`."""
        async with self._turn():
            payload = await self._redis.get(subjects.PLAN_KEY)
        if not isinstance(payload, bytes):
            return None
        from spotwise.core.planner.plan import Plan

        plan: Plan = reader_of(Plan).validate_json(payload)
        return plan

    async def put_fleet(self, mesh: str, kept: KeptFleet) -> bool:
        """See `MeshStore`."""
        record = orjson.dumps(kept)
        async with self._turn():
            evaluated: Any = self._redis.eval(
                _PUT_FLEET, 1, subjects.fleet_key(mesh), str(kept.incarnation), record, str(FLEET_TTL_S)
            )
            return bool(int(await evaluated))

    async def get_fleet(self, mesh: str) -> KeptFleet | None:
        """See `MeshStore`."""
        async with self._turn():
            read: Any = self._redis.hget(subjects.fleet_key(mesh), "fleet")
            payload = await read
        if not isinstance(payload, bytes):
            return None
        from spotwise.core.fleet.keeper.kept import KeptFleet

        kept: KeptFleet = reader_of(KeptFleet).validate_json(payload)
        return kept

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._turns:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    yield
            except NoPermissionError as error:
                raise MeshError(
                    f"Redis: {error}; what each role may do is in libs/spotwise/wire/permissions.py: is this its user?"
                ) from error
            except (OSError, RedisError) as error:
                raise MeshError(f"Redis: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Disconnect; idempotent."""
        await self._redis.aclose()


def _member(fields: dict[str, object]) -> Member:
    fields["kind"] = MemberKind(str(fields["kind"]))
    fields["state"] = MemberState(str(fields["state"]))
    fields["pool"] = Pool(str(fields["pool"])) if fields["pool"] else None
    fields["load"] = None  # heartbeats carry loads
    quarantined = fields.pop("quarantined", ())  # the registration of an older process has none
    assert isinstance(quarantined, list | tuple)
    place = fields.pop("place", None)
    if isinstance(place, dict):
        layers, kv_heads = place.pop("layers"), place.pop("kv_heads")
        fields["place"] = DevicePlace(**place, layers=tuple(layers), kv_heads=tuple(kv_heads))
    cores = fields.pop("cores", None)
    if isinstance(cores, dict):
        fields["cores"] = ProcessCores(**{**cores, "nodes": tuple(cores["nodes"])})
    numerics = fields.pop("numerics", None)
    fields["numerics"] = Numerics(**numerics) if isinstance(numerics, dict) else None
    return Member(**fields, quarantined=tuple(QuarantinedPair(**pair) for pair in quarantined))  # type: ignore[arg-type]
