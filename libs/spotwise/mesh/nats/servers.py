"""URLs of brokers and stores, and which NATS server a client tries next: the nodes of a cluster in turn."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import ParseResult, unquote, urlsplit

from nats.aio.client import Server

from spotwise.mesh.process.logs import without_passwords

#: A comma between two URLs, not one in a password.
_BETWEEN_URLS = re.compile(r",\s*(?=[A-Za-z]+://)")
SENTINEL_SCHEME = "redis+sentinel"
SENTINEL_PORT = 26379


def server_urls(url: str) -> list[str]:
    """Return the servers of `nats://HOST:4222,nats://HOST:4222,...`."""
    return [each.strip() for each in _BETWEEN_URLS.split(url)]


def shown_servers(url: str) -> str:
    """Return the servers' URLs without passwords."""
    return ",".join(without_passwords(each) for each in server_urls(url))


class SentinelUrl:
    """`redis+sentinel://[USER:PASSWORD@]HOST:26379,HOST:26379,.../PRIMARY_NAME/0`; raises `ValueError` where it is none."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != SENTINEL_SCHEME:
            raise ValueError("no Sentinel URL")
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        self.user = unquote(user) or None
        self.password = unquote(password) or None
        self.sentinels = [_address(host) for host in hosts.split(",")]
        path = parts.path.strip("/").split("/")
        if not path[0] or len(path) > 2:
            raise ValueError("the URL's path is not /PRIMARY_NAME/DATABASE")
        self.primary_name = unquote(path[0])
        self.database = int(path[1]) if len(path) == 2 else 0


def is_sentinel_url(url: str) -> bool:
    """Whether a store's URL names sentinels."""
    return url.startswith(f"{SENTINEL_SCHEME}://")


def _address(host: str) -> tuple[str, int]:
    name, colon, port = host.rpartition(":")
    if not colon:
        return host, SENTINEL_PORT
    if not name:
        raise ValueError("a sentinel has no host")
    return name.strip("[]"), int(port)


_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 1.0


class ReconnectOrder:
    """Chooses the server of each attempt to reconnect, and its delay in seconds.

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
