"""Every NATS subject of the mesh, and every Redis key, in one place.

An inbox is one subject per member (of a gateway, per incarnation), so that what one sender tells one receiver stays in order.
`REQUESTS` is shared: schedulers form a queue group, and a gateway learns at once (no responders) that there is none.
Submissions and closings are both on it, so that a scheduler hears of a request's end after its beginning.
"""

_ROOT = "spotwise.v1"

REQUESTS = f"{_ROOT}.scheduler.requests"  #: submissions and closings of requests
SCHEDULERS = "schedulers"  #: queue group of `REQUESTS`
HEARTBEATS = f"{_ROOT}.heartbeat.*"
NOTICES = f"{_ROOT}.spot.notice"  #: interruption notices, to everyone who cares
INTERRUPTIONS = f"{_ROOT}.spot.interruption"  #: what is known of machines that go or may go, for whoever plans
DRAIN = f"{_ROOT}.spot.drain"  #: asks the spot watcher to raise a notice
WATCHERS = "watchers"  #: queue group of `DRAIN`


def inbox(member_id: str, incarnation: int | None = None) -> str:
    """Return the subject on which a member hears its messages.

    A gateway's is that of one incarnation: what was meant for the one before it, tokens above all, must reach nobody else.
    """
    return f"{_ROOT}.inbox.{member_id}" if incarnation is None else f"{_ROOT}.inbox.{member_id}.{incarnation}"


def heartbeat(member_id: str) -> str:
    """Return the subject of a member's heartbeats."""
    return f"{_ROOT}.heartbeat.{member_id}"


def simulated_kv(worker_id: str) -> str:
    """Return the subject on which a simulated worker hears of KV that nobody moves."""
    return f"{_ROOT}.simulated_kv.{worker_id}"


def request_key(choice_id: str) -> str:
    """Return the Redis key of a request's record."""
    return f"spotwise:request:{choice_id}"


def ledger_key(choice_id: str) -> str:
    """Return the Redis key of an API request's ledger, shared by its choices."""
    return f"spotwise:ledger:{choice_id.split('#')[0]}"


def member_key(member_id: str) -> str:
    """Return the Redis key of a member's registration."""
    return f"spotwise:member:{member_id}"


def incarnation_key(member_id: str) -> str:
    """Return the Redis key of the last incarnation of a member."""
    return f"spotwise:incarnation:{member_id}"


MEMBER_KEYS = member_key("*")
