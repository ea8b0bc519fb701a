"""A worker's links: accepted ones, and one cached per peer address. Concurrent callers share one connection attempt. A link
that failed or timed out leaves the cache at once, so that the next push reconnects.

What strangers can hold is bounded: connections that have not shown that they know the mesh's secret are few and wait for a
short time, and the oldest makes room for a new one. A peer has few links; its oldest ends where it opens one more.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Generic

import structlog

from spotwise.mesh.links.ucx_link import F, FrameBuffers, FrameHandler, LinkProtocol, UcxLink
from spotwise.mesh.links.ucx_reactor import UcxReactor, keep_to_loopback, remote_host
from spotwise.mesh.ports.ports import KvTransferError, MeshError
from spotwise.mesh.process.logs import RefusedConnections
from spotwise.mesh.security.handshake import Handshake
from spotwise.mesh.security.link_security import LinkRefusedError, LinkSecurity
from spotwise.wire.framing import MAX_PAYLOAD_BYTES
from spotwise.wire.link_hello import HelloRefusal, LinkHello

_log = structlog.get_logger(__name__)

_ACCEPT_TIMEOUT_S = 5.0
#: Accepted connections without a verified hello.
MOST_WAITING = 64
#: Accepted links of one peer: one that is used, and others on which a push has timed out or whose end is not noticed yet.
MOST_LINKS_OF_A_PEER = 8
#: Accepted links of all peers.
MOST_LINKS = 4096


class UcxLinks(Generic[F]):
    """Listens, connects, and keeps the open links."""

    def __init__(
        self,
        me: LinkHello,
        protocol: LinkProtocol[F],
        buffers: FrameBuffers[F],
        in_flight: int,
        on_frame: FrameHandler[F],
        on_lost: Callable[[UcxLink[F], str], object],
        *,
        host_memory: bool = True,
        loopback_only: bool = False,
        admitted_bytes: Callable[[UcxLink[F], F], int] = lambda _link, _frame: MAX_PAYLOAD_BYTES,
        security: LinkSecurity | None = None,
        can_seal: bool = True,
    ) -> None:
        """Create them; nothing is opened before `listen`.

        Args:
            me: this end's hello.
            admitted_bytes: largest payload that a header may announce.
            security: security of all links; by default, without a secret.
            can_seal: payloads can be encrypted: those in a device's memory cannot.
        """
        self.refusals = RefusedConnections("transfer")
        self._security = security or LinkSecurity()
        self._can_seal = can_seal
        self._host_memory = host_memory
        self._loopback_only = loopback_only
        self._admitted_bytes = admitted_bytes
        self._me = me
        self._protocol = protocol
        self._buffers = buffers
        self._in_flight = in_flight
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._reactor: UcxReactor | None = None
        self._listener: Any = None
        self._by_address: dict[str, asyncio.Task[UcxLink[F]]] = {}
        self._open: set[UcxLink[F]] = set()
        self._waiting: dict[UcxLink[F], None] = {}  # accepted, the oldest first
        self._accepted: dict[str, dict[UcxLink[F], None]] = {}  # by the peer's id, the oldest first
        self._chores: set[asyncio.Task[Any]] = set()

    def listen(self, port: int) -> int:
        """Open UCX on the running loop and return the port listened on; raises `MeshError` where the port is taken."""
        reactor = UcxReactor(host_memory=self._host_memory, loopback_only=self._loopback_only)
        try:
            self._listener = reactor.ucx.UCXListener.create(
                reactor.worker, port, reactor.soon(self._accept), deliver_endpoint=True
            )
        except reactor.ucx.UCXError as error:
            reactor.close()
            raise MeshError(f"cannot listen on port {port} ({error}); choose another, or 0 for a free one") from None
        self._reactor = reactor
        bound: int = self._listener.port
        if not self._loopback_only and self._security.secret is None:
            _log.warning(
                "links_without_a_secret",
                port=bound,
                reason="who reaches it can take part; set SPOTWISE_MESH_SECRET_FILE",
            )
        if self._loopback_only:
            try:
                keep_to_loopback(bound)
            except OSError as error:
                _log.warning("kv_listener_on_all_interfaces", port=bound, error=str(error))
        return bound

    async def to(self, address: str, timeout_s: float) -> UcxLink[F]:
        """Return the link to a peer, connecting where there is none; raises `KvTransferError`: unreachable, or closed."""
        task = self._by_address.get(address)
        if task is None:
            task = self._by_address[address] = self._chore(self._connect(address, timeout_s))
            task.add_done_callback(lambda done: self._connected(address, done))
        try:
            # Shielded: other pushes may wait for the same connection.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise KvTransferError("the transport was closed") from None
            raise

    def drop(self, link: UcxLink[F]) -> None:
        """Remove a link from the cache; it stays open for the pushes that use it."""
        for address, task in tuple(self._by_address.items()):
            if task.done() and task.result() is link:
                del self._by_address[address]

    async def close(self) -> None:
        """Stop listening and close every link; idempotent."""
        self._listener = None
        for task in tuple(self._by_address.values()):
            task.cancel()
        for link in tuple(self._open):
            await link.close()
        while self._chores:
            await asyncio.wait(set(self._chores))
        if self._reactor is not None:
            self._reactor.close()
            self._reactor = None

    async def _connect(self, address: str, timeout_s: float) -> UcxLink[F]:
        if self._reactor is None:
            raise KvTransferError("this worker's transport is not started, or closed")
        host, _, port = address.rpartition(":")
        try:
            # Resolved here: UCX would block the loop on the name server.
            found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            endpoint = self._reactor.ucx.UCXEndpoint.create(self._reactor.worker, found[0][4][0], int(port), True)
        except (OSError, ValueError, OverflowError, self._reactor.ucx.UCXError) as error:
            raise KvTransferError(f"cannot connect: {error}") from None
        link = self._linked(self._reactor, endpoint)
        return await self._greet(link, str(found[0][4][0]), accepted=False, timeout_s=timeout_s)

    def _connected(self, address: str, task: asyncio.Task[UcxLink[F]]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._by_address.get(address) is task:
            del self._by_address[address]

    def _accept(self, endpoint: Any) -> None:
        if self._listener is None or self._reactor is None:
            return
        peer_host = remote_host(endpoint)
        link = self._linked(self._reactor, endpoint)
        self._waiting[link] = None
        if len(self._waiting) > MOST_WAITING:
            oldest = next(iter(self._waiting))
            self._refuse(LinkRefusedError(HelloRefusal.TOO_MANY_WAITING), None)
            del self._waiting[oldest]
            oldest.fail("too many connections wait for their hello")
        greeting = self._chore(self._greet_caller(link, peer_host))
        greeting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _greet_caller(self, link: UcxLink[F], peer_host: str | None) -> None:
        try:
            await self._greet(link, peer_host, accepted=True, timeout_s=_ACCEPT_TIMEOUT_S)
        except KvTransferError as error:
            if link in self._waiting:  # else it has made room for another, and is counted
                self._refuse(error, peer_host)
            return
        finally:
            self._waiting.pop(link, None)
        links = self._accepted.setdefault(link.peer.worker_id, {})
        links[link] = None
        if not link.alive:
            self._leave(link)
        elif len(links) > MOST_LINKS_OF_A_PEER:
            oldest = next(iter(links))
            self._refuse(LinkRefusedError(HelloRefusal.TOO_MANY_LINKS), peer_host)
            oldest.fail("its peer has opened too many links")

    def _refuse(self, error: KvTransferError, peer_host: str | None) -> None:
        refusal = error.refusal if isinstance(error, LinkRefusedError) else HelloRefusal.INCOMPATIBLE
        self.refusals.count(refusal.name.lower(), str(error), peer_host)

    def _linked(self, reactor: UcxReactor, endpoint: Any) -> UcxLink[F]:
        return UcxLink(
            reactor,
            endpoint,
            self._protocol,
            self._buffers,
            self._in_flight,
            self._on_frame,
            self._lost,
            self._admitted_bytes,
        )

    async def _greet(self, link: UcxLink[F], peer_host: str | None, *, accepted: bool, timeout_s: float) -> UcxLink[F]:
        self._open.add(link)
        try:
            handshake = Handshake(self._security, self._protocol.kind, peer_host, can_seal=self._can_seal)
            await link.open(handshake, self._me, accepted=accepted, timeout_s=timeout_s, admit=self._admit)
        except BaseException:
            link.fail("the connection was not completed")
            raise
        return link

    def _admit(self, peer: LinkHello) -> HelloRefusal | None:
        return HelloRefusal.TOO_MANY_LINKS if sum(map(len, self._accepted.values())) >= MOST_LINKS else None

    def _leave(self, link: UcxLink[F]) -> None:
        for worker_id, links in tuple(self._accepted.items()):
            if link in links:
                del links[link]
                if not links:
                    del self._accepted[worker_id]

    def _lost(self, link: UcxLink[F], reason: str) -> None:
        self.drop(link)
        self._leave(link)
        self._on_lost(link, reason)
        self._chore(self._dispose(link))

    async def _dispose(self, link: UcxLink[F]) -> None:
        await link.close()
        self._open.discard(link)

    def _chore(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        return task
