"""Order in which a client tries NATS servers: the nodes of a cluster in turn, never all clients at the same moment."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import ParseResult

from nats.aio.client import Server

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
