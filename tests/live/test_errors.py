"""Tests of wrong and excessive requests through the real mesh: OpenAI's error shape, the right status, never a hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh

pytestmark = pytest.mark.paired

CHAT = "/v1/chat/completions"
KEY = {"Authorization": "Bearer sesame"}
HELLO: Any = [{"role": "user", "content": "Hello"}]


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HELLO, "max_tokens": 4, **changes}


@pytest.mark.parametrize(
    ("request_body", "status", "param", "code"),
    [
        (body(model="gpt-unknown"), 404, "model", "model_not_found"),
        (body(messages=[]), 400, "messages", None),
        (body(messages="hi"), 400, "messages", None),
        (body(temperature="hot"), 400, "temperature", None),
        (body(temperature=-1), 400, "temperature", None),
        (body(top_p=2), 400, "top_p", None),
        (body(n=0), 400, "n", None),
        (body(max_tokens=0), 400, "max_tokens", None),
        (body(messages=[{"role": "user", "content": "word " * 9000}]), 400, "messages", "context_length_exceeded"),
        (body(max_tokens=9000), 400, "messages", "context_length_exceeded"),
    ],
)
def test_wrong_requests(
    mesh: LiveMesh, request_body: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    """The status, the parameter at fault, and a code where clients look for one."""
    response = mesh.post(CHAT, request_body)
    error = response.json()["error"]
    assert response.status_code == status, response.text
    assert error["param"] == param
    assert error["message"]
    assert error["type"]
    if code is not None:
        assert error["code"] == code


def test_malformed_json_and_oversize_bodies(mesh: LiveMesh) -> None:
    """Malformed JSON is answered with 400 and an oversize body with 413."""
    broken = httpx.post(f"{mesh.url}{CHAT}", content=b'{"model": ', headers={"Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["error"]["type"]) == (400, "invalid_request_error")
    oversize = httpx.post(f"{mesh.url}{CHAT}", content=b" " * (9 << 20), headers={"Content-Type": "application/json"})
    assert oversize.status_code == 413
    assert "message" in oversize.json()["error"]


def test_what_no_worker_could_ever_hold_is_refused(mesh: LiveMesh) -> None:
    """KV of 256 MiB in float32 is 5,824 tokens: within the context, beyond every worker."""
    response = mesh.post(CHAT, body(max_tokens=7000))
    assert response.status_code == 400
    assert "KV cache" in response.json()["error"]["message"]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """A mesh with keys, a queue of one and hardly any patience, on one mixed worker that reserves whole answers."""
    with LiveMesh(
        tmp_path_factory.mktemp("keyed"),
        *ONE_MIXED,
        env={
            "SPOTWISE_API_KEYS": "desk:sesame,other",
            "SPOTWISE_MAX_QUEUED": "1",
            "SPOTWISE_MAX_QUEUE_S": "1.5",
            "SPOTWISE_MAX_UNREADY_S": "1",
            "SPOTWISE_RESERVE": "max_tokens",
        },
    ) as live:
        yield live


def test_without_a_valid_key_nobody_gets_in(keyed: LiveMesh) -> None:
    """401 without a key and with a wrong one, such as a key with its name; either of the two keys opens."""
    assert keyed.post(CHAT, body()).status_code == 401
    wrong = keyed.post(CHAT, body(), headers={"Authorization": "Bearer wrong"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
    assert keyed.post(CHAT, body(), headers={"Authorization": "Bearer desk:sesame"}).status_code == 401
    for key in ("sesame", "other"):
        assert keyed.post(CHAT, body(), headers={"Authorization": f"Bearer {key}"}).status_code == 200
    with pytest.raises(openai.AuthenticationError):
        keyed.client().chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4)


def test_a_full_mesh_says_so_and_when_to_come_back(keyed: LiveMesh) -> None:
    """One request fills the cache; of three more at once one waits in vain (503), the others are turned away at once (429)."""
    filling = body(max_tokens=5500, ignore_eos=True, stream=True)
    with (
        httpx.stream("POST", f"{keyed.url}{CHAT}", json=filling, headers=KEY, timeout=60.0) as stream,
        ThreadPoolExecutor(3) as clients,
    ):
        lines = stream.iter_lines()
        next(lines)
        answers = [clients.submit(keyed.post, CHAT, body(max_tokens=900), headers=KEY) for _ in range(3)]
        turned_away, also_turned_away, waited = sorted(
            (answer.result(timeout=30) for answer in answers), key=lambda response: response.status_code
        )
        statuses = (turned_away.status_code, also_turned_away.status_code, waited.status_code)
        assert statuses == (429, 429, 503)
        for response in (turned_away, also_turned_away, waited):
            assert int(response.headers["Retry-After"]) >= 1
        assert waited.json()["error"]["code"] == "queue_timeout"
        assert turned_away.json()["error"]["code"] == also_turned_away.json()["error"]["code"] == "mesh_full"
    keyed.wait_until_idle()


def test_no_workers_and_no_scheduler(keyed: LiveMesh) -> None:
    """Without workers, and without a scheduler, the answer is a 503 that names the cause.

    Both with `Retry-After`, neither hangs.

    The last test of this mesh, which has no worker afterwards.
    """
    assert keyed.command("drain", "mixed-0", "--deadline", "5s", "--wait").returncode == 0
    response = keyed.post(CHAT, body(), headers=KEY)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_workers")
    assert int(response.headers["Retry-After"]) >= 1
    assert keyed.get("/health").status_code == 503
    os.kill(keyed.pid("scheduler-0"), signal.SIGSTOP)
    try:
        response = keyed.post(CHAT, body(), headers=KEY)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "no_scheduler")
    finally:
        os.kill(keyed.pid("scheduler-0"), signal.SIGCONT)
