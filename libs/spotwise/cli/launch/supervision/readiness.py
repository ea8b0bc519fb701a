"""Readiness of a process: all its members are registered under its pid, and its gRPC health check answers SERVING.

A predecessor's registration does not count. Liveness needs less: any registration of the process, or any answer.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence
from typing import Self, cast

import grpc
import orjson
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.server_addresses import server_addresses
from spotwise.core.messages.members import MemberState
from spotwise.mesh.grpc.control_access import ControlAccess, blocking_channel
from spotwise.mesh.redis.servers import open_blocking
from spotwise.mesh.security.plane_tls import PlaneTls
from spotwise.wire import subjects

_TIMEOUT_S = 1.0


class Readiness:
    """Queries the services of one mesh; closes its connection to the store at the end of a `with` block."""

    def __init__(self, redis_url: str, tls: PlaneTls | None = None) -> None:
        self._store = open_blocking(redis_url, _TIMEOUT_S, tls)
        self._credentials = ControlAccess(tls).channel_credentials()
        self._addresses: dict[int, tuple[str, ...]] = {}
        self._store_away_s = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._store.close()

    def is_healthy(self, member_ids: Sequence[str], pid: int) -> bool:
        """Whether this process is registered as all of these members, each has started, and it serves."""
        try:
            registrations = self._store.mget([subjects.member_key(member_id) for member_id in member_ids])
        except redis.RedisError:
            return False
        addresses: dict[str, None] = {}
        for registration in cast(list[object], registrations):
            if not isinstance(registration, bytes):
                return False
            member = orjson.loads(registration)
            if member["pid"] != pid or member.get("state") == MemberState.STARTING:
                return False
            addresses[member["grpc_address"]] = None
        self._addresses[pid] = tuple(addresses)
        return all(self._health_of(address) == health_pb2.HealthCheckResponse.SERVING for address in addresses)

    def shows_life(self, member_ids: Sequence[str], pid: int) -> bool | None:
        """Whether a once healthy process gives a sign of life; None where neither it nor the store answers. Thread-safe."""
        registered = self._is_registered(member_ids, pid)
        if registered:
            return True
        # Its own connection to the store may be broken. It answers from the event loop of all its other work.
        answers = any(self._health_of(address) is not None for address in self._addresses.get(pid, ()))
        return True if answers else registered

    def _health_of(self, grpc_address: str) -> object:
        with blocking_channel(grpc_address, self._credentials) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=""), timeout=_TIMEOUT_S
                )
            except grpc.RpcError:
                return None
        return answer.status

    def _is_registered(self, member_ids: Sequence[str], pid: int) -> bool | None:
        """Whether the process is registered as one of these members; None where the store does not answer."""
        if time.monotonic() - self._store_away_s < _TIMEOUT_S:
            return None
        try:
            registrations = self._store.mget([subjects.member_key(member_id) for member_id in member_ids])
        except redis.RedisError:
            self._store_away_s = time.monotonic()
            return None
        found = (orjson.loads(each) for each in cast(list[object], registrations) if isinstance(each, bytes))
        return any(member["pid"] == pid for member in found)


def require_reachable(url: str, option: str) -> None:
    """Check that a server listens at `url`, or one of several; raises `CommandError`, naming `option`, where none does or `url`
    names none.
    """
    refusals = []
    for host, port in server_addresses(url, option):
        try:
            with socket.create_connection((host, port), timeout=5.0):
                return
        except OSError as error:
            # The URL may hold a password.
            refusals.append(f"{host}:{port} ({option}): {error}")
    raise CommandError(f"nothing answers at {', '.join(refusals)}; start the server or correct the URL")
