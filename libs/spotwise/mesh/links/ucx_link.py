"""One connection between two processes: a UCX endpoint and a read loop, which carry frames. A frame's header and payload are
submitted in one step of the loop, so that pushes that share a link never mix. Any failure, a malformed header, a reset or a
dead peer, ends the link: all that waits on it fails with one reason, and it is never used again. A link begins with the
handshake of `mesh/security/`; where that has agreed on it, headers and payloads are sealed.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from spotwise.mesh.links.ucx_reactor import UcxReactor, transport_name
from spotwise.mesh.ports.ports import KvTransferError
from spotwise.mesh.security.handshake import Handshake, LinkTerms
from spotwise.mesh.security.link_security import LinkRefusedError
from spotwise.mesh.security.seal import SEALED_BYTES, LinkSeal
from spotwise.wire.framing import FrameError
from spotwise.wire.link_hello import (
    HEAD_BYTES,
    HELLO_BYTES,
    HelloRefusal,
    LinkHello,
    LinkKind,
    decode_hello,
    encode_hello,
    encode_refusal,
    message_bytes,
)

_MESSAGE_BYTES = message_bytes(HELLO_BYTES)
# Pending sends and closes are dropped after this time: the peer is gone or stuck.
_CLOSE_WAIT_S = 1.0
_CLOSE_PERIOD_NS = 10**9
_SETTLE_S = 0.001


class LinkFrame(Protocol):
    """A frame's header."""

    @property
    def kind(self) -> enum.Enum:
        """What it is."""

    @property
    def payload_bytes(self) -> int:
        """Bytes that follow."""


F = TypeVar("F", bound=LinkFrame)
F_in = TypeVar("F_in", bound=LinkFrame, contravariant=True)


@dataclass(frozen=True, slots=True)
class LinkProtocol(Generic[F]):
    """What the frames of a link are.

    Attributes:
        kind: what its links carry.
        header_bytes: bytes of an encoded header.
        encode, decode: headers; the latter raises `FrameError`.
        why_not: the error where the ends of a link with these hellos, this one's first, cannot work together.
    """

    kind: LinkKind
    header_bytes: int
    encode: Callable[[F], bytes]
    decode: Callable[[bytearray], F]
    why_not: Callable[[LinkHello, LinkHello], KvTransferError | None] = lambda mine, theirs: None


class FrameBuffers(Protocol[F_in]):
    """Where payloads arrive."""

    def take(self, frame: F_in, *, is_sealed: bool = False) -> Any:
        """Return a buffer of at least a frame's payload, sealed or not."""

    def give(self, buffer: Any) -> None:
        """Take back a buffer that is not read or written any more."""


#: Bytes of a stream, and the future of their arrival.
_StreamBytes = tuple[bytearray, asyncio.Future[None]]
#: Called on the loop for each frame, in order: the link, the header, the buffer and the future of its payload's arrival.
FrameHandler = Callable[["UcxLink[F]", F, Any, "asyncio.Future[None]"], "asyncio.Task[None] | None"]


class UcxLink(Generic[F]):
    """One endpoint with its read loop.

    Attributes:
        peer: the other end's hello.
        transport: the lanes that UCX uses.
        slots: for payloads in flight, in each direction.
        retired: gets no new pushes; closed after the last one.
    """

    def __init__(
        self,
        reactor: UcxReactor,
        endpoint: Any,
        protocol: LinkProtocol[F],
        buffers: FrameBuffers[F],
        in_flight: int,
        on_frame: FrameHandler[F],
        on_lost: Callable[[UcxLink[F], str], object],
        admitted_bytes: Callable[[UcxLink[F], F], int],
    ) -> None:
        self.slots = asyncio.Semaphore(in_flight)
        self.retired = False
        self.peer: LinkHello
        self._terms: LinkTerms
        self.transport: str
        self._reactor = reactor
        self._endpoint = endpoint
        self._protocol = protocol
        self._buffers = buffers
        self._receive_slots = asyncio.Semaphore(in_flight)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._admitted_bytes = admitted_bytes
        self._sending: set[asyncio.Future[None]] = set()
        self._arriving: set[asyncio.Future[None]] = set()
        self._cut_off: tuple[asyncio.Future[None], ...] = ()
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[None] | None = None
        endpoint.set_close_callback(reactor.soon(self._endpoint_closed))

    @property
    def alive(self) -> bool:
        """Whether frames can still be sent."""
        return not self._lost.done()

    @property
    def is_sealed(self) -> bool:
        """Whether the frames are encrypted: then payloads are sent as `outgoing_seal` seals them."""
        return self.outgoing_seal is not None

    @property
    def outgoing_seal(self) -> LinkSeal | None:
        """Seals payloads before they are sent; `None` where the link is not encrypted."""
        return self._terms.sends.seal

    @property
    def incoming_seal(self) -> LinkSeal | None:
        """Opens payloads that have arrived; `None` where the link is not encrypted."""
        return self._terms.receives.seal

    async def open(
        self,
        handshake: Handshake,
        hello: LinkHello,
        *,
        accepted: bool,
        timeout_s: float,
        admit: Callable[[LinkHello], HelloRefusal | None] = lambda _: None,
    ) -> None:
        """Shake hands and start reading.

        Args:
            handshake: this end's.
            hello: this end's hello.
            accepted: the peer has connected.
            admit: returns the reason to refuse a peer that knows the secret.

        Raises:
            LinkRefusedError: the peer does not use this protocol, does not know the secret, or has too many links.
            KvTransferError: it is unreachable, silent, or cannot work with this end.
        """
        try:
            async with asyncio.timeout(timeout_s):
                shaking = self._listened(handshake, hello, admit) if accepted else self._called(handshake, hello)
                self.peer, self._terms = await shaking
        except TimeoutError:
            raise LinkRefusedError(
                HelloRefusal.TIMED_OUT, f"the peer did not answer a connection within {timeout_s:g} s"
            ) from None
        except self._reactor.ucx.UCXError as error:
            raise LinkRefusedError(HelloRefusal.LOST, f"no connection: {error}") from None
        if (reason := self._protocol.why_not(hello, self.peer)) is not None:
            raise reason
        self.transport = transport_name(self._endpoint)
        self._reactor.expect_tags(*self._receive_tags)
        self._reading = asyncio.create_task(self._read(), name="link-read")

    async def _listened(
        self, handshake: Handshake, hello: LinkHello, admit: Callable[[LinkHello], HelloRefusal | None]
    ) -> tuple[LinkHello, LinkTerms]:
        theirs = self._stream_of(_MESSAGE_BYTES)
        await self._or_lost(self._reactor.send_stream(self._endpoint, handshake.offer()))
        try:
            peer = handshake.verify(await self._whole(theirs), decode_hello)
            if (refusal := admit(peer)) is not None:
                raise LinkRefusedError(refusal)
            reply, terms = handshake.hello(encode_hello(hello)), handshake.terms()
        except LinkRefusedError as error:
            if error.refusal is not HelloRefusal.LOST:
                refused = encode_refusal(error.refusal, _MESSAGE_BYTES)
                await self._or_lost(self._reactor.send_stream(self._endpoint, refused))
            raise
        await self._or_lost(self._reactor.send_stream(self._endpoint, reply))
        return peer, terms

    async def _called(self, handshake: Handshake, hello: LinkHello) -> tuple[LinkHello, LinkTerms]:
        # The listener sends first, as in ucxx's own handshake.
        offer, theirs = self._stream_of(HEAD_BYTES), self._stream_of(_MESSAGE_BYTES)
        handshake.meet(await self._whole(offer))
        await self._or_lost(self._reactor.send_stream(self._endpoint, handshake.hello(encode_hello(hello))))
        return handshake.verify(await self._whole(theirs), decode_hello), handshake.terms()

    def _stream_of(self, size: int) -> _StreamBytes:
        """Begin to receive the next bytes of the stream. Called before they can have arrived: ucxx takes those that are there
        already for none.
        """
        into = bytearray(size)
        received = self._reactor.receive_stream(self._endpoint, into)
        # Where the handshake ends before, nothing waits for it.
        received.add_done_callback(lambda done: done.cancelled() or done.exception())
        return into, received

    async def _whole(self, stream: _StreamBytes) -> bytes:
        into, received = stream
        await self._or_lost(received)
        return bytes(into)

    @property
    def _receive_tags(self) -> tuple[int, int]:
        return self._terms.receives.header_tag, self._terms.receives.payload_tag

    def send(self, frame: F, payload: Any = None) -> asyncio.Future[Any]:
        """Submit a frame, its payload sealed where the link is; the future ends when its buffers are free again, and never
        raises: a failure ends the link. Raises `KvTransferError` where the link is lost.
        """
        if not self.alive:
            raise KvTransferError(self._lost.result())
        try:
            header, sends = self._protocol.encode(frame), self._terms.sends
            if sends.seal is not None:
                sealed = bytearray(len(header) + SEALED_BYTES)
                sends.seal.seal_next(header, sealed)
                header = bytes(sealed)
            parts = [self._reactor.send_tagged(self._endpoint, sends.header_tag, header)]
            if frame.payload_bytes:
                parts.append(self._reactor.send_tagged(self._endpoint, sends.payload_tag, payload))
        except self._reactor.ucx.UCXError as error:
            self.fail(str(error))
            raise KvTransferError(str(error)) from None
        for part in parts:
            self._sending.add(part)
            part.add_done_callback(self._sent)
        return asyncio.gather(*parts, return_exceptions=True)

    def fail(self, reason: str) -> None:
        """End the link now; idempotent."""
        if self.alive:
            self._lost.set_result(reason)
            if self._reading is not None:
                self._reading.cancel()
            self._cut_off = tuple(self._arriving)
            for arrived in self._cut_off:
                arrived.cancel()
            self._on_lost(self, reason)

    async def close(self) -> None:
        """Wait for the submitted frames to be sent, then close the endpoint; idempotent."""
        if self.alive and self._sending:
            await asyncio.wait(set(self._sending), timeout=_CLOSE_WAIT_S)
        self.fail("the link was closed")
        if self._reading is not None:
            await asyncio.wait({self._reading})
            self._reactor.forget_tags(*self._receive_tags)
        if self._endpoint is not None:
            endpoint, self._endpoint = self._endpoint, None
            endpoint.remove_close_callback()
            # Not `endpoint.close()`: for a failed endpoint it yields a null request, which crashes when touched. This one
            # cancels requests in flight and closes without the peer.
            endpoint.close_blocking(_CLOSE_PERIOD_NS, 1)

    async def settled(self) -> None:
        """Return once UCX writes no buffer of this lost link any more."""
        while self._endpoint is not None or any(map(self._reactor.is_under_way, self._cut_off)):  # noqa: ASYNC110 (UCX signals no end)
            await asyncio.sleep(_SETTLE_S)

    async def _read(self) -> None:
        seal, (header_tag, payload_tag) = self.incoming_seal, self._receive_tags
        more_bytes = 0 if seal is None else SEALED_BYTES
        header = bytearray(self._protocol.header_bytes + more_bytes)
        plain = header if seal is None else bytearray(self._protocol.header_bytes)
        nothing = np.empty(0, np.uint8)
        try:
            while True:
                await self._reactor.receive_tagged(self._endpoint, header_tag, header)
                if seal is not None:
                    seal.open_next(header, plain)
                frame = self._protocol.decode(plain)
                if not frame.payload_bytes:
                    arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    arrived.set_result(None)
                    self._on_frame(self, frame, nothing, arrived)
                    continue
                # Before any memory is allocated: a correct peer announces no more than it may send.
                if frame.payload_bytes > (admitted := self._admitted_bytes(self, frame)):
                    raise FrameError(
                        f"a {frame.kind.name} frame announces {frame.payload_bytes} bytes where at most {admitted} are due"
                    )
                await self._receive_slots.acquire()
                buffer = self._buffers.take(frame, is_sealed=seal is not None)
                payload = buffer[: frame.payload_bytes + more_bytes]
                arrived = self._reactor.receive_tagged(self._endpoint, payload_tag, payload)
                self._arriving.add(arrived)
                arrived.add_done_callback(self._received)
                task = self._on_frame(self, frame, payload, arrived)
                if task is None:
                    raise FrameError(f"a {frame.kind.name} frame has no payload")
                task.add_done_callback(self._reusable(buffer, arrived))
        except (self._reactor.ucx.UCXError, FrameError) as error:
            self.fail(str(error))
        finally:
            self.fail("the link is not read any more")

    def _reusable(self, buffer: Any, arrived: asyncio.Future[None]) -> Callable[[object], None]:
        def give_back(_: object) -> None:
            self._receive_slots.release()
            # UCX may still write a buffer whose receive was cancelled: it is not used again.
            if arrived.done() and not arrived.cancelled() and arrived.exception() is None:
                self._buffers.give(buffer)

        return give_back

    async def _or_lost(self, step: asyncio.Future[None]) -> None:
        """Wait for a step of the handshake, or for the endpoint's end, which UCX reports separately."""
        try:
            either: set[asyncio.Future[Any]] = {step, self._lost}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                raise LinkRefusedError(HelloRefusal.LOST, f"no connection: {self._lost.result()}")
            step.result()
        finally:
            step.cancel()

    def _sent(self, part: asyncio.Future[None]) -> None:
        self._sending.discard(part)
        if not part.cancelled() and (error := part.exception()) is not None:
            self.fail(str(error))

    def _received(self, arrived: asyncio.Future[None]) -> None:
        self._arriving.discard(arrived)
        if not arrived.cancelled() and (error := arrived.exception()) is not None:
            self.fail(str(error))

    def _endpoint_closed(self) -> None:
        try:
            if self._endpoint is not None:
                self._endpoint.raise_on_error()
        except self._reactor.ucx.UCXError as error:
            self.fail(str(error))
        else:
            self.fail("the peer closed the connection")
