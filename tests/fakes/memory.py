"""In-memory bus, store and clock, for unit tests only (`memory_kv`: the KV transport). Each keeps its port's contract, errors
included; the contract tests run against it and the real adapter. All users of one share an event loop. Nothing is encoded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import structlog

from spotwise.core.access.store_budget import Kind, RoomUse, StoreBudget
from spotwise.core.fleet.keeper.kept import KeptFleet
from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.core.planner.plan import Plan
from spotwise.mesh.ports.ports import BusMessage, MeshError, NoResponderError, PayloadTooLargeError, ReplyTimeoutError
from spotwise.mesh.process.clock import Clock, SystemClock
from spotwise.mesh.redis.ledgers import LEDGER_MAX_ENTRIES
from spotwise.wire import subjects
from tests.fakes.memory_keys import MemoryKeys
from tests.fakes.memory_requests import MemoryRequests
from tests.fakes.memory_responses import MemoryResponses

_log = structlog.get_logger(__name__)

_DEFAULT_BUDGET = StoreBudget()
_Handler: TypeAlias = Callable[[BusMessage], Awaitable[None]]


class FakeClock:
    """A clock that only a test advances; `ahead_s`: of its wall clock, which only a test sets."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self._now_s = now_s
        self.ahead_s = 0.0

    def now(self) -> float:
        """Return the time set, in Unix seconds."""
        return self._now_s

    def wall(self) -> float:
        """Return Unix time in seconds, by the wall clock."""
        return self._now_s + self.ahead_s

    def look(self) -> float | None:
        """Find nothing new."""
        return None

    def advance(self, seconds: float) -> None:
        """Advance time; raises `ValueError` where time would go back."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds:g} s")
        self._now_s += seconds


class MemoryBroker:
    """The subscriptions and the payload limit that several `MemoryBus` connections share."""

    def __init__(self, max_payload_bytes: int = 1 << 20) -> None:
        self.max_payload_bytes = max_payload_bytes
        self._subscriptions: list[_MemorySubscription] = []
        self._turns: defaultdict[tuple[str, str], itertools.count[int]] = defaultdict(itertools.count)

    def add(self, subscription: _MemorySubscription) -> None:
        """Add a subscription."""
        self._subscriptions.append(subscription)

    def remove(self, subscription: _MemorySubscription) -> None:
        """Remove a subscription; idempotent."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def route(self, message: BusMessage) -> int:
        """Queue a message for every subscriber, and one of each queue group in turn; return their number."""
        receivers: list[_MemorySubscription] = []
        groups: defaultdict[tuple[str, str], list[_MemorySubscription]] = defaultdict(list)
        for subscription in self._subscriptions:
            if not _matches(subscription.subject, message.subject):
                continue
            if subscription.queue:
                groups[subscription.subject, subscription.queue].append(subscription)
            else:
                receivers.append(subscription)
        receivers += [members[next(self._turns[group]) % len(members)] for group, members in groups.items()]
        for receiver in receivers:
            receiver.take(message)
        return len(receivers)


class _MemorySubscription:
    def __init__(self, broker: MemoryBroker, subject: str, handler: _Handler, queue: str) -> None:
        self.subject = subject
        self.queue = queue
        self._broker = broker
        self._handler = handler
        self._arrived: asyncio.Queue[BusMessage] = asyncio.Queue()
        self._task = asyncio.create_task(self._handle_all(), name=f"memory-bus {subject}")
        broker.add(self)

    def take(self, message: BusMessage) -> None:
        self._arrived.put_nowait(message)

    async def unsubscribe(self) -> None:
        """Stop receiving; idempotent. Messages that wait for the handler are dropped."""
        self._broker.remove(self)
        while not self._arrived.empty():
            self._arrived.get_nowait()
            self._arrived.task_done()

    async def drain(self) -> None:
        """Stop receiving, handle what has arrived, and end."""
        self._broker.remove(self)
        await self._arrived.join()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _handle_all(self) -> None:
        while True:
            message = await self._arrived.get()
            try:
                await self._handler(message)
            except Exception as error:
                # As the real client: a handler's exception is logged, and the next message is handled.
                _log.warning("memory_bus_error", subject=message.subject, error=str(error))
            finally:
                self._arrived.task_done()


class MemoryBus:
    """One connection to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._subscriptions: list[_MemorySubscription] = []
        self._closed = False

    @property
    def max_payload_bytes(self) -> int:
        """Largest message that the broker carries."""
        return self._broker.max_payload_bytes

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send without waiting for receivers."""
        self._check(subject, payload)
        self._broker.route(BusMessage(subject, payload))

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Send and wait for one answer; later ones are dropped."""
        self._check(subject, payload)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def respond(reply: bytes) -> None:
            if not answer.done():
                answer.set_result(reply)

        if not self._broker.route(BusMessage(subject, payload, respond)):
            raise NoResponderError(f"{subject} has no subscriber")
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise ReplyTimeoutError(f"no answer on {subject} within {timeout_s:g} s") from None

    async def subscribe(self, subject: str, handler: _Handler, queue: str = "") -> _MemorySubscription:
        """Call `handler` for each message, one at a time, in order; `*` matches one token, `>` raises `ValueError`."""
        if ">" in subject:
            raise ValueError(f"{subject}: the in-memory bus knows the wildcard * only")
        self._check(subject)
        subscription = _MemorySubscription(self._broker, subject, handler, queue)
        self._subscriptions.append(subscription)
        return subscription

    def when_reconnected(self, act: Callable[[], None]) -> None:
        """Do nothing: this bus never disconnects."""

    async def close(self) -> None:
        """Let the handlers finish what has arrived, and disconnect; idempotent."""
        self._closed = True
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(subscription.drain() for subscription in subscriptions))

    def _check(self, subject: str, payload: bytes = b"") -> None:
        if self._closed:
            raise MeshError(f"cannot use {subject}: the connection is closed")
        limit = self.max_payload_bytes
        if len(payload) > limit:
            raise PayloadTooLargeError(
                f"a message of {len(payload)} bytes for {subject} exceeds the broker's max_payload of {limit} bytes"
            )


def _matches(pattern: str, subject: str) -> bool:
    expected, tokens = pattern.split("."), subject.split(".")
    return len(expected) == len(tokens) and all(
        each in ("*", token) for each, token in zip(expected, tokens, strict=True)
    )


def _succeeds(holder: str, other: str) -> bool:
    """Tell whether a process is a later incarnation of another's id."""
    (id_, _, incarnation), (other_id, _, other_incarnation) = holder.rpartition("/"), other.rpartition("/")
    return id_ == other_id and int(incarnation) > int(other_incarnation)


class MemoryStore(MemoryRequests):
    """Records, ledgers and registrations in dictionaries; registrations, and what is kept, expire by `clock`."""

    def __init__(self, clock: Clock | None = None, budget: StoreBudget = _DEFAULT_BUDGET) -> None:
        self._clock = clock or SystemClock()
        super().__init__(self._clock, budget)
        self.keys = MemoryKeys(self._clock)
        self.responses = MemoryResponses(self._clock, budget)
        self._ledgers: defaultdict[str, deque[LedgerEntry]] = defaultdict(lambda: deque(maxlen=LEDGER_MAX_ENTRIES))
        self._members: dict[str, tuple[Member, float]] = {}
        self._incarnations: dict[str, int] = {}
        self._numerics: dict[str, tuple[str, float]] = {}
        self._leases: dict[str, tuple[str, float]] = {}
        self._terms: dict[str, tuple[int, str]] = {}  # number, and the process that had it
        self._plan: Plan | None = None
        self._fleets: dict[str, KeptFleet] = {}

    async def append_ledger(self, *entries: LedgerEntry) -> None:
        """Append to the ledgers of the requests that the entries are about; they have all the room they need."""
        for entry in entries:
            self._ledgers[subjects.ledger_key(entry.choice_id)].append(entry)

    async def get_ledger(self, choice_id: str) -> list[LedgerEntry]:
        """Return an API request's ledger in order of time; empty where there is none."""
        return sorted(self._ledgers.get(subjects.ledger_key(choice_id), ()), key=lambda entry: entry.at_s)

    async def room_use(self) -> dict[Kind, RoomUse]:
        shelves = {Kind.RECORDS: self.records, Kind.REQUESTS: self.requests, Kind.RESPONSES: self.responses.shelf}
        used = {kind: shelf.used_bytes for kind, shelf in shelves.items()}
        return {kind: RoomUse(used.get(kind, 0), self._budget.room(kind).all_bytes) for kind in Kind}

    async def register(self, member: Member, ttl_s: float) -> None:
        """Write a registration that expires after `ttl_s`."""
        self._members[member.id] = (member, self._clock.now() + ttl_s)
        self._incarnations[member.id] = member.incarnation

    async def next_incarnation(self, member_id: str, at_least: int) -> int:
        """Return a number above those of all members that had this id, and not below `at_least`."""
        number = self._incarnations[member_id] = max(at_least, self._incarnations.get(member_id, 0) + 1)
        return number

    async def unregister(self, member_id: str) -> None:
        """Remove a registration; idempotent."""
        self._members.pop(member_id, None)

    async def members(self) -> list[Member]:
        """Return the registered members in order of id, without their loads."""
        now = self._clock.now()
        return [replace(member, load=None) for _, (member, ends_s) in sorted(self._members.items()) if now < ends_s]

    async def registered(self, member_ids: Sequence[str]) -> list[Member]:
        """Return those of some members that are registered, in the order of their ids here, without their loads."""
        known = {member.id: member for member in await self.members()}
        return [known[member_id] for member_id in member_ids if member_id in known]

    async def hold_term(self, service: str, holder: str, at_least: int, lease_s: float) -> int | None:
        now = self._clock.now()
        held_by, ends_s = self._leases.get(service, (holder, 0.0))
        if held_by != holder and now < ends_s and not _succeeds(holder, held_by):
            return None
        term, had_it = self._terms.get(service, (0, ""))
        if had_it != holder:
            term = max(term + 1, at_least)
        self._leases[service], self._terms[service] = (holder, now + lease_s), (term, holder)
        return term

    async def end_term(self, service: str, holder: str) -> None:
        if self._leases.get(service, ("", 0.0))[0] == holder:
            del self._leases[service]
        term, had_it = self._terms.get(service, (0, ""))
        if had_it == holder:
            self._terms[service] = (term, "")

    async def claim_numerics(self, model: str, numerics: str, ttl_s: float) -> str:
        now = self._clock.now()
        claimed, ends_s = self._numerics.get(model, (numerics, 0.0))
        if now >= ends_s or claimed == numerics:
            claimed = numerics
            self._numerics[model] = numerics, now + ttl_s
        return claimed

    async def put_plan(self, holder: str, plan: Plan) -> bool:
        held_by, ends_s = self._leases.get(subjects.PLANNER, ("", 0.0))
        if held_by != holder or ends_s <= self._clock.now():
            return False
        self._plan = plan
        return True

    async def get_plan(self) -> Plan | None:
        return self._plan

    async def put_fleet(self, mesh: str, kept: KeptFleet) -> bool:
        known = self._fleets.get(mesh)
        if known is not None and known.incarnation > kept.incarnation:
            return False
        self._fleets[mesh] = kept
        return True

    async def get_fleet(self, mesh: str) -> KeptFleet | None:
        return self._fleets.get(mesh)

    async def close(self) -> None:
        """Disconnect; idempotent."""
