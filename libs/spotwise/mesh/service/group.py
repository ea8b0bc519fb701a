"""Several members of the mesh in one process, which share one bus, one store and one gRPC endpoint. Each member has its id,
inbox, heartbeats and registration.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import grpc
import structlog

from spotwise.core.messages.members import MemberKind
from spotwise.mesh.grpc.control import ControlServer, EngineView, SharedHealth
from spotwise.mesh.ports.ports import MeshError, MeshStore, MessageBus
from spotwise.mesh.process.watchdog import Watchdog
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.registration import new_member, registration_ttl_s, wait_until_free
from spotwise.mesh.service.run import bus_and_store, call_on_stop_signals, control_access, control_server
from spotwise.mesh.service.settings import ServiceSettings

#: A member's work while it is in the mesh.
ServiceMember = Callable[[ServiceHost], AbstractAsyncContextManager[None]]


class ServiceGroup:
    """The connections that some members share."""

    def __init__(
        self, settings: ServiceSettings, bus: MessageBus, store: MeshStore, control: ControlServer, watchdog: Watchdog
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._store = store
        self._control = control
        self._health = SharedHealth(control)
        self._watchdog = watchdog
        self._hosts: dict[str, ServiceHost] = {}
        self._stopping = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, settings: ServiceSettings, engines: EngineView, device: grpc.GenericRpcHandler | None = None
    ) -> AsyncIterator[ServiceGroup]:
        """Connect to broker and store, and listen for health checks, and for orders to a device; raises `MeshError` where
        broker or store do not answer, or the port is taken.
        """
        watchdog = Watchdog(settings.stuck_after_s or None, pulse_file=settings.pulse_file)
        async with (
            watchdog.watching(),
            bus_and_store(settings) as (bus, store),
            control_server(settings, engines, device) as control,
        ):
            yield cls(settings, bus, store, control, watchdog)

    @property
    def store(self) -> MeshStore:
        """The members' store."""
        return self._store

    @contextlib.asynccontextmanager
    async def joined(self, settings: ServiceSettings, kind: MemberKind) -> AsyncIterator[ServiceHost]:
        """Join as one more member, STARTING, and leave at the end of the block. Raises `MeshError` where the id is in use, or
        broker or store do not answer.
        """
        await wait_until_free(
            self._store,
            settings.service_id,
            registration_ttl_s(settings),
            settings.heartbeat_s,
            control_access(settings),
        )
        registered = await new_member(settings, kind, self._control.port, self._store)
        host = ServiceHost(settings, self._bus, self._store, self._health, registered, None, self._watchdog)
        async with host.joined():
            self._hosts[host.id] = host
            try:
                yield host
            finally:
                del self._hosts[host.id]

    async def run(self, member_ids: Sequence[str], kind: MemberKind, member: ServiceMember) -> None:
        """Serve as all of these members, of one kind, until each has left; `member` is entered once one has joined, before it
        reports READY, and exited before it reports LEFT. A signal lets all of them leave, a second one stops them. Raises
        `MeshError` where an id is in use, broker or store do not answer, or a member failed; all have left then.
        """
        call_on_stop_signals(self.leave, self.stop)
        try:
            async with asyncio.TaskGroup() as group:
                for member_id in member_ids:
                    group.create_task(self._serve(member_id, kind, member), name=member_id)
        except* MeshError as errors:
            raise _first(errors) from None

    def leave(self) -> None:
        """Let every member leave as at its first stop signal; no further member joins."""
        self._stopping = True
        for host in self._hosts.values():
            host.leave()

    def stop(self) -> None:
        """Stop every member; idempotent."""
        self._stopping = True
        for host in self._hosts.values():
            host.stop()

    async def _serve(self, member_id: str, kind: MemberKind, member: ServiceMember) -> None:
        structlog.contextvars.bind_contextvars(member=member_id)
        settings = self._settings.model_copy(update={"service_id": member_id})
        async with self.joined(settings, kind) as host:
            if self._stopping:
                return
            async with member(host):
                await host.serve()


def _first(errors: BaseExceptionGroup[MeshError]) -> MeshError:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, MeshError)  # nothing else was caught
    return found
