"""Broker and store with a password: strangers are refused, and no message or list of processes shows it."""

from __future__ import annotations

from pathlib import Path

import nats
import psutil
import pytest
import redis
from nats.aio.client import Client

from spotwise.mesh.embedded.servers import EmbeddedServer, nats_server, redis_server, running
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.redis.store import RedisStore

pytestmark = pytest.mark.mesh

PASSWORD = "-hush_Hush-9"


async def _nothing(_error: Exception) -> None:
    pass


async def test_a_broker_with_a_password_lets_in_who_has_it(tmp_path: Path) -> None:
    with running(nats_server(tmp_path, password=PASSWORD)) as server:
        bus = await NatsBus.connect(server.url, "friend")
        await bus.close()
        stranger = Client()
        with pytest.raises(nats.errors.Error, match="Authorization"):
            await stranger.connect(f"nats://127.0.0.1:{server.port}", allow_reconnect=False, error_cb=_nothing)
        await stranger.close()
        _nowhere_to_be_seen(server, tmp_path)


async def test_a_store_with_a_password_lets_in_who_has_it(tmp_path: Path) -> None:
    with running(redis_server(tmp_path, password=PASSWORD)) as server:
        store = await RedisStore.connect(server.url)
        await store.members()
        await store.close()
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        _nowhere_to_be_seen(server, tmp_path)


def _nowhere_to_be_seen(server: EmbeddedServer, folder: Path) -> None:
    shown = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    shown += [path.read_text() for path in folder.iterdir()]
    assert len(shown) >= 2
    assert not [text for text in (*shown, repr(server.argv)) if PASSWORD in text]


async def test_no_error_shows_a_password() -> None:
    with pytest.raises(MeshError) as away:
        await NatsBus.connect(f"nats://spotwise:{PASSWORD}@127.0.0.1:1", "friend", connect_timeout_s=0.3)
    assert PASSWORD not in str(away.value)
    assert "127.0.0.1:1" in str(away.value)
    for url in (f"redis://:{PASSWORD}@127.0.0.1:1/0", f"redis://:{PASSWORD}#/@127.0.0.1:1/0"):
        with pytest.raises(MeshError) as gone:
            await RedisStore.connect(url)
        assert "hush" not in str(gone.value).lower()
