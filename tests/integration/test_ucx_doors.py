"""What a worker's KV listener lets in: connections over loopback only, and payloads no larger than what is due."""

from __future__ import annotations

import socket
import tracemalloc
from dataclasses import replace
from typing import Any

import psutil
import pytest

from spotwise.mesh.links.ucx_reactor import listeners
from spotwise.wire.kv_frames import FrameKind
from tests.integration.test_ucx_faults import GOOD, RawPeer
from tests.integration.ucx_worker import CELL_BYTES, LAYERS, Worker, handoff, pair, running, until

pytestmark = [pytest.mark.mesh, pytest.mark.paired]


def listening() -> set[tuple[str, int]]:
    """The address on which this process listens."""
    connections = psutil.Process().net_connections(kind="tcp")
    return {connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN}


def bound_interfaces(port: int) -> list[str]:
    """The interfaces that this process's listeners on a port are bound to; empty strings for all."""
    option = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    return [listener.getsockopt(*option).rstrip(b"\0").decode() for listener in listeners(port)]


async def test_a_worker_with_a_loopback_address_listens_on_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX's own ports are loopback addresses, the listener's takes nothing from other interfaces, and KV still travels."""
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    before, descriptors = listening(), psutil.Process().num_fds()
    sender, receiver = Worker("p", 1), Worker("t", 2)
    async with running(sender, receiver):
        ports = [int(worker.transport.address.rpartition(":")[2]) for worker in (sender, receiver)]
        for address, port in listening() - before:
            if port in ports:
                assert bound_interfaces(port) == ["lo"]
            else:
                assert address in ("127.0.0.1", "::1"), (address, port)
        receiver.transport.expect("r", 1, (1, 2))
        report = await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
        assert report.transport == "tcp/lo"
    assert psutil.Process().num_fds() <= descriptors + 8  # looking for the listener leaves none open


async def test_a_worker_for_other_machines_listens_on_all_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    receiver = Worker("t", 2, host="worker-7.example")
    async with running(receiver):
        port = int(receiver.transport.address.rpartition(":")[2])
        assert bound_interfaces(port) == [""]


@pytest.mark.parametrize(
    ("kind", "fields", "epoch", "announced"),
    [
        (FrameKind.CHUNK, {}, 1, LAYERS * CELL_BYTES + 1),
        (FrameKind.CHUNK, {"num_layers": 2**31, "num_blocks": 2**31}, 1, 200 * 2**20),
        (FrameKind.CHUNK, {"num_blocks": 2**20}, 7, 200 * 2**20),  # of no window at all
        (FrameKind.CHUNK, {"num_blocks": 0}, 1, 1),
        (FrameKind.COMMIT, {}, 1, 200 * 2**20),
        (FrameKind.ACK, {}, 1, 1),
    ],
)
async def test_a_frame_that_lies_about_its_payload_ends_the_link(
    kind: FrameKind, fields: dict[str, Any], epoch: int, announced: int
) -> None:
    """Before memory is allocated for it; the window stays for an honest push."""
    async with pair() as (sender, receiver), RawPeer.at(receiver) as (raw, link):
        tracemalloc.start()
        try:
            lie = replace(raw.frame(kind, b"", **fields), payload_bytes=announced, epoch=epoch)
            # What is announced never comes whole.
            link.send(lie, bytes(1024))
            await until(lambda: raw.lost)
            assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
        finally:
            tracemalloc.stop()
        assert not raw.answers
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
    assert receiver.handoffs == [handoff()]


async def test_a_link_with_endless_pushes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotwise.mesh.links.ucx_inbox._MAX_PUSHES_OF_A_LINK", 16)
    receiver = Worker("t", 2)
    raw = RawPeer(receiver)
    async with running(receiver), raw.linked() as link:
        for push_id in range(1, 18):
            link.send(replace(raw.frame(FrameKind.CHUNK, GOOD), push_id=push_id), GOOD)
        await until(lambda: raw.lost)
