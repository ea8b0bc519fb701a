"""gRPC of the services: health checks (grpc.health.v1), and engine control of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.core.messages.members import Member
from spotwise.mesh.grpc.control_access import OPEN_ACCESS, ControlAccess
from spotwise.mesh.ports.ports import MeshError
from spotwise.wire.codec_members import member_from, member_to
from spotwise.wire.v1 import engine_pb2, engine_pb2_grpc

#: A connection's concurrent calls at most; a leader has one for each of its devices in a process, which are fewer.
_MAX_CALLS = 256


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """What a member of a group has spent, in seconds; iterations since its start, the others since the group was formed.

    Attributes:
        busy_s: in iterations, waiting included.
        waited_s: part of these spent waiting for the stage before, and receiving from it.
        gathers, gather_s: among the shards of its stage; waiting for the slowest is included.
    """

    busy_s: float
    waited_s: float
    gathers: int
    gather_s: float


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """A worker's reply to Describe.

    Attributes:
        engine_sequences: sequences that the engine holds; equal to the role's count unless one leaks.
        resident_bytes: resident memory of the process.
        iterations: since the start.
        engine: dtype, device and kernels, for people.
        kv_bytes_per_token: keys and values of all layers.
        times: times of a member of a group; `None`: it is in none.
    """

    member: Member
    engine_sequences: int
    resident_bytes: int
    iterations: int
    engine: str
    kv_bytes_per_token: int
    times: GroupTimes | None = None


@dataclass(frozen=True, slots=True)
class RecentIterations:
    """The newest iterations of a worker, oldest first; `last` is the number of the last one, from 1; 0: none."""

    last: int
    times: tuple[IterationTime, ...]


class EngineView(Protocol):
    """Describes the workers of a process by id (empty: its only one); returns `None` while that worker loads."""

    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe a worker."""

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return a worker's iterations after number `after`."""


class _EngineControl(engine_pb2_grpc.EngineControlServicer):
    def __init__(self, engines: EngineView) -> None:
        self._engines = engines

    async def Describe(  # noqa: N802 - the name of the RPC
        self, request: engine_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.DescribeReply:
        description = self._engines.describe(request.member_id)
        if description is None:
            await _still_loading(context)
        return engine_pb2.DescribeReply(
            member=member_to(description.member),
            engine_sequences=description.engine_sequences,
            resident_bytes=description.resident_bytes,
            iterations=description.iterations,
            engine=description.engine,
            kv_bytes_per_token=description.kv_bytes_per_token,
            times=_times_to(description.times),
        )

    async def Iterations(  # noqa: N802 - the name of the RPC
        self, request: engine_pb2.IterationsRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.IterationsReply:
        recent = self._engines.iterations(request.member_id, request.after)
        if recent is None:
            await _still_loading(context)
        shapes = [time.shape for time in recent.times]
        return engine_pb2.IterationsReply(
            last=recent.last,
            prompt_tokens=[shape.prompt_tokens for shape in shapes],
            prompt_context=[shape.prompt_context for shape in shapes],
            decodes=[shape.decodes for shape in shapes],
            decode_context=[shape.decode_context for shape in shapes],
            seconds=[time.seconds for time in recent.times],
        )


async def _still_loading(context: grpc.aio.ServicerContext) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is still loading")
    raise AssertionError("abort raises")


class HealthServer(Protocol):
    """Answers health checks for a member."""

    async def set_serving(self, serving: bool) -> None:
        """Answer health checks with SERVING or NOT_SERVING."""


class ControlServer:
    """One service's gRPC endpoint; NOT_SERVING at first. A device's serves `device` as well. Since anyone may ask for health
    where there are no certificates, messages have gRPC's default limit of 4 MiB, and a device's that of its orders.
    """

    def __init__(
        self,
        host: str,
        port: int,
        engines: EngineView | None = None,
        device: grpc.GenericRpcHandler | None = None,
        access: ControlAccess = OPEN_ACCESS,
    ) -> None:
        # By default two gRPC servers share a port, and half of the calls reach the wrong service.
        options = [("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", _MAX_CALLS)]
        if device is not None:
            from spotwise.mesh.grpc.device_control import (
                SERVER_OPTIONS,  # the clients in this file need no codec of groups
            )

            options += SERVER_OPTIONS
        self._server = grpc.aio.server(options=options)
        if device is not None:
            self._server.add_generic_rpc_handlers((device,))
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if engines is not None:
            servicer = _EngineControl(engines)
            engine_pb2_grpc.add_EngineControlServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]
        self._access = access
        self._address = f"{host}:{port}"
        self.port = 0

    async def start(self) -> None:
        """Listen, which sets `port`; raises `MeshError` where the port is taken."""
        try:
            self.port = self._access.add_port(self._server, self._address)
        except RuntimeError as error:
            raise MeshError(f"gRPC cannot listen on {self._address}: {error}") from error
        await self._server.start()
        await self.set_serving(False)

    async def set_serving(self, serving: bool) -> None:
        """Answer health checks with SERVING or NOT_SERVING."""
        status = health_pb2.HealthCheckResponse
        await self._health.set("", status.SERVING if serving else status.NOT_SERVING)

    async def close(self) -> None:
        """Stop listening, with half a second for calls in progress."""
        await self._server.stop(grace=0.5)


class SharedHealth:
    """A `HealthServer` for a process with several members: it serves while one of them does."""

    def __init__(self, control: ControlServer) -> None:
        self._control = control
        self._serving = 0

    async def set_serving(self, serving: bool) -> None:
        """Count one serving member more, or one less."""
        self._serving += 1 if serving else -1
        await self._control.set_serving(self._serving > 0)


async def is_serving(address: str, timeout_s: float = 2.0, access: ControlAccess = OPEN_ACCESS) -> bool:
    """Whether a service reports SERVING; `False` where none answers."""
    return bool(await _health(address, timeout_s, access) == health_pb2.HealthCheckResponse.SERVING)


async def answers(address: str, timeout_s: float = 2.0, access: ControlAccess = OPEN_ACCESS) -> bool:
    """Whether a service answers, healthy or not; `False` at once where the port is closed."""
    return await _health(address, timeout_s, access) is not None


async def _health(address: str, timeout_s: float, access: ControlAccess) -> int | None:
    async with access.channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return None
        return int(reply.status)


async def describe_engine(
    address: str, member_id: str = "", timeout_s: float = 2.0, access: ControlAccess = OPEN_ACCESS
) -> EngineDescription:
    """Return a worker's description; `member_id` selects it at a shared address. Raises `MeshError` where it does
    not answer.
    """
    async with access.channel(address) as channel:
        stub = engine_pb2_grpc.EngineControlStub(channel)  # type: ignore[no-untyped-call]
        try:
            reply = await stub.Describe(engine_pb2.DescribeRequest(member_id=member_id), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise MeshError(f"the worker at {address} does not answer: {error.details()}") from error
    return EngineDescription(
        member=member_from(reply.member),
        engine_sequences=reply.engine_sequences,
        resident_bytes=reply.resident_bytes,
        iterations=reply.iterations,
        engine=reply.engine,
        kv_bytes_per_token=reply.kv_bytes_per_token,
        times=_times_from(reply.times) if reply.HasField("times") else None,
    )


def _times_to(times: GroupTimes | None) -> engine_pb2.GroupTimes | None:
    if times is None:
        return None
    return engine_pb2.GroupTimes(
        busy_s=times.busy_s, waited_s=times.waited_s, gathers=times.gathers, gather_s=times.gather_s
    )


def _times_from(reply: engine_pb2.GroupTimes) -> GroupTimes:
    return GroupTimes(reply.busy_s, reply.waited_s, reply.gathers, reply.gather_s)


async def recent_iterations(
    address: str, member_id: str = "", after: int = 0, timeout_s: float = 5.0, access: ControlAccess = OPEN_ACCESS
) -> RecentIterations:
    """Return a worker's iterations after number `after`; raises `MeshError` where it does not answer."""
    async with access.channel(address) as channel:
        stub = engine_pb2_grpc.EngineControlStub(channel)  # type: ignore[no-untyped-call]
        request = engine_pb2.IterationsRequest(member_id=member_id, after=after)
        try:
            reply = await stub.Iterations(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise MeshError(f"the worker at {address} does not answer: {error.details()}") from error
    columns = zip(
        reply.prompt_tokens, reply.prompt_context, reply.decodes, reply.decode_context, reply.seconds, strict=True
    )
    return RecentIterations(
        reply.last, tuple(IterationTime(BatchShape(*shape), seconds) for *shape, seconds in columns)
    )
