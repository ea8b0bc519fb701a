"""Opens a client of one Redis server, or of the primary that Redis Sentinel names. A fail-over is a pause: errors of a server
that loads, is demoted or has lost its primary are retried, at the server that Sentinel names then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis
from redis.asyncio import Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import EqualJitterBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.server_urls import SentinelUrl, is_sentinel_url
from spotwise.mesh.security.plane_tls import PlaneTls

#: What a server answers whose role changes, also from within a script: it stands anywhere in the error's text.
_PASSING_ERRORS = ("READONLY", "MASTERDOWN", "LOADING", "NOREPLICAS", "UNBLOCKED", "TRYAGAIN")
_CONNECT_TIMEOUT_S = 5.0
#: A primary that stands still answers no client and breaks no connection.
_PRIMARY_TIMEOUT_S = 1.0
_SENTINEL_TIMEOUT_S = 0.5
#: With up to a second between them: more than a fail-over takes. The store ends a call before (`redis_store.PATIENCE_S`).
_FAILOVER_RETRIES = 20


class _MendedSends:
    """Makes a lost connection, which is retried, of uvloop's error for a transport that was closed before it is written to.
    Raises a cancellation that arrives while a command is sent: redis-py sends by `asyncio.wait_for`, which before Python 3.12
    drops a cancellation where what it waits for is done, so that a time limit around a call would never end it.
    """

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task is not None else 0
        try:
            await super().send_packed_command(*args, **kwargs)  # type: ignore[misc]
        except RuntimeError as error:
            if "closed" not in str(error):
                raise
            raise RedisConnectionError(f"the connection is lost: {error}") from error
        if task is not None and task.cancelling() > cancelled_before:
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]  # the next user would read this command's answer
            raise asyncio.CancelledError


class _ServerConnection(_MendedSends, Connection):
    pass


class _TlsConnection(_MendedSends, SSLConnection):
    pass


_MENDED: dict[type, type] = {Connection: _ServerConnection, SSLConnection: _TlsConnection}


class _PrimaryConnection(_MendedSends, SentinelManagedConnection):
    """A connection to the primary of the moment; redis-py's own repeats a command at the server that it was first named."""

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        if not self.is_connected:
            await self._connect_retry()  # type: ignore[no-untyped-call]
        await super().send_packed_command(*args, **kwargs)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)
        except ResponseError as error:
            if not any(word in str(error) for word in _PASSING_ERRORS):
                raise
            await self.disconnect()  # the next attempt asks Sentinel anew
            raise RedisConnectionError(f"the server is no primary now: {error}") from error


class _PrimaryPool(SentinelConnectionPool):
    """The connections to the primary, which also own those to the sentinels."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def open_redis(url: str, tls: PlaneTls | None = None) -> Redis:
    """Return a client that is not connected yet; raises `MeshError` where the URL is wrong. `tls`: for the scheme `rediss`."""
    try:
        return _of_primary(SentinelUrl(url)) if is_sentinel_url(url) else _of_server(url, tls)
    except ValueError as error:
        # The error's own text may hold the password.
        raise MeshError(
            "the store's URL is wrong; write redis://:PASSWORD@HOST:6379/0 or "
            "redis+sentinel://:PASSWORD@HOST:26379,HOST:26379/PRIMARY_NAME/0, special characters as %XX"
        ) from error


def open_blocking(url: str, timeout_s: float, tls: PlaneTls | None = None) -> redis.Redis:
    """Return a client for a thread that may wait so long for each answer, and retries nothing; not connected yet."""
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": redis.retry.Retry(NoBackoff(), 0),
    }
    if not is_sentinel_url(url):
        return redis.Redis.from_url(url, **options, **_certificates(url, tls))
    named = SentinelUrl(url)
    sentinel = redis.sentinel.Sentinel(named.sentinels, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    client: redis.Redis = sentinel.master_for(  # type: ignore[no-untyped-call]
        named.primary_name, username=named.user, password=named.password, db=named.database, **options
    )
    return client


def _retry(retries: int) -> Retry:
    return Retry(EqualJitterBackoff(cap=1.0, base=0.05), retries)


def _certificates(url: str, tls: PlaneTls | None) -> dict[str, Any]:
    return tls.redis_options() if tls is not None and url.startswith("rediss:") else {}


def _of_server(url: str, tls: PlaneTls | None) -> Redis:
    client: Redis = Redis.from_url(
        url,
        socket_connect_timeout=_CONNECT_TIMEOUT_S,
        retry=_retry(8),
        retry_on_error=[RedisConnectionError, RedisTimeoutError],
        **_certificates(url, tls),
    )
    _mend(client)
    return client


def _mend(client: Redis) -> None:
    pool = client.connection_pool
    pool.connection_class = _MENDED.get(pool.connection_class, pool.connection_class)


def _of_primary(url: SentinelUrl) -> Redis:
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        url.sentinels,
        sentinel_kwargs={
            "socket_timeout": _SENTINEL_TIMEOUT_S,
            "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
            "retry": Retry(EqualJitterBackoff(), 0),  # the next sentinel is asked instead
        },
    )
    for client in sentinel.sentinels:
        _mend(client)
    primary: Redis = sentinel.master_for(
        url.primary_name,
        connection_pool_class=_PrimaryPool,
        connection_class=_PrimaryConnection,
        username=url.user,
        password=url.password,
        db=url.database,
        socket_timeout=_PRIMARY_TIMEOUT_S,
        socket_connect_timeout=_SENTINEL_TIMEOUT_S,
        retry=_retry(_FAILOVER_RETRIES),
    )
    return primary
