"""What tests over a real broker and a real store share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from spotwise.mesh.redis.store import RedisStore
from spotwise.mesh.service.settings import ServiceSettings
from tests.integration.onlooker import Onlooker, looking_on


@pytest.fixture
async def onlooker(nats_url: str, redis_url: str) -> AsyncIterator[Onlooker]:
    async with looking_on(nats_url, redis_url) as onlooker:
        yield onlooker


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.connect(redis_url)
    yield store
    await store.close()


@pytest.fixture
def settings(nats_url: str, redis_url: str) -> ServiceSettings:
    """A member's settings, with quick heartbeats."""
    return ServiceSettings(
        service_id="member-1", nats_url=nats_url, redis_url=redis_url, heartbeat_s=0.02, member_timeout_s=0.4
    )
