"""Permissions on broker and store: one table for all roles.

A subject or a key in the table may hold `{id}`, the member's id. A user of one member has its id there, a user of a whole role
(workers, whose ids are chosen while the mesh runs) a `*`. `mesh.server_configs` writes servers' configuration from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.access.store_budget import Kind
from spotwise.wire import subjects
from spotwise.wire.roles import MEMBERS, ROLE_OF, MeshRole

_ID = "{id}"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user of broker and store: one member, or, without an id, all processes of a role."""

    role: MeshRole
    member_id: str | None = None

    @property
    def name(self) -> str:
        """Its user name; of a member `role.id`."""
        return self.role.value if self.member_id is None else f"{self.role}.{self.member_id}"


#: Who looks into an embedded store by hand: all commands on all keys. No process logs in as it.
ADMIN = Principal(MeshRole.OPERATOR, "admin")


@dataclass(frozen=True, slots=True)
class SubjectRule:
    """The subjects on which a principal may publish and subscribe."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def reply_prefix(user_name: str) -> str:
    """Return the prefix of the subjects on which a user receives replies to its requests."""
    return f"_INBOX.{user_name}"


def _replies_to(role: MeshRole) -> str:
    # NATS's own permission to reply is one for any subject: the sender of a message names it, and a member may send to itself.
    return f"{reply_prefix(role)}.>"


def _to_members(sender: MeshRole) -> str:
    return subjects.inbox_from(sender, "*")


def _to_gateways(sender: MeshRole) -> str:
    return subjects.inbox_from(sender, "*.*")


_OWN_INBOX = subjects.inbox(_ID)

#: Beside it, each member may publish its heartbeats and receive those of all, and receive replies to its own requests.
_SUBJECTS: Mapping[MeshRole, SubjectRule] = {
    MeshRole.GATEWAY: SubjectRule(
        publish=(subjects.REQUESTS, subjects.LOAD, _to_members(MeshRole.GATEWAY)),
        subscribe=(subjects.inbox(f"{_ID}.*"),),
    ),
    MeshRole.SCHEDULER: SubjectRule(
        publish=(
            _to_members(MeshRole.SCHEDULER),
            _to_gateways(MeshRole.SCHEDULER),
            _replies_to(MeshRole.GATEWAY),
        ),
        subscribe=(_OWN_INBOX, subjects.REQUESTS, subjects.FLEET),
    ),
    MeshRole.WORKER: SubjectRule(
        publish=(
            _to_members(MeshRole.WORKER),
            _to_gateways(MeshRole.WORKER),
            subjects.simulated_kv("*"),
            _replies_to(MeshRole.WORKER),
        ),
        subscribe=(_OWN_INBOX, subjects.NOTICES, subjects.simulated_kv(_ID)),
    ),
    MeshRole.PLANNER: SubjectRule(
        publish=(
            _to_members(MeshRole.PLANNER),
            subjects.NOTICES,
            subjects.FLEET_ORDERS,
            _replies_to(MeshRole.OPERATOR),
        ),
        subscribe=(
            _OWN_INBOX,
            subjects.INTERRUPTIONS,
            subjects.LOAD,
            subjects.FLEET,
            subjects.RESHAPE,
            subjects.SHOW_FLEET,
        ),
    ),
    MeshRole.WATCHER: SubjectRule(
        publish=(
            subjects.HEARTBEATS,  # it reports members of its machine whose processes have ended
            subjects.NOTICES,
            subjects.INTERRUPTIONS,
            subjects.FLEET,
            _replies_to(MeshRole.OPERATOR),
        ),
        subscribe=(subjects.DRAIN, subjects.INTERRUPTIONS, subjects.FLEET_ORDERS),
    ),
    MeshRole.OPERATOR: SubjectRule(
        publish=(subjects.DRAIN, subjects.RESHAPE, subjects.SHOW_FLEET, _to_members(MeshRole.OPERATOR)),
        subscribe=(subjects.HEARTBEATS, subjects.inbox(f"{subjects.OPERATOR}.*")),
    ),
}


def subject_rule(principal: Principal) -> SubjectRule:
    """Return all subjects of a principal."""
    own = _SUBJECTS[principal.role]
    publish, subscribe = list(own.publish), list(own.subscribe)
    if principal.role in MEMBERS:
        publish += [subjects.heartbeat(kind, _ID) for kind, role in ROLE_OF.items() if role is principal.role]
        subscribe.append(subjects.HEARTBEATS)
    subscribe.append(f"{reply_prefix(principal.name)}.>")
    member_id = principal.member_id or "*"
    return SubjectRule(
        tuple(each.replace(_ID, member_id) for each in publish),
        tuple(each.replace(_ID, member_id) for each in subscribe),
    )


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Commands by which roles use keys. A script needs `eval` and the commands that it calls."""

    keys: tuple[str, ...]
    commands: Mapping[MeshRole, str]


def _term_keys(service: str) -> tuple[str, ...]:
    return subjects.lease_key(service), subjects.term_key(service), subjects.term_holder_key(service)


#: What scripts do with the room of what is kept.
_OF_ROOMS = "eval zadd zrem zrange zrangebyscore hget hset hdel hincrby pttl pexpire"


def _room_keys(kind: Kind) -> tuple[str, ...]:
    return subjects.room_key(kind), f"{subjects.room_key(kind)}:*"


#: The keys of the mesh. A new key gets a rule here, or no service can use it.
KEY_RULES: tuple[KeyRule, ...] = (
    KeyRule((subjects.member_key(_ID), subjects.incarnation_key(_ID)), dict.fromkeys(MEMBERS, "set get del eval")),
    KeyRule((subjects.MEMBER_KEYS,), {**dict.fromkeys(MEMBERS, "get mget"), MeshRole.OPERATOR: "get mget"}),
    KeyRule(
        (subjects.ledger_key("*"),),
        {
            **dict.fromkeys(MEMBERS, "eval rpush lpop pexpire del"),
            MeshRole.GATEWAY: "eval rpush lpop pexpire del lrange",
            MeshRole.OPERATOR: "lrange",
        },
    ),
    KeyRule(_room_keys(Kind.LEDGERS), dict.fromkeys(MEMBERS, _OF_ROOMS)),
    KeyRule((subjects.request_key("*"),), {MeshRole.GATEWAY: "eval get set del", MeshRole.WORKER: "get"}),
    KeyRule(
        (subjects.kept_request_key("*"), subjects.kept_tokens_key("*"), subjects.claim_key("*")),
        {
            MeshRole.GATEWAY: "eval get set del exists ttl hget hmget hgetall hset hdel hexists hkeys lrange rpush "
            "expire pexpire",
        },
    ),
    KeyRule((subjects.response_key("*"),), {MeshRole.GATEWAY: "eval exists hset hmget del pexpire"}),
    *(KeyRule(_room_keys(kind), {MeshRole.GATEWAY: _OF_ROOMS}) for kind in Kind if kind is not Kind.LEDGERS),
    KeyRule(
        tuple(subjects.room_bytes_key(kind) for kind in Kind), {MeshRole.GATEWAY: "hmget", MeshRole.OPERATOR: "hmget"}
    ),
    KeyRule(
        (subjects.KEYS_KEY, subjects.KEYS_REVISION_KEY, subjects.KEYS_CHANGED_KEY, subjects.KEYS_USED_KEY),
        {
            MeshRole.GATEWAY: "eval get set hget hgetall hvals hset hdel",
            MeshRole.OPERATOR: "eval get set hget hgetall hvals hset hdel hexists hlen",
        },
    ),
    KeyRule(
        (subjects.key_usage_key("*"), subjects.key_streams_key("*")),
        {
            MeshRole.GATEWAY: "eval hget hmget hgetall hset expire zadd zrem zremrangebyscore zcard get set del",
            MeshRole.OPERATOR: "eval hmget hgetall del zcard",
        },
    ),
    KeyRule((subjects.numerics_claim_key("*"),), {MeshRole.WORKER: "eval get set del"}),
    KeyRule(_term_keys(subjects.SCHEDULER), {MeshRole.SCHEDULER: "eval get set del"}),
    KeyRule(_term_keys(subjects.PLANNER), {MeshRole.PLANNER: "eval get set del"}),
    KeyRule(
        (subjects.PLAN_KEY,), {MeshRole.PLANNER: "eval get set del", MeshRole.WORKER: "get", MeshRole.OPERATOR: "get"}
    ),
    KeyRule((subjects.fleet_key("*"),), {MeshRole.WATCHER: "eval hget hset expire del"}),
)

#: Commands of every role that use no key; `scan` shows names of keys, but no contents.
KEYLESS_COMMANDS = ("ping", "select", "echo", "scan", "multi", "exec", "discard", "time", "wait")
_READS = frozenset(
    {
        "get",
        "mget",
        "hget",
        "hmget",
        "hgetall",
        "hvals",
        "hkeys",
        "hlen",
        "hexists",
        "lrange",
        "exists",
        "ttl",
        "pttl",
        "zcard",
        "zrange",
        "zrangebyscore",
        "zscore",
    }
)


@dataclass(frozen=True, slots=True)
class StoreRule:
    """What a principal may do in the store.

    Attributes:
        access: reads and writes that are allowed, by pattern of keys.
    """

    commands: tuple[str, ...]
    access: Mapping[str, tuple[bool, bool]]


def store_rule(principal: Principal) -> StoreRule:
    """Return the commands and keys of a principal."""
    commands = dict.fromkeys(KEYLESS_COMMANDS)
    access: dict[str, tuple[bool, bool]] = {}
    for rule in KEY_RULES:
        given = rule.commands.get(principal.role, "").split()
        if not given:
            continue
        commands.update(dict.fromkeys(given))
        if "eval" in given:
            commands["evalsha"] = None
        reads = any(command in _READS or command == "eval" for command in given)
        writes = any(command not in _READS for command in given)
        for key in rule.keys:
            pattern = key.replace(_ID, principal.member_id or "*")
            # Where no id is known, a pattern comes twice: what is written of one member, and read of all.
            also_reads, also_writes = access.get(pattern, (False, False))
            access[pattern] = reads or also_reads, writes or also_writes
    return StoreRule(tuple(commands), access)
