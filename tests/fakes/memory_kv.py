"""In-memory KV transport, for unit tests only. A hand-off is refused for the reasons of `ucx_inbox`, in the same order, and
otherwise copied at once when it is committed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass

from spotwise.core.messages.numerics import Crossing, is_crossing
from spotwise.core.requests.record import KvHandoff, KvShare, KvSource, KvTarget
from spotwise.mesh.links.whole_push import WholePush, push_at_once, source_of
from spotwise.mesh.ports.ports import (
    HandoffHandler,
    KvMemory,
    KvTransferError,
    TransferReport,
    classes_differ,
    layouts_differ,
    models_differ,
)

_TRANSPORT = "memory/process"


@dataclass(frozen=True, slots=True)
class _Window:
    epoch: int
    block_ids: tuple[int, ...]


class MemoryKvNetwork:
    """The listeners that several `MemoryKvTransport`s share, by address."""

    def __init__(self) -> None:
        self._listeners: dict[str, MemoryKvTransport] = {}
        self._ports = itertools.count(1)

    def listen(self, transport: MemoryKvTransport) -> str:
        """Give a transport an address."""
        address = f"memory:{next(self._ports)}"
        self._listeners[address] = transport
        return address

    def leave(self, address: str) -> None:
        """Remove an address; idempotent."""
        self._listeners.pop(address, None)

    def reach(self, address: str) -> MemoryKvTransport:
        """Return the listener of an address; raises `KvTransferError` where there is none."""
        try:
            return self._listeners[address]
        except KeyError:
            raise KvTransferError("cannot connect: no transport listens there") from None


class MemoryKvTransport:
    """Takes pushes into one worker's memory, and pushes from it, within one process."""

    def __init__(
        self,
        network: MemoryKvNetwork,
        memory: KvMemory,
        worker_id: str,
        incarnation: int,
        on_handoff: HandoffHandler,
        model_digest: str | None = None,
        numerics_class: str = "",
        crossing: Crossing = Crossing.COUNT,
    ) -> None:
        self._network = network
        self._numerics_class = numerics_class
        self._crossing = crossing
        self._model_digest = model_digest
        self._memory = memory
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._on_handoff = on_handoff
        self._windows: dict[str, _Window] = {}
        self._address: str | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """Where peers reach this listener; raises `RuntimeError` before `start`."""
        if self._address is None:
            raise RuntimeError("the transport listens nowhere yet: await start() first")
        return self._address

    @property
    def refused_connections(self) -> int:
        """None: it has no port."""
        return 0

    @property
    def shares(self) -> tuple[KvShare, ...]:
        """None: its memory is never divided."""
        return ()

    async def start(self) -> None:
        """Listen."""
        self._address = self._network.listen(self)

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        self._windows[choice_id] = _Window(epoch, block_ids)

    def forget(self, choice_id: str) -> None:
        self._windows.pop(choice_id, None)

    def open_push(self, target: KvTarget, source: KvSource) -> WholePush:
        """See `KvTransport`."""

        async def move(handoff: KvHandoff, block_ids: tuple[int, ...], _copied_blocks: int) -> int:
            return self._hand_over(target, handoff, block_ids)

        return WholePush(target, source, self._memory.num_layers, _TRANSPORT, move)

    async def push(self, target: KvTarget, handoff: KvHandoff, source_block_ids: tuple[int, ...]) -> TransferReport:
        push = self.open_push(target, source_of(handoff, source_block_ids))
        return await push_at_once(push, self._memory.num_layers, len(source_block_ids), handoff)

    async def close(self) -> None:
        """Stop listening; idempotent."""
        self._closed = True
        self._windows.clear()
        if self._address is not None:
            self._network.leave(self._address)

    def _hand_over(self, target: KvTarget, handoff: KvHandoff, source_block_ids: tuple[int, ...]) -> int:
        if self._closed:
            raise KvTransferError("this transport is closed")
        receiver = self._network.reach(target.address)
        if receiver._memory.layout != self._memory.layout:
            raise layouts_differ(self._worker_id, receiver._worker_id)
        if receiver._model_digest != self._model_digest:
            raise models_differ(self._worker_id, self._model_digest, receiver._worker_id, receiver._model_digest)
        classes = self._numerics_class, receiver._numerics_class
        if Crossing.REFUSE in (self._crossing, receiver._crossing) and is_crossing(*classes):
            raise classes_differ(self._worker_id, classes[0], receiver._worker_id, classes[1])
        return receiver._take(target, handoff, self._memory, source_block_ids)

    def _take(self, target: KvTarget, handoff: KvHandoff, source: KvMemory, source_block_ids: tuple[int, ...]) -> int:
        memory = self._memory
        if target.worker_id != self._worker_id:
            raise KvTransferError(f"{self._worker_id} answers at that address")
        if target.incarnation != self._incarnation:
            raise KvTransferError("refused: the worker has restarted since it made the reservation")
        window = self._windows.get(handoff.choice_id)
        if window is None or handoff.epoch > window.epoch:
            raise KvTransferError("refused: it holds no reservation for this attempt")
        if handoff.epoch < window.epoch:
            raise KvTransferError("refused: a later attempt of the request holds the reservation")
        shapes = [(each.num_layers, each.layer_block_bytes) for each in (source, memory)]
        if shapes[0] != shapes[1] or len(source_block_ids) > len(window.block_ids):
            raise KvTransferError("refused: layers or blocks do not fit")
        started_s = time.perf_counter()
        payload = source.export_layers(0, source.num_layers, source_block_ids)
        memory.import_layers(0, memory.num_layers, window.block_ids[: len(source_block_ids)], payload)
        del self._windows[handoff.choice_id]
        kv_bytes: int = payload.nbytes
        report = TransferReport(kv_bytes, time.perf_counter() - started_s, _TRANSPORT)
        try:
            self._on_handoff(handoff, report)
        except Exception as error:
            # As in `ucx_inbox`: the receiver's loop and the sender both learn it.
            context = {"message": "a hand-off was not taken", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            raise KvTransferError("refused: it could not take the hand-off") from None
        return kv_bytes
