"""Hand-offs whose payloads are no numpy arrays: the way that a GPU's bytes take through the transfer.

The arrays here claim to be on a CUDA device, and lie on the host: UCX detects the kind of memory itself, and moves them. A
real device is in tests/cuda.
"""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from spotwise.core.messages.numerics import Crossing
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.mesh.links.kv_payloads import PayloadBuffers
from spotwise.mesh.links.ucx_reactor import reaches_cuda_memory
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.ports.ports import HandoffHandler, KvMemory, KvTransferError
from spotwise.wire.kv_frames import FrameKind, KvFrame
from tests.contracts.kv_transport import BLOCKS, ArrayMemory, KvTransportContract, MakeTransport

pytestmark = pytest.mark.mesh


class DeviceArray:
    """Bytes that only UCX and their own memory can read: no buffer protocol, as with a tensor on a GPU."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data = data

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.data.shape,
            "typestr": "|u1",
            "data": (self.data.ctypes.data, False),
            "strides": None,
            "version": 2,
        }

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __getitem__(self, part: slice) -> DeviceArray:
        return DeviceArray(self.data[part])


class DeviceMemory:
    """A memory, and its payloads as device arrays with a checksum of their own."""

    on_host = False

    def __init__(self, memory: KvMemory) -> None:
        self.memory = memory
        self.num_layers = memory.num_layers
        self.layer_block_bytes = memory.layer_block_bytes
        self.layout = memory.layout
        self.part = memory.part
        self.allocated: list[int] = []

    def section(self, part: KvPart) -> DeviceMemory:
        assert part == self.part
        return self

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None
    ) -> DeviceArray:
        return DeviceArray(self.memory.export_layers(first_layer, num_layers, block_ids))

    def import_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: Any) -> None:
        assert isinstance(data, DeviceArray)
        self.memory.import_layers(first_layer, num_layers, block_ids, data.data)

    def allocate(self, size: int) -> DeviceArray:
        self.allocated.append(size)
        return DeviceArray(np.empty(size, np.uint8))

    def checksum(self, payload: DeviceArray) -> int:
        return zlib.crc32(payload.data.tobytes())


def device_transport(
    memory: KvMemory,
    worker_id: str,
    incarnation: int,
    on_handoff: HandoffHandler,
    *,
    crossing: Crossing = Crossing.COUNT,
    settings: TransferSettings | None = None,
    **options: Any,
) -> UcxKvTransport:
    device, settings = DeviceMemory(memory), replace(settings or TransferSettings(), crossing=crossing)
    return UcxKvTransport(device, worker_id, incarnation, on_handoff, settings, payloads=device, **options)


class TestUcxKvTransportWithDevicePayloads(KvTransportContract):
    @pytest.fixture
    def make(self) -> MakeTransport:
        return device_transport


async def test_chunks_of_every_size_land_in_memory_of_the_receivers_making() -> None:
    """Small ones too, which the host would not pool; the hand-off itself needs none of it. Pooled buffers are used again."""
    handoffs: list[KvHandoff] = []
    target_memory = ArrayMemory(2, cell_bytes=3000)
    receiving = DeviceMemory(target_memory)
    receiver = UcxKvTransport(
        receiving,
        "t",
        2,
        lambda handoff, _: handoffs.append(handoff),
        TransferSettings(chunk_bytes=9000, in_flight=2),
        receiving,
    )
    source_memory = ArrayMemory(1, cell_bytes=3000)
    sender = device_transport(
        source_memory, "p", 1, lambda *_: None, settings=TransferSettings(chunk_bytes=9000, in_flight=2)
    )
    await receiver.start()
    await sender.start()
    try:
        for number in range(3):
            receiver.expect(f"r{number}", 1, tuple(range(BLOCKS)))
            target = KvTarget(worker_id="t", incarnation=2, address=receiver.address, block_ids=tuple(range(BLOCKS)))
            blocks = tuple(range(number, BLOCKS))
            await sender.push(target, KvHandoff(f"r{number}", 1, 20, 5), blocks)
            assert np.array_equal(target_memory.cells[:, : len(blocks)], source_memory.cells[:, blocks])
    finally:
        await sender.close()
        await receiver.close()
    assert len(handoffs) == 3
    assert set(receiving.allocated) == {3000, 9000}
    assert receiving.allocated.count(9000) <= 4


async def test_a_damaged_payload_is_refused_by_the_memorys_own_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    target_memory = ArrayMemory(2)
    before = target_memory.cells.copy()
    receiver = device_transport(target_memory, "t", 2, lambda *_: None)
    sender = device_transport(ArrayMemory(1), "p", 1, lambda *_: None)
    monkeypatch.setattr(sender._exports.payloads, "checksum", lambda payload: 1)
    await receiver.start()
    await sender.start()
    try:
        receiver.expect("r", 1, (1, 2))
        target = KvTarget(worker_id="t", incarnation=2, address=receiver.address, block_ids=(1, 2))
        with pytest.raises(KvTransferError, match="damaged"):
            await sender.push(target, KvHandoff("r", 1, 20, 5), (1, 2))
    finally:
        await sender.close()
        await receiver.close()
    assert np.array_equal(target_memory.cells, before)


def test_only_blocks_are_received_into_payload_memory() -> None:
    """A COMMIT is read on the host."""
    memory = DeviceMemory(ArrayMemory(1))
    buffers = PayloadBuffers(memory, 8192, keep=1)
    frame: dict[str, Any] = {
        "choice_id": "r",
        "epoch": 1,
        "push_id": 1,
        "sender_incarnation": 1,
        "target_incarnation": 2,
        "part": memory.part,
    }
    commit = buffers.take(KvFrame(kind=FrameKind.COMMIT, payload_bytes=16, **frame))
    assert isinstance(commit, np.ndarray) and commit.nbytes == 16
    chunk = buffers.take(KvFrame(kind=FrameKind.CHUNK, payload_bytes=5000, **frame))
    assert isinstance(chunk, DeviceArray) and chunk.nbytes == 8192


def test_ucx_says_whether_it_reaches_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_MEMTYPE_CACHE", "n")  # what it would set, so that it is set no longer than this test runs
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert not reaches_cuda_memory()
    else:
        pytest.skip("there is a CUDA driver; tests/cuda asks the same of a real device")
