"""Health (grpc.health.v1) of every service, and engine control of workers, over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from spotwise.core.messages import Member
from spotwise.mesh.ports import MeshError
from spotwise.wire.codec import member_from, member_to
from spotwise.wire.v1 import engine_pb2, engine_pb2_grpc


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What a worker says of itself when asked.

    Attributes:
        member: as its next heartbeat would say it.
        engine_sequences: sequences the engine holds; the role's own count when nothing leaks.
        resident_bytes: memory of the process.
        iterations: run since the start.
        engine: dtype, device and kernels, for people.
    """

    member: Member
    engine_sequences: int
    resident_bytes: int
    iterations: int
    engine: str


class _EngineControl(engine_pb2_grpc.EngineControlServicer):
    def __init__(self, describe: Callable[[], EngineDescription | None]) -> None:
        self._describe = describe

    async def Describe(  # noqa: N802 - the name of the RPC
        self, request: engine_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.DescribeReply:
        description = self._describe()
        if description is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is still loading")
            raise AssertionError("abort raises")
        return engine_pb2.DescribeReply(
            member=member_to(description.member),
            engine_sequences=description.engine_sequences,
            resident_bytes=description.resident_bytes,
            iterations=description.iterations,
            engine=description.engine,
        )


class ControlServer:
    """One service's gRPC endpoint; NOT_SERVING until told otherwise."""

    def __init__(self, host: str, port: int, describe: Callable[[], EngineDescription | None] | None = None) -> None:
        # By default gRPC shares a port with another listener that does, and half of the calls reach the wrong service.
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if describe is not None:
            servicer = _EngineControl(describe)
            engine_pb2_grpc.add_EngineControlServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]
        self._address = f"{host}:{port}"
        self.port = 0

    async def start(self) -> None:
        """Listen; `port` is known afterwards.

        Raises:
            MeshError: the port is taken.
        """
        try:
            self.port = self._server.add_insecure_port(self._address)
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


async def is_serving(address: str, timeout_s: float = 2.0) -> bool:
    """Ask a service for its health; `False` where nobody answers."""
    return bool(await _health(address, timeout_s) == health_pb2.HealthCheckResponse.SERVING)


async def answers(address: str, timeout_s: float = 2.0) -> bool:
    """Tell whether a service is there, healthy or not; `False` at once where the port is closed."""
    return await _health(address, timeout_s) is not None


async def _health(address: str, timeout_s: float) -> int | None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return None
        return int(reply.status)


async def describe_engine(address: str, timeout_s: float = 2.0) -> EngineDescription:
    """Ask a worker what it holds.

    Raises:
        MeshError: it does not answer.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        stub = engine_pb2_grpc.EngineControlStub(channel)  # type: ignore[no-untyped-call]
        try:
            reply = await stub.Describe(engine_pb2.DescribeRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise MeshError(f"the worker at {address} does not answer: {error.details()}") from error
    return EngineDescription(
        member=member_from(reply.member),
        engine_sequences=reply.engine_sequences,
        resident_bytes=reply.resident_bytes,
        iterations=reply.iterations,
        engine=reply.engine,
    )
