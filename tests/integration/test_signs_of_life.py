"""What the supervisor takes for a sign of life of a service."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import orjson
import pytest
import redis

from spotwise.cli.launch.supervision.readiness import Readiness
from spotwise.mesh.embedded.servers import LOOPBACK, free_port, redis_server, running
from spotwise.mesh.grpc.control import ControlServer
from spotwise.wire import subjects

pytestmark = [pytest.mark.mesh, pytest.mark.alone]

MEMBERS = ("token-0", "token-1")


async def test_a_registration_or_an_answer_is_a_sign_of_life(redis_url: str) -> None:
    """A registration or an answer of any member of the process, under its own pid, shows that it lives.

    An answer of any content.
    """
    pid = os.getpid()
    control = ControlServer(LOOPBACK, 0)
    await control.start()
    await control.set_serving(True)
    address = f"{LOOPBACK}:{control.port}"

    def register(member_id: str, of_pid: int) -> None:
        with redis.Redis.from_url(redis_url) as store:
            store.set(subjects.member_key(member_id), orjson.dumps({"pid": of_pid, "grpc_address": address}))

    def forget_all() -> None:
        with redis.Redis.from_url(redis_url) as store:
            store.flushall()

    def ask() -> bool | None:
        return readiness.shows_life(MEMBERS, pid)

    with Readiness(redis_url) as readiness:
        for member_id in MEMBERS:
            register(member_id, pid)
        assert await asyncio.to_thread(readiness.is_healthy, MEMBERS, pid)
        assert await asyncio.to_thread(ask)
        forget_all()
        register("token-1", pid)
        assert await asyncio.to_thread(ask)
        forget_all()
        await control.set_serving(False)
        assert await asyncio.to_thread(ask)
        readiness._store_away_s = time.monotonic()  # it answers no request; this service is well
        assert await asyncio.to_thread(ask)
        readiness._store_away_s = 0.0
        register("token-1", pid + 1)  # another process has its id
        await control.close()
        assert await asyncio.to_thread(ask) is False


def test_a_store_that_is_away_tells_nothing(tmp_path: Path) -> None:
    """Once it is back, what is not registered is silent again."""
    server = redis_server(tmp_path, port=free_port())
    with Readiness(server.url) as readiness:
        assert readiness.shows_life(MEMBERS, 1) is None
        with running(server):
            readiness._store_away_s = 0.0  # a second ago
            assert readiness.shows_life(MEMBERS, 1) is False
