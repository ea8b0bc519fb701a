"""`spotwise drain --wait`: a worker has left when it reported LEFT, and not when the store was emptied."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from spotwise.cli import drain
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.running import MeshAddresses
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire import subjects
from spotwise.wire.codec import encode

pytestmark = pytest.mark.mesh


def worker(state: MemberState) -> bytes:
    return encode(Member("token-0", MemberKind.TOKEN_WORKER, 7, state, "host", os.getpid(), "127.0.0.1:1"))


async def test_a_worker_that_beats_has_not_left_whatever_the_store_says(nats_url: str, redis_url: str) -> None:
    """The store holds nothing at all; its goodbye ends the wait at once."""
    bus = await NatsBus.connect(nats_url, "token-0")
    waiting = asyncio.create_task(drain._wait(MeshAddresses(nats_url, redis_url), "token-0", 60.0))
    for _ in range(30):
        await bus.publish(subjects.heartbeat(MemberKind.TOKEN_WORKER, "token-0"), worker(MemberState.DRAINING))
        await asyncio.sleep(0.1)
        assert not waiting.done()
    started_s = time.monotonic()
    await bus.publish(subjects.heartbeat(MemberKind.TOKEN_WORKER, "token-0"), worker(MemberState.LEFT))
    await waiting
    assert time.monotonic() - started_s < 2.0
    await bus.close()


async def test_a_worker_that_is_neither_heard_nor_registered_is_gone(
    nats_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that left before the wait is gone; a registered one is waited for until well after its deadline."""
    monkeypatch.setattr(drain, "_SILENCE_S", 0.3)
    mesh = MeshAddresses(nats_url, redis_url)
    await drain._wait(mesh, "token-0", 60.0)
    store = await RedisStore.connect(redis_url)
    await store.register(Member("token-0", MemberKind.TOKEN_WORKER, 7, MemberState.DRAINING, "h", 1, "h:1"), 60.0)
    with pytest.raises(CommandError, match="still there after its deadline"):
        await drain._wait(mesh, "token-0", -9.0)
    await store.close()
