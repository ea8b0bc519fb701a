"""A member of the mesh: it joins, sends heartbeats, answers health checks, and leaves. A service's main opens a `ServiceHost`,
connects its role to it and calls `run`. `open` owns bus, store and gRPC endpoint; members of a `ServiceGroup` share theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import structlog

from spotwise.core.messages.members import NEWS_INTERVAL_S, Member, MemberKind, MemberState
from spotwise.core.messages.mesh import LedgerEntry, Message, Tick
from spotwise.mesh.grpc.control import EngineView, HealthServer
from spotwise.mesh.ports.ports import BusMessage, MeshError, MeshStore, MessageBus, PayloadTooLargeError, Subscription
from spotwise.mesh.process.background_work import BackgroundWork
from spotwise.mesh.process.clock import MemberClock, SystemClock
from spotwise.mesh.process.logs import LoggedErrors
from spotwise.mesh.process.pulse import MISSED_BEATS, Attention
from spotwise.mesh.process.watchdog import Watchdog, WatchedPart
from spotwise.mesh.service.journal import Journal, make_role, shifted
from spotwise.mesh.service.metrics_server import Dropped, HostMetrics, served_metrics
from spotwise.mesh.service.outbox import Outbox, RepeatedMessages
from spotwise.mesh.service.registration import new_member, registration_ttl_s, wait_until_free
from spotwise.mesh.service.run import bus_and_store, call_on_stop_signals, control_access, control_server
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.message_codec import MalformedMessageError
from spotwise.wire.roles import ROLE_OF
from spotwise.wire.senders import may_send

_log = structlog.get_logger(__name__)

P = ParamSpec("P")
RoleT = TypeVar("RoleT")

#: Ledger entries kept while the store is unreachable; older ones are dropped first.
LEDGER_BACKLOG = 10_000
#: Limits of the watchdog that work may take which waits for broker or store: their own time-outs come first.
WAITS_TAKE = 4
#: A longer message is decoded in a thread: one with a prompt's log-probabilities takes tens of milliseconds.
_DECODED_BYTES = 64 << 10


class ServiceHost:
    """One member of the mesh, and its connections to the others."""

    def __init__(
        self,
        settings: ServiceSettings,
        bus: MessageBus,
        store: MeshStore,
        control: HealthServer,
        member: Member,
        clock: MemberClock | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.settings = settings
        self.bus = bus
        self.store = store
        self.control = control
        self.clock: MemberClock = clock or SystemClock()
        #: Of this process; one that nothing started ends nothing.
        self.watchdog = watchdog or Watchdog(None)
        self._member = member
        self._describe: Callable[[Member], Member] = lambda member: member
        self._stopping = asyncio.Event()
        self._has_news = asyncio.Event()
        self._attentions: list[Attention] = []
        self._ledger: list[LedgerEntry] = []
        self._outbox = Outbox()
        self.metrics = HostMetrics()
        self.metrics.watch("outbox_messages", lambda: len(self._outbox))
        self.metrics.watch("ledger_backlog", lambda: len(self._ledger))
        self.metrics.watch("background_tasks", lambda: len(self._work))
        self._registered_s = 0.0
        self._own_beat_s = time.monotonic()
        self._work = BackgroundWork(self.fail, self._watched)
        self._subscriptions: list[Subscription] = []
        self._journals: list[Journal] = []
        self._failure: MeshError | None = None
        self._parts: list[WatchedPart] = []
        self._replaced = False  # by a newer incarnation, which has the id now
        #: What the first stop signal does; a member that drains calls `stop` when it holds nothing.
        self.leave: Callable[[], None] = self.stop

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        settings: ServiceSettings,
        kind: MemberKind,
        engines: EngineView | None = None,
    ) -> AsyncIterator[ServiceHost]:
        """Connect to broker and store, listen for health checks, and register as STARTING; raises `MeshError` where broker or
        store do not answer, the port is taken, or the id is in use."""
        watchdog = Watchdog(settings.stuck_after_s or None, pulse_file=settings.pulse_file)
        async with watchdog.watching(), bus_and_store(settings) as (bus, store):
            # Before the port is taken: a predecessor's address may be the same.
            access = control_access(settings)
            await wait_until_free(
                store, settings.service_id, registration_ttl_s(settings), settings.heartbeat_s, access
            )
            async with control_server(settings, engines) as control:
                member = await new_member(settings, kind, control.port, store)
                host = cls(settings, bus, store, control, member, None, watchdog)
                port, setting = settings.member_metrics
                with served_metrics(host.metrics.registry, settings.bind_host, port, setting):
                    async with host.joined():
                        yield host

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[ServiceHost]:
        """Register, and leave at the end of the block; raises `MeshError` where broker or store do not answer."""
        await self._register()
        await self._beat()
        undo_goodbye = self.watchdog.say_goodbye_with(lambda stuck: self.spawn(self._be_unhealthy(), "goodbye"))
        await self.listen(subjects.heartbeats_of(self.id), self._own_heartbeat)
        self._work.repeat(self._beat_is_due, self._beat, "heartbeat")  # also while it starts, which takes a model long
        self.spawn(self._empty_outbox(), "outbox")
        self.every(self.settings.heartbeat_s, self._write_store, "books")
        try:
            yield self
        finally:
            await self._end()
            undo_goodbye()

    @property
    def id(self) -> str:
        """This member's id."""
        return self._member.id

    @property
    def member(self) -> Member:
        """This member, as in its next heartbeat."""
        return shifted(self._describe(self._member), self.clock.ahead_s)

    @property
    def receives(self) -> bool:
        """Whether the broker's messages arrive here: this member's own heartbeats do, as far as known."""
        return time.monotonic() - self._own_beat_s < MISSED_BEATS * self.settings.heartbeat_s

    def describe_with(self, describe: Callable[[Member], Member]) -> None:
        """Let `describe` fill in state and load for each heartbeat."""
        self._describe = describe

    def introduce(self, **fields: Any) -> None:
        """Set fields of this member: pool, transfer address, model."""
        self._member = replace(self._member, **fields)

    def make_role(
        self, role_type: Callable[P, RoleT], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[RoleT, Journal | None]:
        """Make this member's role, and its journal, if any; raises `MeshError` where that cannot be written."""
        return self.make_further_role("", role_type, *args, **kwargs)

    def make_further_role(
        self, suffix: str, role_type: Callable[P, RoleT], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[RoleT, Journal | None]:
        """Make another role of this member; `suffix` is added to the member's id in the name of its journal."""
        member = replace(self._member, id=self._member.id + suffix)
        try:
            role, journal = make_role(self.settings.journal, member, role_type, *args, **kwargs)
        except OSError as error:
            raise MeshError(f"the journal cannot be written (SPOTWISE_JOURNAL): {error}") from error
        if journal is not None:
            self._journals.append(journal)
        return role, journal

    def post(self, subject: str, message: Message) -> None:
        """Publish in the background, in order; raises `PayloadTooLargeError` where the broker would refuse it."""
        payload = encode(message)
        if len(payload) > self.bus.max_payload_bytes:
            raise PayloadTooLargeError(
                f"a {type(message).__name__} of {len(payload)} bytes exceeds the broker's max_payload "
                f"of {self.bus.max_payload_bytes} bytes"
            )
        self._outbox.put(subject, payload)

    def send(self, recipient_id: str, message: Message, incarnation: int | None = None) -> None:
        """Post a message to a member's inbox; a gateway has one inbox per incarnation."""
        self.post(subjects.inbox_from(ROLE_OF[self._member.kind], recipient_id, incarnation), message)

    async def _empty_outbox(self) -> None:
        publishing = self._watched("outbox")
        while True:
            subject, payload = await self._outbox.take()
            try:
                with publishing.work():
                    await self.bus.publish(subject, payload)
            except MeshError as error:
                _log.error("message_lost", subject=subject, error=str(error))
            finally:
                self._outbox.sent()

    async def listen(
        self,
        subject: str,
        handler: Callable[[Any, BusMessage], Awaitable[None]],
        queue: str = "",
        expects: Iterable[type] | None = None,
    ) -> None:
        """Decode the messages on `subject` and call `handler` for each, one at a time; those that are not of a type in
        `expects`, heartbeats of another member than the subject's, and what the role in an inbox's subject may not send are
        counted and dropped.
        """
        if subject.startswith(subjects.HEARTBEATS.partition("*")[0]):
            expects = (Member,)
        expected = None if expects is None else frozenset(expects)
        repeated = RepeatedMessages() if subject == subjects.HEARTBEATS else None
        is_inbox = subjects.is_inbox(subject)
        part = self._watched(f"messages on {subject}")

        async def on_message(raw: BusMessage) -> None:
            try:
                if len(raw.payload) > _DECODED_BYTES:
                    message = await asyncio.to_thread(decode, raw.payload)
                else:
                    message = decode(raw.payload) if repeated is None else repeated.decode(raw)
            except MalformedMessageError as error:
                self._dropped(Dropped.MALFORMED, raw, str(error))
                return
            if expected is not None and type(message) not in expected:
                self._dropped(Dropped.UNEXPECTED, raw, type(message).__name__)
            elif isinstance(message, Member) and raw.subject != subjects.heartbeat(message.kind, message.id):
                # The broker lets a sender publish under its own kind only, so the subject is what it may claim to be.
                self._dropped(Dropped.WRONG_SENDER, raw, message.id)
            elif is_inbox and not may_send(subjects.sender_of(raw.subject), message):
                self._dropped(Dropped.WRONG_SENDER, raw, type(message).__name__)
            else:
                with LoggedErrors(raw.subject, self.count_failure), part.work():
                    await _not_cancelled(handler(message, raw), raw.subject)

        self._subscriptions.append(await self.bus.subscribe(subject, on_message, queue))

    def _dropped(self, reason: Dropped, raw: BusMessage, detail: str) -> None:
        times = self.metrics.dropped(reason)
        if times & (times - 1) == 0:  # 1, 2, 4, 8, ...: their sender does not fill the log
            _log.warning("message_dropped", reason=reason.value, subject=raw.subject, error=detail[:200], times=times)

    def count_failure(self) -> None:
        """Count an event whose handling raised."""
        self.metrics.dropped(Dropped.FAILED)

    def record(self, entry: LedgerEntry) -> None:
        """Append to a request's ledger in the background; entries are written in batches."""
        self._ledger.append(entry)

    def spawn(self, work: Awaitable[Any], name: str) -> None:
        """Run work in the background; its failure ends the service, since nothing else would notice it."""
        self._work.spawn(work, name)

    def _watched(self, name: str) -> WatchedPart:
        part = self.watchdog.part(f"{self.id}: {name}", WAITS_TAKE * self.settings.stuck_after_s or None)
        self._parts.append(part)
        return part

    async def _be_unhealthy(self) -> None:
        await self.control.set_serving(False)

    def every(self, interval_s: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Call `work` periodically; broker or store errors are logged, and the next call retries."""
        self._work.repeat(lambda: asyncio.sleep(interval_s), work, name)

    def keep_time(self, tick_s: float, look: Callable[[Tick], None]) -> None:
        """Call `look` every `tick_s` with a tick, for a role's deadlines; a tick has the seconds without reception."""
        attention = Attention(self.settings.heartbeat_s, tick_s)
        self._attentions.append(attention)

        async def tick() -> None:
            look(Tick(attention.away_s()))

        self.every(tick_s, tick, "tick")

    def stop(self) -> None:
        """End `run`; idempotent."""
        self._stopping.set()

    def fail(self, reason: str) -> None:
        """End `run` with an error, so that the supervisor restarts the process."""
        self._failure = MeshError(reason)
        self.stop()

    async def run(self) -> None:
        """Serve until `stop`; SIGTERM or SIGINT calls `leave`, a second one `stop`. Raises as `serve`."""
        call_on_stop_signals(self.leave, self.stop)
        await self.serve()

    async def serve(self) -> None:
        """Serve until `stop`; raises `MeshError` where background work failed, or a newer process has this id."""
        self._member = replace(self._member, state=MemberState.READY)
        await self.control.set_serving(True)
        self.watchdog.watch_loop()
        await self._register()
        await self._beat()
        _log.info("ready", kind=self._member.kind.value, grpc=self._member.grpc_address)
        await self._stopping.wait()
        await self.control.set_serving(False)
        if self._failure is not None:
            raise self._failure

    async def _own_heartbeat(self, member: Member, _raw: BusMessage) -> None:
        self._own_beat_s = time.monotonic()
        for attention in self._attentions:
            attention.received_own_heartbeat()
        if member.incarnation > self._member.incarnation and not self._replaced:
            self._replaced = True
            self.fail(f"the id {self.id!r} is in use by a newer pid {member.pid} on {member.host}")

    def beat_soon(self) -> None:
        """Send a heartbeat early, because of news; news within `NEWS_INTERVAL_S` share one."""
        self._has_news.set()

    async def _beat_is_due(self) -> None:
        period_s = self.settings.heartbeat_s
        await asyncio.sleep(min(NEWS_INTERVAL_S, period_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(period_s - NEWS_INTERVAL_S):
                await self._has_news.wait()
        self._has_news.clear()

    async def _beat(self) -> None:
        """Send a heartbeat; never behind the store, whose outage must not make this member look lost."""
        if (ahead_s := self.clock.look()) is not None:
            _log.warning("clock_set", ahead_s=round(ahead_s, 3))
        member = self.member
        await self.bus.publish(subjects.heartbeat(member.kind, member.id), encode(member))

    async def _write_store(self) -> None:
        if not self._replaced and self.clock.now() - self._registered_s >= self.settings.member_timeout_s / 2:
            await self._register()
        if self._ledger:
            entries, self._ledger = self._ledger, []
            try:
                await self.store.append_ledger(*entries)
            except MeshError:
                self._ledger = (entries + self._ledger)[-LEDGER_BACKLOG:]
                raise

    async def _register(self) -> None:
        self._registered_s = self.clock.now()
        await self.store.register(self.member, registration_ttl_s(self.settings))

    async def _end(self) -> None:
        """Send what is pending, then LEFT, so that peers need not wait for the heartbeat time-out."""
        self._work.ends()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._outbox.emptied()
        await self._work.end()
        # The bus may have other users, and a member that has left must receive nothing.
        for subscription in self._subscriptions:
            with contextlib.suppress(MeshError, OSError):
                await subscription.unsubscribe()
        self._member = replace(self._member, state=MemberState.LEFT)
        self._describe = lambda member: member
        with contextlib.suppress(MeshError, OSError):
            await self._beat()
            await self._write_store()
            if not self._replaced:
                await self.store.unregister(self.id)
        for journal in self._journals:
            journal.close()
        for part in self._parts:
            self.watchdog.forget(part)
        _log.info("left")


async def _not_cancelled(work: Awaitable[None], subject: str) -> None:
    """Await a handler; a cancellation that leaked out of something it awaited would end its subscription without a word."""
    try:
        await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        _log.error("handler_cancelled", subject=subject)
