"""The stream between a group's leader and one of its devices, over gRPC.

The leader calls, sends orders and reads reports. A newer stream of one leader to one device ends the older; other streams are
served side by side, those to several devices of a process too. A stream that ends, for whatever reason, tells each side that
the other is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog

from spotwise.core.messages.groups import GroupOrder, GroupReport
from spotwise.mesh.grpc.control_access import OPEN_ACCESS, ControlAccess
from spotwise.wire.codec_groups import decode_order, decode_report, encode_order, encode_report
from spotwise.wire.roles import MeshRole

_log = structlog.get_logger(__name__)

_SERVICE = "spotwise.v1.DeviceControl"
_METHOD = "Follow"
#: Metadata of a call: the ids of the leader and of the device.
_LEADER, _DEVICE = "spotwise-leader", "spotwise-device"
#: A device's metadata once it has admitted a leader.
_ADMITTED = ("spotwise-admitted", "yes")
# A dead peer's host is noticed by pings; a dead process at once.
_OPTIONS = (
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
#: Longest order. The largest ones have a request's token ids, or ids of all blocks of a KV cache; 16 million ids fit.
MAX_ORDER_BYTES = 64 << 20
#: What the `ControlServer` of a device must allow so that leaders may send such pings and orders.
SERVER_OPTIONS = (
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.max_receive_message_length", MAX_ORDER_BYTES),
)

#: Sends a report to the leader.
Report = Callable[[GroupReport], None]
#: Carries out the orders of a stream, until they end, given the ids of device and leader.
Follower = Callable[[str, str, AsyncIterator[GroupOrder], Report], Awaitable[None]]


def device_handler(follow: Follower, access: ControlAccess = OPEN_ACCESS) -> grpc.GenericRpcHandler:
    """Return the gRPC handler of a process of devices, for its `ControlServer`; only workers may order devices about."""
    current: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def serve(orders: AsyncIterator[GroupOrder], context: Any) -> AsyncIterator[GroupReport]:
        metadata = dict(context.invocation_metadata())
        ends = metadata.get(_DEVICE, ""), metadata.get(_LEADER, "")
        await access.admit(context, MeshRole.WORKER, _METHOD, *ends)
        await context.send_initial_metadata((_ADMITTED,))
        reports: asyncio.Queue[GroupReport | None] = asyncio.Queue()
        while (older := current.get(ends)) is not None:  # of the leader before its restart
            older.cancel()
            await asyncio.wait({older})
        following = current[ends] = asyncio.create_task(_follow(follow, ends, orders, reports), name="follow")
        following.add_done_callback(lambda _: current.pop(ends))
        try:
            while (report := await reports.get()) is not None:
                yield report
        finally:
            following.cancel()
            await asyncio.wait({following})

    method = grpc.stream_stream_rpc_method_handler(
        serve, request_deserializer=decode_order, response_serializer=encode_report
    )
    return grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method})


async def _follow(
    follow: Follower,
    ends: tuple[str, str],
    orders: AsyncIterator[GroupOrder],
    reports: asyncio.Queue[GroupReport | None],
) -> None:
    try:
        await follow(*ends, orders, reports.put_nowait)
    except grpc.RpcError as error:
        _log.info("leader_gone", reason=str(error))
    except Exception as error:
        _log.error("device_failed", exc_info=error)
    finally:
        reports.put_nowait(None)


class DeviceLink:
    """A leader's stream to one device.

    Args:
        leader_id: the leader's id.
        device_id: the device's id.
        address: `host:port` of its gRPC endpoint.
        on_report: called on the event loop for each report, in order.
        on_lost: called once, with the reason, when the stream has ended and was not closed.
        access: the leader's certificates or secret.
    """

    def __init__(
        self,
        leader_id: str,
        device_id: str,
        address: str,
        on_report: Callable[[DeviceLink, GroupReport], None],
        on_lost: Callable[[DeviceLink, str], None],
        access: ControlAccess = OPEN_ACCESS,
    ) -> None:
        self.device_id = device_id
        self.is_alive = True
        self._on_report = on_report
        self._on_lost = on_lost
        self._orders: asyncio.Queue[GroupOrder] = asyncio.Queue()
        self._channel = access.channel(address, MeshRole.WORKER, _OPTIONS)
        call = self._channel.stream_stream(
            f"/{_SERVICE}/{_METHOD}", request_serializer=encode_order, response_deserializer=decode_report
        )
        proof = access.proof(_METHOD, device_id, leader_id)
        self._call: Any = call(metadata=((_LEADER, leader_id), (_DEVICE, device_id), *proof))
        self._tasks = {
            asyncio.create_task(self._read(), name=f"reports-of-{device_id}"),
            asyncio.create_task(self._write(), name=f"orders-to-{device_id}"),
        }

    def send(self, order: GroupOrder) -> None:
        """Send an order; no effect once the stream has ended."""
        if self.is_alive:
            self._orders.put_nowait(order)

    async def close(self) -> None:
        """End the stream; idempotent."""
        self.is_alive = False
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._call.cancel()
        await self._channel.close()

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader finds out why
            # What is written as a device refuses would take the place of its reason (github.com/grpc/grpc, issue 36066).
            if _ADMITTED not in tuple(await self._call.initial_metadata() or ()):
                return
            while True:
                await self._call.write(await self._orders.get())

    async def _read(self) -> None:
        reason = "it ended the stream"
        try:
            async for report in self._call:
                self._on_report(self, report)
        except grpc.aio.AioRpcError as error:
            reason = error.details() or str(error.code())
        if self.is_alive:
            self.is_alive = False
            self._on_lost(self, reason)
