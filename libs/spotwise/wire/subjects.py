"""The NATS subjects and Redis keys of the mesh. An inbox has one subject per role of senders (`senders`), so that messages
between two members stay in order; a gateway has an inbox per incarnation. A gateway learns at once (no responders) that no
scheduler listens to `REQUESTS`. Submissions and closings share it, so that a scheduler receives a request's end after its
beginning. Every scheduler receives both, and the active one answers: so a gateway need not know which one that is. A
heartbeat's subject names the kind of its member, since a broker's permissions are patterns of subjects (`permissions`).
"""

from spotwise.core.messages.members import MemberKind
from spotwise.wire.roles import MeshRole

_ROOT = "spotwise.v1"
_INBOXES = f"{_ROOT}.inbox"
_ROLES = {role.value: role for role in MeshRole}

REQUESTS = f"{_ROOT}.scheduler.requests"  #: submissions and closings of requests
HEARTBEATS = f"{_ROOT}.heartbeat.*.*"  #: of all kinds and members
NOTICES = f"{_ROOT}.spot.notice"  #: interruption notices
INTERRUPTIONS = f"{_ROOT}.spot.interruption"  #: machines that are or may be interrupted, for planners
DRAIN = f"{_ROOT}.spot.drain"  #: requests a notice from the spot watcher
WATCHERS = "watchers"  #: queue group of `DRAIN`
OPERATOR = "operator"  #: first part of the ids of commands, which are no members
LOAD = f"{_ROOT}.load"  #: gateways' reports of their requests
FLEET = f"{_ROOT}.fleet.report"  #: instances that there are, and could be
FLEET_ORDERS = f"{_ROOT}.fleet.order"  #: what the planner has bought and given back
SHOW_FLEET = f"{_ROOT}.planner.fleet"  #: requests the planner's view of the fleet; the planner that acts replies
RESHAPE = f"{_ROOT}.planner.reshape"  #: requests another configuration; the planner that acts replies


def inbox(member_id: str, incarnation: int | None = None) -> str:
    """Return the pattern of the subjects of all messages to a member; a gateway's has its incarnation, so that it gets no
    predecessor's tokens.
    """
    return _inbox(member_id, incarnation, "*")


def inbox_from(sender: MeshRole, member_id: str, incarnation: int | None = None) -> str:
    """Return the subject of the messages of a role's members to a member."""
    return _inbox(member_id, incarnation, sender)


def _inbox(member_id: str, incarnation: int | None, sender: str) -> str:
    of = member_id if incarnation is None else f"{member_id}.{incarnation}"
    return f"{_INBOXES}.{of}.from.{sender}"


def is_inbox(subject: str) -> bool:
    """Tell whether a subject is of an inbox, or a pattern of such."""
    return subject.startswith(f"{_INBOXES}.")


def sender_of(subject: str) -> MeshRole | None:
    """Return the role that an inbox's subject names; `None`: it names none."""
    return _ROLES.get(subject.rpartition(".")[2])


def operator_id(pid: int) -> str:
    """Return the id under which a command gets answers: its inbox is in a part of the subjects that no member's is in."""
    return f"{OPERATOR}.{pid}"


def heartbeat(kind: MemberKind, member_id: str) -> str:
    """Return the subject of a member's heartbeats."""
    return f"{_ROOT}.heartbeat.{kind}.{member_id}"


def heartbeats_of(member_id: str) -> str:
    """Return the subject of the heartbeats of whatever member has this id."""
    return f"{_ROOT}.heartbeat.*.{member_id}"


def simulated_kv(worker_id: str) -> str:
    """Return the subject of a simulated worker's KV hand-offs."""
    return f"{_ROOT}.simulated_kv.{worker_id}"


def request_key(choice_id: str) -> str:
    """Return the Redis key of a request's record."""
    return f"spotwise:request:{choice_id}"


def ledger_key(choice_id: str) -> str:
    """Return the Redis key of an API request's ledger, shared by its choices."""
    return f"spotwise:ledger:{request_id_of(choice_id)}"


def clients_name(client_request_id: str) -> str:
    """Return what the ledger of a client's own `X-Request-Id` is kept as: no request's id is like it."""
    return f"client:{client_request_id}"


def request_id_of(choice_id: str) -> str:
    """Return the id of the API request that a choice belongs to."""
    return choice_id.split("#")[0]


def kept_request_key(request_id: str) -> str:
    """Return the Redis key of an API request's form and owner."""
    return f"spotwise:kept:{request_id}"


def kept_tokens_key(request_id: str) -> str:
    """Return the Redis key of an API request's tokens."""
    return f"spotwise:tokens:{request_id}"


def claim_key(claim: str) -> str:
    """Return the Redis key of an `Idempotency-Key`."""
    return f"spotwise:claim:{claim}"


def response_key(response_id: str) -> str:
    """Return the Redis key of a stored response."""
    return f"spotwise:response:{response_id}"


def room_key(kind: str) -> str:
    """Return the Redis key of the index of what is kept of a kind; those of its entries, sums and scopes begin with it."""
    return f"spotwise:room:{kind}"


def room_bytes_key(kind: str) -> str:
    """Return the Redis key of the sums of what is kept of a kind."""
    return f"{room_key(kind)}:bytes"


def member_key(member_id: str) -> str:
    """Return the Redis key of a member's registration."""
    return f"spotwise:member:{member_id}"


def incarnation_key(member_id: str) -> str:
    """Return the Redis key of the last incarnation of a member."""
    return f"spotwise:incarnation:{member_id}"


def numerics_claim_key(model: str) -> str:
    """Return the Redis key of the number format and order in which a model's workers compute; expires."""
    return f"spotwise:numerics:{model}"


def fleet_key(mesh: str) -> str:
    """Return the Redis key of the record of a mesh's fleet."""
    return f"spotwise:fleet:{mesh}"


def key_usage_key(name: str) -> str:
    """Return the Redis key of what an API key has used."""
    return f"spotwise:key-usage:{name}"


def key_usage_of(name: str, source: str) -> str:
    """Return the Redis key of what was counted of one gateway's reports on an API key."""
    return f"{key_usage_key(name)}:{source}"


def key_streams_key(name: str) -> str:
    """Return the Redis key of the leases of an API key's requests in flight."""
    return f"spotwise:key-streams:{name}"


def lease_key(service: str) -> str:
    """Return the Redis key of the process of a service that acts, `id/incarnation`; expires."""
    return f"spotwise:{service}:lease"


def term_key(service: str) -> str:
    """Return the Redis key of the number of a service's last term."""
    return f"spotwise:{service}:term"


def term_holder_key(service: str) -> str:
    """Return the Redis key of the process that had a service's last term, where it has not given it back."""
    return f"spotwise:{service}:term-holder"


KEYS_KEY = "spotwise:keys"  #: hash of the API keys' records by name
KEYS_REVISION_KEY = "spotwise:keys:revision"  #: raised by every change of them
KEYS_CHANGED_KEY = "spotwise:keys:changed"  #: hash of the revision of the last change of each, also of deleted ones
KEYS_USED_KEY = "spotwise:keys:used"  #: hash of the Unix seconds of their last use
SCHEDULER = "scheduler"  #: the service whose active process assigns requests
PLANNER = "planner"  #: the service whose active process moves requests and buys machines
PLAN_KEY = "spotwise:planner:plan"  #: the last plan
MEMBER_KEYS = member_key("*")
