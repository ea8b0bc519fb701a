"""Passwords of broker and store: no message, file or list of processes shows one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from spotwise.mesh.embedded.servers import EmbeddedServer, nats_server, redis_server, running
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole

pytestmark = pytest.mark.mesh

PASSWORD = "-hush_Hush-9"


@pytest.mark.parametrize("make_server", [nats_server, redis_server])
def test_no_file_and_no_list_of_processes_shows_a_password(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    with running(make_server(tmp_path, users={Principal(MeshRole.WORKER): PASSWORD})) as server:
        shown = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
        shown += [path.read_text() for path in tmp_path.iterdir()]
        assert len(shown) >= 2
        assert not [text for text in (*shown, repr(server)) if PASSWORD in text]


async def test_no_error_shows_a_password() -> None:
    with pytest.raises(MeshError) as away:
        await NatsBus.connect(f"nats://spotwise:{PASSWORD}@127.0.0.1:1", "friend", connect_timeout_s=0.3)
    assert PASSWORD not in str(away.value)
    assert "127.0.0.1:1" in str(away.value)
    for url in (f"redis://:{PASSWORD}@127.0.0.1:1/0", f"redis://:{PASSWORD}#/@127.0.0.1:1/0"):
        with pytest.raises(MeshError) as gone:
            await RedisStore.connect(url)
        assert "hush" not in str(gone.value).lower()
