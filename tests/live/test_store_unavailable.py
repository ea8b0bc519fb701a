"""Redis stopped, in a real mesh: new requests get a code of their own after a bounded wait, and succeed once it resumes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.live.mesh import MODEL, ONE_MIXED, wait_for
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.parallel

STORE_TIMEOUT_S = 1.0
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[SimulatedMesh]:
    with SimulatedMesh(
        tmp_path,
        *ONE_MIXED,
        env={"SPOTWISE_STORE_TIMEOUT_S": str(STORE_TIMEOUT_S)},
    ) as mesh:
        yield mesh


def test_a_stopped_store_is_called_so_and_soon(simulated: SimulatedMesh) -> None:
    """A running stream continues; the refusal has `Retry-After` and no address.

    Once Redis resumes, requests are served again.
    """
    with simulated.client() as client:
        running = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = iter(running)
        next(chunks)
        store = simulated.pid("redis-server")
        os.kill(store, signal.SIGSTOP)
        try:
            asked_s = time.monotonic()
            with pytest.raises(openai.InternalServerError) as raised:
                client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4)
            waited_s = time.monotonic() - asked_s
            for _ in range(20):
                assert next(chunks).choices
        finally:
            os.kill(store, signal.SIGCONT)
        assert (raised.value.status_code, raised.value.code) == (503, "store_unavailable")
        assert int(raised.value.response.headers["Retry-After"]) >= 1
        assert not re.search(r"\d+\.\d+\.\d+\.\d+|://|:\d{2,5}", raised.value.message)
        assert waited_s < 20 * STORE_TIMEOUT_S  # it was fifty seconds
        running.close()

        def answered() -> bool:
            body = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
            return simulated.post("/v1/chat/completions", body).status_code == 200

        wait_for(answered, lambda: "an answer after the store's return", 60.0)
    simulated.wait_until_idle()
