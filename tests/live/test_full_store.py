"""A store without memory, in a real mesh: requests are answered and not kept, members stay registered, and it is said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.live.mesh import MODEL, ONE_MIXED, wait_for
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.parallel

HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT = {"model": MODEL, "messages": HELLO, "max_tokens": 8}
RESUMABLE = {"X-Spotwise-Resumable": "true"}


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[SimulatedMesh]:
    with SimulatedMesh(tmp_path, *ONE_MIXED) as mesh:
        yield mesh


def test_a_full_store_serves_and_keeps_nothing(simulated: SimulatedMesh) -> None:
    """Chats, streams and responses are answered, each that was to be kept with a sign; no registration or lease ends; log,
    metrics and `spotwise status` say so. With memory again, all is kept again.
    """
    body = {"model": MODEL, "input": "Hello", "max_output_tokens": 16}
    ready = {status.member.id for status in simulated.members()}
    with redis.Redis.from_url(simulated.admin_redis_url) as store:
        limit = store.config_get("maxmemory")["maxmemory"]
        assert int(limit) > 0
        store.config_set("maxmemory", max(1 << 20, store.info("memory")["used_memory"] - (1 << 20)))
        full_s = time.monotonic()
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            store.set("junk", "x")
        for _ in range(3):
            whole = simulated.post("/v1/chat/completions", CHAT)
            assert (whole.status_code, whole.json()["usage"]["completion_tokens"]) == (200, 8)
            stream = simulated.post("/v1/chat/completions", CHAT | {"stream": True})
            assert stream.status_code == 200
            assert stream.text.endswith("data: [DONE]\n\n")
            resumable = simulated.post("/v1/chat/completions", CHAT, headers=RESUMABLE)
            assert (resumable.status_code, resumable.headers["x-spotwise-warning"]) == (200, "not kept")
            response = simulated.post("/v1/responses", body)
            assert (response.status_code, response.json()["store"]) == (200, False)
            time.sleep(2)
        wait_for(
            lambda: (
                "spotwise_store_full{" in (shown := simulated.get("/metrics").text)
                and any(
                    line.startswith("spotwise_store_full{") and line.endswith(" 1.0") for line in shown.splitlines()
                )
            ),
            lambda: simulated.get("/metrics").text,
            20.0,
        )
        assert time.monotonic() - full_s > 5  # longer than a registration lives without being renewed
        assert {status.member.id for status in simulated.members() if status.serving} == ready
        status = simulated.command("status")
        assert status.returncode == 1
        assert "the store had no more memory at " in status.stderr
        logs = "".join(each.read_text() for each in (simulated.home / "run" / "default" / "logs").glob("gateway*.log"))
        assert "store_full" in logs
        store.config_set("maxmemory", limit)
    kept = simulated.post("/v1/chat/completions", CHAT, headers=RESUMABLE)
    assert "x-spotwise-warning" not in kept.headers
    assert simulated.get(f"/v1/requests/{kept.json()['id']}").json()["state"] == "finished"
    assert simulated.post("/v1/responses", body).json()["store"] is True
    simulated.wait_until_idle()
