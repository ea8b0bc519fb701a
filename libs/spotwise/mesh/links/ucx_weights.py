"""Weights between processes over UCX: each listens, answers for what it keeps, and asks others for what it lacks.

Panels arrive where they stay, without a buffer between: a request names the memory, which is of use only once the panels'
checksum was verified. On an encrypted link they arrive in a buffer, and are opened into that memory. A holder that says nothing
for a while is lost. Once a request has failed, nothing writes its memory any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from spotwise.core.latest import LatestDict
from spotwise.core.weights.inventory import ModelSketch, PanelRange, WeightInventory
from spotwise.mesh.links.ucx_link import LinkProtocol, UcxLink
from spotwise.mesh.links.ucx_links import UcxLinks
from spotwise.mesh.ports.ports import KvTransferError
from spotwise.mesh.ports.weights import WeightSource, WeightTransferError
from spotwise.mesh.process.addresses import is_loopback
from spotwise.mesh.process.logs import RefusedConnections
from spotwise.mesh.security.link_security import LinkSecurity
from spotwise.mesh.security.seal import SEALED_BYTES, sealed_copy
from spotwise.wire.framing import FrameError
from spotwise.wire.link_hello import LinkHello, LinkKind
from spotwise.wire.weight_frames import (
    WEIGHT_FRAME_BYTES,
    WeightFrame,
    WeightFrameKind,
    decode_inventory,
    decode_sketch,
    decode_weight_frame,
    encode_inventory,
    encode_sketch,
    encode_weight_frame,
)

#: Of links that carry weights; a process may not know its model yet, so that each request names the layout.
WEIGHT_LINKS: LinkProtocol[WeightFrame] = LinkProtocol(
    LinkKind.WEIGHTS, WEIGHT_FRAME_BYTES, encode_weight_frame, decode_weight_frame
)
#: Payloads at once, per link and direction.
_IN_FLIGHT = 8
#: Requests that wait for their answer, of all links.
_MOST_ANSWERS = 1 << 16
#: An inventory or a sketch, at most.
_MOST_ANSWER_BYTES = 128 * 2**20
#: Buffers of sealed panels within these bounds are kept.
SMALL_BYTES, MOST_KEPT_BYTES = 64 << 10, 16 << 20
#: Checksums are kept, since a holder is asked for the same panels again and again.
_CHECKSUMS = 1 << 16

_Link = UcxLink[WeightFrame]
#: Bytes of an answer, what is sent for it, and its checksum or number.
_Outgoing = tuple[int, NDArray[np.uint8], int]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Request:
    """A request without an answer; `into`: where its panels arrive; `is_arriving`: whether its answer has begun to; `opening`:
    until panels are opened there.
    """

    link: _Link
    into: NDArray[np.uint8] | None
    is_arriving: bool = False
    opening: asyncio.Future[Any] | None = None
    answer: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Destinations:
    """`FrameBuffers` that receive panels in place, or sealed ones in a few buffers."""

    def __init__(self, requests: dict[int, _Request]) -> None:
        self._requests = requests
        self._for_sealed: list[NDArray[np.uint8]] = []

    def take(self, frame: WeightFrame, *, is_sealed: bool = False) -> NDArray[np.uint8]:
        request = self._requests.get(frame.request_id)
        if is_sealed:
            size = frame.payload_bytes + SEALED_BYTES
            fitting = [buffer for buffer in self._for_sealed if buffer.nbytes >= size]
            if not fitting:
                return np.empty(size, np.uint8)
            self._for_sealed = [buffer for buffer in self._for_sealed if buffer is not fitting[0]]
            return fitting[0]
        if request is not None and request.into is not None and frame.kind is WeightFrameKind.PANELS:
            return request.into
        return np.empty(frame.payload_bytes, np.uint8)

    def give(self, buffer: Any) -> None:
        if self._is_own(buffer) and len(self._for_sealed) < _IN_FLIGHT:
            self._for_sealed.append(buffer)

    def _is_own(self, buffer: Any) -> bool:
        """Whether a buffer is none of a request's: those are of memory that others allocated."""
        return buffer.base is None and SMALL_BYTES <= buffer.nbytes <= MOST_KEPT_BYTES


class UcxWeights:
    """A process's end of all links that carry weights.

    Args:
        source: what it gives.
        device_id, incarnation: id and incarnation of the process.
        host: under which peers reach it; a loopback address restricts the listener to loopback.
        port: to listen on; 0 takes a free one.
        patience_s: a holder with a request that sends nothing for so long is lost.
        security: security of the links; by default, without a secret.
    """

    def __init__(
        self,
        source: WeightSource,
        device_id: str,
        incarnation: int,
        host: str = "127.0.0.1",
        port: int = 0,
        patience_s: float = 3.0,
        security: LinkSecurity | None = None,
    ) -> None:
        self._source = source
        self._host, self._port = host, port
        self._patience_s = patience_s
        self._requests: dict[int, _Request] = {}
        self._numbers = itertools.count(1)
        self._heard_s: dict[_Link, float] = {}
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="weight-checksums")
        self._checksums = LatestDict[tuple[int, str, int, int], int](_CHECKSUMS)
        self._answering: set[asyncio.Task[None]] = set()
        self._links: UcxLinks[WeightFrame] = UcxLinks(
            LinkHello(device_id, incarnation, 0),
            WEIGHT_LINKS,
            _Destinations(self._requests),
            _IN_FLIGHT,
            self._on_frame,
            self._on_lost,
            loopback_only=is_loopback(host),
            admitted_bytes=self._admitted_bytes,
            security=security,
        )
        self._address = ""

    @property
    def address(self) -> str:
        """Where peers reach it, `host:port`; empty before `start`."""
        return self._address

    @property
    def refusals(self) -> RefusedConnections:
        """Connections that were refused."""
        return self._links.refusals

    async def start(self) -> None:
        """Listen; raises `MeshError` where the port is taken."""
        self._address = f"{self._host}:{self._links.listen(self._port)}"

    async def close(self) -> None:
        """Stop listening, close the links; idempotent."""
        for task in tuple(self._answering):
            task.cancel()
        if self._answering:
            await asyncio.wait(set(self._answering))
        await self._links.close()
        self._hashing.shutdown()

    async def inventory(self, address: str) -> WeightInventory:
        """Ask what a process keeps; raises `WeightTransferError`."""
        answer = await self._ask(address, WeightFrame(WeightFrameKind.LIST, 0))
        return _read(decode_inventory, answer, address)

    async def sketch(self, address: str) -> ModelSketch:
        """Ask for the model without its large tensors; raises `WeightTransferError`."""
        answer = await self._ask(address, WeightFrame(WeightFrameKind.DESCRIBE, 0))
        return _read(decode_sketch, answer, address)

    async def get(self, address: str, layout: int, wanted: PanelRange, into: memoryview) -> None:
        """Ask for panels, and return once they are in `into` and verified.

        Raises:
            WeightTransferError: they are not; what `into` holds is undefined, and is not written any more.
        """
        panels = wanted.panels
        frame = WeightFrame(WeightFrameKind.GET, 0, layout, wanted.matrix, panels.start, len(panels))
        await self._ask(address, frame, np.frombuffer(into, np.uint8))

    async def _ask(self, address: str, frame: WeightFrame, into: NDArray[np.uint8] | None = None) -> bytes:
        try:
            link = await self._links.to(address, self._patience_s)
        except KvTransferError as error:
            raise WeightTransferError(f"{address}: {error}", holder_is_lost=True) from None
        number = next(self._numbers)
        request = self._requests[number] = _Request(link, into)
        try:
            link.send(WeightFrame(frame.kind, number, frame.layout, frame.matrix, frame.first_panel, frame.num_panels))
            return await self._answered(link, request)
        except KvTransferError as error:
            raise WeightTransferError(f"{address}: {error}", holder_is_lost=True) from None
        except (WeightTransferError, asyncio.CancelledError):
            if into is not None and not link.alive:
                await link.settled()
            if request.opening is not None:
                await asyncio.wait({request.opening})
            raise
        finally:
            del self._requests[number]

    async def _answered(self, link: _Link, request: _Request) -> bytes:
        """Wait for an answer as long as the link says anything."""
        asked_s = time.monotonic()
        try:
            while True:
                heard_s = max(asked_s, self._heard_s.get(link, 0.0))
                patience_s = heard_s + self._patience_s - time.monotonic()
                if patience_s <= 0:
                    link.fail(f"it has said nothing for {self._patience_s:g} s")
                done, _ = await asyncio.wait({request.answer}, timeout=max(0.0, patience_s))
                if done:
                    return request.answer.result()
        except asyncio.CancelledError:
            if request.into is not None:
                link.fail("a request was called off")  # its panels may be on their way
            raise
        finally:
            request.answer.cancel()

    def _admitted_bytes(self, link: _Link, frame: WeightFrame) -> int:
        """Return the largest answer to a request of this link, which gets one: the memory of another's is not written."""
        request = self._requests.get(frame.request_id)
        if request is None or request.link is not link or request.is_arriving:
            return 0
        request.is_arriving = True
        if frame.kind is WeightFrameKind.PANELS:
            return 0 if request.into is None else request.into.nbytes
        return _MOST_ANSWER_BYTES

    def _on_frame(
        self, link: _Link, frame: WeightFrame, payload: Any, arrived: asyncio.Future[None]
    ) -> asyncio.Task[None] | None:
        self._heard_s[link] = time.monotonic()
        if frame.kind in (WeightFrameKind.LIST, WeightFrameKind.DESCRIBE, WeightFrameKind.GET):
            if len(self._answering) >= _MOST_ANSWERS:
                raise FrameError(f"more than {_MOST_ANSWERS} requests at once")
            task = asyncio.create_task(self._answer(link, frame), name="give-weights")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return None
        request = self._requests.get(frame.request_id)
        if request is None or request.link is not link:
            raise FrameError(f"an answer to request {frame.request_id}, which was not made")
        return asyncio.create_task(self._receive(link, request, frame, payload, arrived), name="take-weights")

    async def _receive(
        self, link: _Link, request: _Request, frame: WeightFrame, payload: Any, arrived: asyncio.Future[None]
    ) -> None:
        try:
            await arrived
        except (asyncio.CancelledError, Exception):
            return  # the link is lost, which the request hears
        self._heard_s[link] = time.monotonic()
        if request.answer.done():
            return
        plain = await self._verified(link, request, frame, payload)
        if request.answer.done():
            return
        error: WeightTransferError | None = None
        if plain is None:
            error = WeightTransferError("its answer is damaged")
        elif frame.kind is WeightFrameKind.REFUSED:
            error = WeightTransferError(bytes(plain).decode(errors="replace"))
        elif request.into is not None and frame.payload_bytes != request.into.nbytes:
            error = WeightTransferError(f"it sent {frame.payload_bytes} bytes instead of {request.into.nbytes}")
        if error is not None:
            request.answer.set_exception(error)
        else:
            request.answer.set_result(b"" if plain is None or request.into is not None else bytes(plain))

    async def _verified(self, link: _Link, request: _Request, frame: WeightFrame, payload: Any) -> Any | None:
        """Return an answer's payload, opened where it is sealed; `None` where it is damaged."""
        seal = link.incoming_seal
        if seal is None:
            return payload if await self._checksum(payload) == frame.payload_checksum else None
        into = request.into
        if into is None or frame.kind is not WeightFrameKind.PANELS or into.nbytes != frame.payload_bytes:
            into = np.empty(frame.payload_bytes, np.uint8)
        loop = asyncio.get_running_loop()
        request.opening = loop.run_in_executor(self._hashing, seal.open_payload, frame.payload_checksum, payload, into)
        return into if await request.opening else None

    async def _answer(self, link: _Link, frame: WeightFrame) -> None:
        # Sealed panels are copies, of which a link has as many as it has slots.
        async with link.slots if link.is_sealed else contextlib.nullcontext():
            kind = WeightFrameKind.REFUSED
            try:
                if frame.kind is WeightFrameKind.GET:
                    kind, (size, payload, checksum) = WeightFrameKind.PANELS, await self._exported(link, frame)
                elif frame.kind is WeightFrameKind.LIST:
                    inventory = _array(encode_inventory(self._source.inventory()))
                    kind, (size, payload, checksum) = WeightFrameKind.LISTED, await self._closed(link, inventory)
                else:
                    sketch = _array(encode_sketch(await asyncio.to_thread(self._source.sketch)))
                    kind, (size, payload, checksum) = WeightFrameKind.DESCRIBED, await self._closed(link, sketch)
            except ValueError as error:
                reason = _array(str(error).encode() or b"refused")
                size, payload, checksum = await self._closed(link, reason)
            answer = WeightFrame(kind, frame.request_id, payload_bytes=size, payload_checksum=checksum)
            async with contextlib.nullcontext() if link.is_sealed else link.slots:
                if link.alive:
                    await link.send(answer, payload)

    async def _exported(self, link: _Link, frame: WeightFrame) -> _Outgoing:
        layout = self._source.layout
        if frame.layout != layout:
            raise ValueError("its weights have another layout here")
        panels = range(frame.first_panel, frame.first_panel + frame.num_panels)
        dropped = self._source.times_dropped(frame.matrix, panels)
        payload = np.frombuffer(self._source.export_panels(frame.matrix, panels), np.uint8)
        key = (layout, frame.matrix, panels.start, panels.stop)
        if not link.is_sealed and (known := self._checksums.get(key)) is not None:
            return payload.nbytes, payload, known
        outgoing = await self._closed(link, payload)
        # Else it may be that of zeros, which the receiver would take for the panels.
        if self._source.times_dropped(frame.matrix, panels) != dropped:
            raise ValueError(f"panels {panels} of {frame.matrix} were given back meanwhile")
        if not link.is_sealed:
            self._checksums[key] = outgoing[2]
        return outgoing

    async def _closed(self, link: _Link, payload: NDArray[np.uint8]) -> _Outgoing:
        """Return what to send for a payload: itself with its checksum, or a sealed copy."""
        seal = link.outgoing_seal
        if seal is None:
            return payload.nbytes, payload, await self._checksum(payload)
        loop = asyncio.get_running_loop()
        return payload.nbytes, *await loop.run_in_executor(self._hashing, sealed_copy, seal, payload)

    async def _checksum(self, payload: NDArray[np.uint8]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._hashing, xxhash.xxh3_64_intdigest, payload.data)

    def _on_lost(self, link: _Link, reason: str) -> None:
        self._heard_s.pop(link, None)
        for request in self._requests.values():
            if request.link is link and not request.answer.done():
                request.answer.set_exception(WeightTransferError(reason, holder_is_lost=True))


def _array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _read(decode: Callable[[bytes], T], answer: bytes, address: str) -> T:
    try:
        return decode(answer)
    except FrameError as error:
        raise WeightTransferError(f"{address}: {error}") from None
