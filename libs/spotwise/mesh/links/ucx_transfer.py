"""The `KvTransport` of a worker over UCX: connects the inbox (`ucx_inbox.py`) and the pushes (`ucx_push.py`) to their links.
All pushes to a peer share its link. A link on which a push timed out gets no new pushes, and is closed after the last one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from spotwise.core.messages.numerics import Crossing
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvShare, KvSource, KvTarget
from spotwise.mesh.links.kv_exports import ByteBudget, KvExports
from spotwise.mesh.links.kv_payloads import HostPayloads, PayloadBuffers, ThreadScratch, kv_links
from spotwise.mesh.links.ucx_inbox import KvInbox
from spotwise.mesh.links.ucx_link import UcxLink
from spotwise.mesh.links.ucx_links import UcxLinks
from spotwise.mesh.links.ucx_push import UcxPush
from spotwise.mesh.links.whole_push import SectionPush, SplitPush, push_at_once, source_of
from spotwise.mesh.ports.ports import HandoffHandler, KvMemory, KvPush, PayloadMemory, TransferReport
from spotwise.mesh.ports.weights import KvSections
from spotwise.mesh.process.addresses import is_loopback
from spotwise.mesh.process.logs import RefusedConnections
from spotwise.mesh.process.watchdog import WatchedExecutor, WatchedPart
from spotwise.mesh.security.link_security import LinkSecurity
from spotwise.wire.kv_frames import CHUNK_BYTES, FrameKind, KvFrame
from spotwise.wire.link_hello import LinkHello, layout_fingerprint

# Besides the loop's thread; on few cores a second one only waits.
_MOST_COPY_THREADS = 2


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Addresses, sizes and times of a worker's KV transport; raises `ValueError` where one is not positive.

    Attributes:
        host: under which peers reach this worker; a loopback address restricts the listener to loopback.
        port: to listen on; 0 takes a free one.
        push_timeout_s: seconds of a push after its commit, and without progress before it, connecting included.
        chunk_bytes: a chunk's maximum, unless one block of one layer is larger.
        stream_bytes: a chunk's minimum while its next layer is still computed.
        in_flight: chunks at once, per link and direction.
        exported_bytes: maximum that is exported and not sent yet, of all links.
        window_wait_s: how long the first bytes of a push may be here before its `expect`.
        security: security of the links; by default, without a secret.
        crossing: what becomes of KV of another numerics class.
    """

    host: str = "127.0.0.1"
    port: int = 0
    push_timeout_s: float = 10.0
    chunk_bytes: int = CHUNK_BYTES
    stream_bytes: int = 2**20
    in_flight: int = 4
    exported_bytes: int = 64 * 2**20
    window_wait_s: float = 0.0
    security: LinkSecurity = field(default_factory=LinkSecurity)
    crossing: Crossing = Crossing.COUNT

    def __post_init__(self) -> None:
        if min(self.chunk_bytes, self.in_flight, self.exported_bytes) < 1:
            raise ValueError("bytes and chunks in flight must be positive")
        if self.stream_bytes < 0 or self.push_timeout_s <= 0:
            raise ValueError("push_timeout_s must be positive, and stream_bytes not negative")


class UcxKvTransport:
    """Listens for pushes into this worker's memory, and pushes from it."""

    def __init__(
        self,
        memory: KvMemory,
        worker_id: str,
        incarnation: int,
        on_handoff: HandoffHandler,
        settings: TransferSettings | None = None,
        payloads: PayloadMemory | None = None,
        model_digest: str | None = None,
        numerics_class: str = "",
        watch: WatchedPart | None = None,
    ) -> None:
        """Create the transport; nothing is opened before `start`.

        Args:
            memory: this worker's paged KV, accessed on copy threads.
            incarnation: incarnation of this worker; pushes for another one are refused.
            on_handoff: called on the loop, once per accepted attempt; where it raises, the sender is refused.
            payloads: what the memory exports and imports; `None`: numpy arrays.
            model_digest: digest of this worker's weights; peers with another one are refused.
            numerics_class: in which this worker computes its KV; peers of another one are refused where the settings say so.
            watch: over the copies to and from the memory; `None`: none.
        """
        self._settings = settings = settings or TransferSettings()
        payloads = payloads or HostPayloads()
        chunk_bytes, scratch = settings.chunk_bytes, ThreadScratch(payloads)
        buffers = PayloadBuffers(payloads, chunk_bytes, keep=4 * settings.in_flight)
        self._incarnation = incarnation
        self._copies = _copy_threads(watch)
        self._sections = KvSections(memory)
        self._inbox = KvInbox(
            self._sections,
            payloads,
            scratch,
            incarnation,
            on_handoff,
            self._copies,
            chunk_bytes,
            settings.window_wait_s,
        )
        budget = ByteBudget(settings.exported_bytes)
        self._exports = KvExports(
            memory, payloads, buffers, self._copies, budget, scratch, chunk_bytes, settings.stream_bytes
        )
        self._links = UcxLinks(
            LinkHello(worker_id, incarnation, layout_fingerprint(memory.layout), model_digest, numerics_class),
            kv_links(settings.crossing),
            buffers,
            settings.in_flight,
            self._on_frame,
            self._on_lost,
            host_memory=isinstance(payloads, HostPayloads),
            loopback_only=is_loopback(settings.host),
            admitted_bytes=self._inbox.admitted_bytes,
            security=settings.security,
            can_seal=payloads.on_host,
        )
        self._push_ids = itertools.count(1)
        self._pushes: dict[int, tuple[UcxLink[KvFrame], UcxPush]] = {}
        self._address: str | None = None

    @property
    def address(self) -> str:
        """Where peers reach this listener, `host:port`; raises `RuntimeError` before `start`."""
        if self._address is None:
            raise RuntimeError("the transport listens nowhere yet: await start() first")
        return self._address

    @property
    def refusals(self) -> RefusedConnections:
        """Connections that were refused."""
        return self._links.refusals

    @property
    def refused_connections(self) -> int:
        """See `KvTransport`."""
        return self.refusals.total

    @property
    def shares(self) -> tuple[KvShare, ...]:
        """None: to its own worker, the transport of a group is another one."""
        return ()

    async def start(self) -> None:
        """Open UCX on the running loop and listen; raises `MeshError` where the port is taken."""
        self._address = f"{self._settings.host}:{self._links.listen(self._settings.port)}"

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        """See `KvTransport`."""
        self._inbox.expect(choice_id, epoch, block_ids)

    def forget(self, choice_id: str) -> None:
        """See `KvTransport`."""
        self._inbox.forget(choice_id)

    def open_push(self, target: KvTarget, source: KvSource) -> KvPush:
        """See `KvTransport`; a choice id over 128 bytes, and a target that needs nothing of this memory, are a `ValueError`,
        too.
        """
        own = self._sections.memory.part
        if not target.shares:
            return self._open(target, source, own)
        pieces = [(share, piece) for share in target.shares if (piece := own.overlap(share.part)) is not None]
        if not pieces:
            raise ValueError(f"{target.worker_id} keeps nothing of {own}")
        pushes = []
        for share, piece in pieces:
            process = KvTarget(share.member_id, share.incarnation, share.address, target.block_ids)
            pushes.append(SectionPush(self._open(process, source, piece), own, piece))
        return SplitPush(pushes)

    def _open(self, target: KvTarget, source: KvSource, part: KvPart) -> UcxPush:
        """Begin to push a part of this memory to one process."""
        abort = KvFrame(
            kind=FrameKind.ABORT,
            choice_id=source.choice_id,
            epoch=source.epoch,
            push_id=next(self._push_ids),
            sender_incarnation=self._incarnation,
            target_incarnation=target.incarnation,
            part=part,
        )
        exports = replace(self._exports, memory=self._sections.of(part))
        return UcxPush(exports, self, abort, target, source.block_ids, self._settings.push_timeout_s)

    async def push(self, target: KvTarget, handoff: KvHandoff, source_block_ids: tuple[int, ...]) -> TransferReport:
        """See `KvTransport`; a choice id over 128 bytes is a `ValueError`, too."""
        push = self.open_push(target, source_of(handoff, source_block_ids))
        return await push_at_once(push, self._exports.memory.num_layers, len(source_block_ids), handoff)

    async def close(self) -> None:
        """Stop listening, close the links, end the copy threads; pushes under way raise. Idempotent."""
        self._inbox.forget_all()
        await self._links.close()
        await self._inbox.idle()
        self._copies.shutdown()

    async def join(self, push: UcxPush, address: str, timeout_s: float) -> UcxLink[KvFrame]:
        """See `PushLinks`."""
        link = await self._links.to(address, timeout_s)
        self._pushes[push.push_id] = (link, push)
        return link

    def leave(self, push: UcxPush, *, timed_out: bool) -> None:
        """See `PushLinks`."""
        link, _ = self._pushes.pop(push.push_id, (None, None))
        if link is None:
            return
        if timed_out:
            self._links.drop(link)
            link.retired = True
        if link.retired and all(user is not link for user, _ in self._pushes.values()):
            link.fail("retired after a time-out")

    def _on_frame(
        self, link: UcxLink[KvFrame], frame: KvFrame, payload: Any, arrived: asyncio.Future[None]
    ) -> asyncio.Task[None] | None:
        if frame.kind not in (FrameKind.ACK, FrameKind.NACK, FrameKind.RESEND):
            return self._inbox.receive(link, frame, payload, arrived)
        own_link, push = self._pushes.get(frame.push_id, (None, None))
        if push is not None and own_link is link:
            if frame.kind is FrameKind.RESEND:
                push.resend(frame)
            else:
                push.answered(frame)
        return None

    def _on_lost(self, link: UcxLink[KvFrame], reason: str) -> None:
        self._inbox.link_lost(link)
        for user, push in tuple(self._pushes.values()):
            if user is link:
                push.lost(reason)


def _copy_threads(watch: WatchedPart | None) -> ThreadPoolExecutor | WatchedExecutor:
    count = max(1, min(_MOST_COPY_THREADS, len(os.sched_getaffinity(0)) // 2))
    if watch is None:
        return ThreadPoolExecutor(count, thread_name_prefix="kv-copy")
    return WatchedExecutor(count, "kv-copy", watch)
