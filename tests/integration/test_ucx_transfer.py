"""KV hand-offs between transports of one process, over real UCX."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import threading

import numpy as np
import psutil
import pytest

from spotwise.mesh.links.ucx_reactor import UcxReactor
from spotwise.mesh.ports.ports import KvTransferError, MeshError
from tests.integration.ucx_worker import CELL_BYTES, LAYERS, Worker, handoff, pair, running, until

pytestmark = [pytest.mark.mesh, pytest.mark.paired]


@pytest.mark.parametrize("chunk_bytes", [1, 2 * CELL_BYTES, 5 * CELL_BYTES, 11 * CELL_BYTES, 4 * 2**20])
async def test_the_reserved_blocks_get_the_senders_bytes_and_no_others_change(chunk_bytes: int) -> None:
    source, reserved = (40, 3, 17, 9, 22), (5, 4, 60, 11, 30, 31, 32)
    async with pair(reserved, chunk_bytes=chunk_bytes) as (sender, receiver):
        expected = receiver.memory.cells.copy()
        expected[:, reserved[:5]] = sender.memory.cells[:, source]
        report = await sender.transport.push(receiver.target(reserved), handoff(), source)
    assert np.array_equal(receiver.memory.cells, expected)
    assert receiver.handoffs == [handoff()]
    assert report.kv_bytes == receiver.reports[0].kv_bytes == LAYERS * 5 * CELL_BYTES
    assert all("/" in lane for lane in report.transport.split(","))
    assert receiver.reports[0].transport == report.transport


async def test_two_pushes_of_one_attempt_at_once_never_mix() -> None:
    """While one push fills the blocks another is refused; what lies there is all of one sender."""
    gate = threading.Event()
    first, second, receiver = Worker("p", 1), Worker("q", 2), Worker("t", 3, gate)
    async with running(first, second, receiver):
        receiver.transport.expect("r", 1, (1, 2))
        pushing = asyncio.create_task(first.transport.push(receiver.target((1, 2)), handoff(), (1, 2)))
        await until(receiver.memory.importing.is_set)
        with pytest.raises(KvTransferError, match="another push"):
            await second.transport.push(receiver.target((1, 2)), handoff(), (1, 2))
        gate.set()
        await pushing
    assert np.array_equal(receiver.memory.cells[:, (1, 2)], first.memory.cells[:, (1, 2)])
    assert receiver.handoffs == [handoff()]


async def test_after_forget_returns_not_a_byte_is_written() -> None:
    """Forgotten with a scatter under way and more chunks queued: forget waits for that one, the rest never lands."""
    gate = threading.Event()
    async with pair((1, 2, 3, 4), gate, chunk_bytes=CELL_BYTES) as (sender, receiver):
        pushing = asyncio.create_task(sender.transport.push(receiver.target((1, 2, 3, 4)), handoff(), (1, 2, 3, 4)))
        await until(receiver.memory.importing.is_set)
        threading.Timer(0.05, gate.set).start()
        receiver.transport.forget("r")
        at_return = receiver.memory.cells.copy()
        with pytest.raises(KvTransferError, match="no reservation"):
            await pushing
        await asyncio.sleep(0.1)
        assert np.array_equal(receiver.memory.cells, at_return)
        receiver.transport.forget("r")
        # The blocks serve the next request at once.
        receiver.transport.expect("next", 1, (1, 2))
        await sender.transport.push(receiver.target((1, 2)), handoff("next"), (5, 6))
    assert receiver.handoffs == [handoff("next")]


async def test_a_later_attempt_takes_the_window_over() -> None:
    """Expecting epoch 2 refuses epoch 1 in the middle of its push; epoch 2 then arrives whole."""
    gate = threading.Event()
    async with pair((1, 2), gate, chunk_bytes=CELL_BYTES) as (sender, receiver):
        stale = asyncio.create_task(sender.transport.push(receiver.target((1, 2)), handoff(), (1, 2)))
        await until(receiver.memory.importing.is_set)
        threading.Timer(0.05, gate.set).start()
        receiver.transport.expect("r", 2, (7, 8))
        with pytest.raises(KvTransferError, match="refused"):
            await stale
        await sender.transport.push(receiver.target((7, 8)), handoff(epoch=2), (3, 4))
    assert np.array_equal(receiver.memory.cells[:, (7, 8)], sender.memory.cells[:, (3, 4)])
    assert receiver.handoffs == [handoff(epoch=2)]


async def test_a_cancelled_push_leaves_link_and_window_usable() -> None:
    """Cancelled half-way: nothing is handed over, and the same attempt can be pushed again, over the same link."""
    gate = threading.Event()
    async with pair((1, 2), gate, chunk_bytes=CELL_BYTES, in_flight=1) as (sender, receiver):
        pushing = asyncio.create_task(sender.transport.push(receiver.target((1, 2)), handoff(), (1, 2)))
        await until(receiver.memory.importing.is_set)
        link = await sender.transport._links.to(receiver.transport.address, 1.0)
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        gate.set()
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
        assert await sender.transport._links.to(receiver.transport.address, 1.0) is link
    assert np.array_equal(receiver.memory.cells[:, (1, 2)], sender.memory.cells[:, (3, 4)])
    assert receiver.handoffs == [handoff()]


async def test_an_idle_link_lets_the_loop_sleep() -> None:
    turns = itertools.count()
    progress = UcxReactor._progress

    def counted(reactor: UcxReactor) -> None:
        next(turns)
        progress(reactor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UcxReactor, "_progress", counted)
        async with pair((1,)) as (sender, receiver):
            await sender.transport.push(receiver.target((1,)), handoff(), (1,))
            await asyncio.sleep(0.2)
            before = next(turns)
            await asyncio.sleep(0.5)
            assert next(turns) - before < 20


async def test_an_id_that_fits_no_header_is_a_mistake_of_the_caller() -> None:
    worker = Worker("p", 1)
    async with running(worker):
        with pytest.raises(ValueError):
            await worker.transport.push(worker.target((1,)), handoff("x" * 129), (1,))


async def test_an_unreachable_peer_is_named() -> None:
    """No listener, no such host, no such port: KvTransferError with the address; the next push connects anew."""
    worker = Worker("p", 1, push_timeout_s=20.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        free = unused.getsockname()[1]
    async with running(worker):
        for address in (f"127.0.0.1:{free}", f"127.0.0.1:{free}", "no-such-host.invalid:1", "nonsense", "127.0.0.1:x"):
            with pytest.raises(KvTransferError, match=f"{address}: (no connection|cannot connect)"):
                await worker.transport.push(worker.target((1,), address=address), handoff(), (1,))


async def test_a_taken_port_is_reported() -> None:
    first = Worker("p", 1)
    async with running(first):
        second = Worker("q", 2, port=int(first.transport.address.rpartition(":")[2]))
        with pytest.raises(MeshError, match="choose another"):
            await second.transport.start()
        await second.transport.close()


async def test_close_ends_everything_and_repeats() -> None:
    """A push under way raises, copy threads end, a closed transport refuses to push."""
    gate = threading.Event()
    async with pair((1,), gate) as (sender, receiver):
        pushing = asyncio.create_task(sender.transport.push(receiver.target((1,)), handoff(), (1,)))
        await until(receiver.memory.importing.is_set)
        await sender.transport.close()
        await sender.transport.close()
        with pytest.raises(KvTransferError, match="connection lost"):
            await pushing
        with pytest.raises(KvTransferError, match="closed"):
            await sender.transport.push(receiver.target((1,)), handoff(), (1,))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kv-copy")]
    assert receiver.handoffs == []


async def test_close_gives_back_every_file_descriptor() -> None:
    """Transports that come and go in one process leave nothing open, links in use included."""
    open_after: list[int] = []
    for _ in range(3):
        async with pair((1,)) as (sender, receiver):
            await sender.transport.push(receiver.target((1,)), handoff(), (1,))
        del sender, receiver
        gc.collect()
        open_after.append(psutil.Process().num_fds())
    assert open_after[1] == open_after[2]
