"""Whether a service is open for work: it registered in the store, and its gRPC health check answers SERVING.

Law: a registration counts only when it names the pid that was started; one that a predecessor left behind does not.
"""

from __future__ import annotations

import socket
from typing import Self

import grpc
import orjson
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.backoff import NoBackoff
from redis.retry import Retry

from spotwise.cli.errors import CommandError
from spotwise.cli.options import server_address
from spotwise.wire import subjects

_TIMEOUT_S = 1.0


class Readiness:
    """Asks the services of one mesh; closes its connection to the store at the end of a `with` block."""

    def __init__(self, redis_url: str) -> None:
        self._store = redis.Redis.from_url(
            redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._store.close()

    def is_healthy(self, service_id: str, pid: int) -> bool:
        """Whether this process registered under this id and serves."""
        try:
            registration = self._store.get(subjects.member_key(service_id))
        except redis.RedisError:
            return False
        if not isinstance(registration, bytes):
            return False
        member = orjson.loads(registration)
        return member["pid"] == pid and _serves(member["grpc_address"])


def require_reachable(url: str, option: str) -> None:
    """Check that something listens where the user said a server runs.

    Raises:
        CommandError: nothing does, or `url` names no server; the message names `option`.
    """
    host, port = server_address(url, option)
    try:
        with socket.create_connection((host, port), timeout=5.0):
            pass
    except OSError as error:
        # The URL may hold a password.
        raise CommandError(
            f"nothing answers at {host}:{port} ({option}): {error}; start the server or correct the URL"
        ) from None


def _serves(grpc_address: str) -> bool:
    with grpc.insecure_channel(grpc_address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=""), timeout=_TIMEOUT_S
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
