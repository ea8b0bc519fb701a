"""The message bus over NATS."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import ParseResult, urlsplit

import nats
import structlog
from nats.aio.client import Client, Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from spotwise.mesh.ports.ports import (
    BusMessage,
    MeshError,
    NoResponderError,
    PayloadTooLargeError,
    ReplyTimeoutError,
    Subscription,
)
from spotwise.mesh.process.server_urls import server_urls, shown_servers, without_passwords
from spotwise.mesh.security.plane_tls import PlaneTls
from spotwise.wire.permissions import reply_prefix

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 1.0

#: Seconds between two PINGs, two of which may be unanswered: a node that stands still, or whose network is cut, is left after
#: two to three of them. One broker alone is waited for longer: there is no other to go to, and a reconnect loses messages.
_PING_S = 5.0
_CLUSTER_PING_S = 1.0
#: How long a subscriber may have none of its subscriptions, while it moves to another node of the cluster.
_MOVING_S = 1.0
_MOVING_POLL_S = 0.05
#: Bytes of messages after which the event loop has a turn: one of a prompt's log-probabilities takes tens of milliseconds.
_TURN_BYTES = 64 << 10
_log = structlog.get_logger(__name__)


class ReconnectOrder:
    """Chooses the server of each attempt to reconnect, and its delay in seconds: the nodes of a cluster in turn, never all
    clients at the same moment.

    The server with the fewest failed attempts is next, the one that was lost after the others. Delays are random, since all
    clients of a node miss it at once; they double with each round over the servers.
    """

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._configured: frozenset[str] = frozenset()
        self._connected_to: ParseResult | None = None

    @property
    def connected_to(self) -> str:
        """Host and port of the server that was connected last."""
        return "" if self._connected_to is None else f"{self._connected_to.hostname}:{self._connected_to.port}"

    def connected(self, server: ParseResult | None, configured: Sequence[ParseResult]) -> None:
        """Note the server that was connected, and those that were given: their URLs hold the credentials, which the addresses
        that a cluster announces do not.
        """
        self._connected_to = server
        self._configured = frozenset(each.netloc for each in configured)

    def __call__(self, servers: Sequence[Server], _info: dict[str, Any]) -> tuple[Server, float]:
        """Return the next server, and the delay before the attempt; nats-py counts what fails in `reconnects`."""
        given = [server for server in servers if server.uri.netloc in self._configured] or servers
        lost = None if self._connected_to is None else self._connected_to.netloc
        chosen = min(given, key=lambda server: (server.reconnects, server.uri.netloc == lost))
        rounds = min(chosen.reconnects, 8)
        return chosen, self._uniform(0.0, min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2**rounds))


def _shown(error: BaseException) -> str:
    return without_passwords(str(error)) or type(error).__name__


def _user_options(url: str) -> dict[str, Any]:
    # A user may receive replies on subjects of its own only, so that no other user's replies reach it.
    user = urlsplit(url.partition(",")[0]).username
    return {"inbox_prefix": reply_prefix(user)} if user else {}


def _tls_options(url: str, tls: PlaneTls | None) -> dict[str, Any]:
    """Return the client's arguments for certificates; raises `MeshError` where they cannot be read."""
    if tls is None or not url.startswith("tls://"):
        return {}
    try:
        return {"tls": tls.client_context()}
    except OSError as error:
        raise MeshError(f"the certificates in {tls.folder} cannot be used: {error}") from error


class _Client(Client):
    """nats-py's client, but for a server that stands still: closing its socket would wait until the server reads what is under
    way, and the client would never try another one.
    """

    async def _process_op_err(self, e: Exception) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if self.is_connected and isinstance(writer, asyncio.StreamWriter):
            writer.transport.abort()
        await super()._process_op_err(e)


class _Subscription:
    def __init__(self, client: Client, subscription: NatsSubscription) -> None:
        self._client = client
        self._subscription: NatsSubscription | None = subscription

    async def unsubscribe(self) -> None:
        """Stop receiving; idempotent."""
        subscription, self._subscription = self._subscription, None
        # Also while the broker is away: the client would subscribe anew when it is back.
        if subscription is not None and not self._client.is_closed and not self._client.is_draining:
            await subscription.unsubscribe()


class NatsBus:
    """A connection to a NATS server, or to one node of a cluster; reconnects forever, so that a broker's restart or a node's
    death is only a pause.
    """

    def __init__(
        self, client: Client, reconnected: list[Callable[[], None]] | None = None, *, has_nodes: bool = False
    ) -> None:
        self._client = client
        self._reconnected = [] if reconnected is None else reconnected
        self._has_nodes = has_nodes

    @classmethod
    async def connect(cls, url: str, name: str, connect_timeout_s: float = 5.0, tls: PlaneTls | None = None) -> NatsBus:
        """Connect under a name that the broker's monitoring shows; raises `MeshError` where no broker answers at `url`, which
        may hold the URLs of several nodes, separated by commas. `tls`: certificates for URLs with the scheme `tls`.
        """

        urls, shown_url = server_urls(url), shown_servers(url)
        client = _Client()
        order = ReconnectOrder()
        reconnected: list[Callable[[], None]] = []

        async def on_error(error: Exception) -> None:
            # While the broker is unreachable, each attempt fails, several a second; `nats_disconnected` was logged already.
            log = _log.warning if client.is_connected else _log.debug
            log("nats_error", error=_shown(error))

        async def on_disconnect() -> None:
            if not client.is_closed:  # by ourselves
                _log.warning("nats_disconnected", server=order.connected_to)

        async def on_reconnect() -> None:
            order.connected(client.connected_url, client.servers)
            _log.info("nats_reconnected", server=order.connected_to)
            for act in reconnected:
                act()

        seconds: dict[str, Any] = {
            # A node that stands still accepts a connection and never greets: time must be left for the others.
            "connect_timeout": connect_timeout_s / len(urls),
            "reconnect_time_wait": 0.2,
            "ping_interval": _PING_S if len(urls) == 1 else _CLUSTER_PING_S,
        }
        options = {**_user_options(url), **_tls_options(url, tls)}
        try:
            # The client would retry its first connection forever, too.
            async with asyncio.timeout(connect_timeout_s):
                await client.connect(
                    urls,
                    name=name,
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    error_cb=on_error,
                    disconnected_cb=on_disconnect,
                    reconnected_cb=on_reconnect,
                    reconnect_to_server_handler=order,
                    **seconds,
                    **options,
                )
        except (OSError, ValueError, nats.errors.Error) as error:
            reason = client.last_error or error
            await client.close()
            raise MeshError(
                f"no NATS server answers at {shown_url} within {connect_timeout_s:g} s: {_shown(reason)}"
            ) from error
        order.connected(client.connected_url, client.servers)
        return cls(client, reconnected, has_nodes=len(urls) > 1)

    @property
    def max_payload_bytes(self) -> int:
        """Largest message that the broker carries."""
        return self._client.max_payload

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send without waiting for receivers."""
        self._check_size(subject, payload)
        try:
            await self._client.publish(subject, payload)
        except nats.errors.Error as error:
            raise MeshError(f"cannot publish on {subject}: {error}") from error

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Send and wait for one answer."""
        self._check_size(subject, payload)
        clock = asyncio.get_running_loop().time
        moved_s = clock() + (min(_MOVING_S, timeout_s) if self._has_nodes else 0.0)
        while True:
            try:
                return await self._request(subject, payload, timeout_s)
            except NoResponderError:
                if clock() >= moved_s:
                    raise
                await asyncio.sleep(_MOVING_POLL_S)

    async def _request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        try:
            reply = await self._client.request(subject, payload, timeout=timeout_s)
        except NoRespondersError:
            raise NoResponderError(f"{subject} has no subscriber") from None
        except NatsTimeoutError:
            raise ReplyTimeoutError(f"no answer on {subject} within {timeout_s:g} s") from None
        except nats.errors.Error as error:
            raise MeshError(f"cannot ask on {subject}: {error}") from error
        return bytes(reply.data)

    async def subscribe(
        self, subject: str, handler: Callable[[BusMessage], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        """Call `handler` for each message, one at a time, in order."""

        handled_bytes = 0

        async def on_message(message: Msg) -> None:
            nonlocal handled_bytes
            respond = message.respond if message.reply else None
            await handler(BusMessage(message.subject, message.data, respond))
            handled_bytes += len(message.data)
            if handled_bytes >= _TURN_BYTES:  # the client goes on with what is here already, and yields to nothing else
                handled_bytes = 0
                await asyncio.sleep(0)

        try:
            subscription = await self._client.subscribe(subject, queue=queue, cb=on_message)
            # So that the broker knows the subscription before this returns. Twice: the client's PING overtakes a SUB that is
            # not written yet, and only the second PONG follows it.
            await self._client.flush()
            await self._client.flush()
        except nats.errors.Error as error:
            raise MeshError(f"cannot subscribe to {subject}: {error}") from error
        return _Subscription(self._client, subscription)

    def when_reconnected(self, act: Callable[[], None]) -> None:
        """Call `act` after each reconnect: messages sent in between may be lost."""
        self._reconnected.append(act)

    async def close(self) -> None:
        """Send what is pending and disconnect; idempotent."""
        if self._client.is_closed:
            return
        if self._client.is_connected:
            await self._client.drain()
        else:
            await self._client.close()

    def _check_size(self, subject: str, payload: bytes) -> None:
        limit = self.max_payload_bytes
        if len(payload) > limit:
            raise PayloadTooLargeError(
                f"a message of {len(payload)} bytes for {subject} exceeds the broker's max_payload of {limit} bytes"
            )
