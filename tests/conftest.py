"""What tests of every kind may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from spotwise.mesh.embedded import nats_server, redis_server, running


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real broker of the test session."""
    with running(nats_server(tmp_path_factory.mktemp("nats"))) as server:
        yield server.url


@pytest.fixture(scope="session")
def _store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(redis_server(tmp_path_factory.mktemp("redis"))) as server:
        yield server.url


@pytest.fixture
def redis_url(_store_url: str) -> str:
    """A real store of the test session, empty at the start of each test."""
    with redis.Redis.from_url(_store_url) as store:
        store.flushall()
    return _store_url
