"""The whole API over a store that answers 0.6 s late, having done what it was told: nothing fails, no stream waits for it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from spotwise.mesh.embedded.servers import redis_server, running
from tests.live.mesh import MODEL, ONE_MIXED, wait_for
from tests.live.simulated_mesh import SimulatedMesh
from tests.live.slow_store import SlowStore

#: Longer than a quota waits for the store.
DELAY_S = 0.6
#: What a request may take: several calls of the store, one after another, on a busy machine.
PATIENCE_S = 60.0
HELLO = [{"role": "user", "content": "Hello"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 8}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "Hello", "max_tokens": 8}
ITEMS: dict[str, Any] = {"model": MODEL, "input": "Hello", "max_output_tokens": 16}
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": ITEMS,
    "/v1/messages": CHAT,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with running(redis_server(tmp_path_factory.mktemp("redis"))) as server:
        port = urlsplit(server.url).port
        assert port is not None
        with SlowStore(port).running() as relay:
            yield relay


@pytest.fixture(scope="module")
def mesh(store: SlowStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """A mesh that came up with a quick store."""
    with SimulatedMesh(tmp_path_factory.mktemp("slow"), *ONE_MIXED, "--redis-url", store.url) as live:
        yield live
        store.delay_s = 0.0


@pytest.fixture(scope="module")
def client(store: SlowStore, mesh: SimulatedMesh) -> Iterator[httpx.Client]:
    """A client whose key has limits, so that each request asks the store for room; from then on the store is slow."""
    limits = ("--requests-per-minute", "10000", "--tokens-per-minute", "1000000", "--tokens-per-day", "5000000")
    made = mesh.command("keys", "create", "acme", *limits, "--json")
    assert made.returncode == 0, made.stdout + made.stderr
    access = {"Authorization": f"Bearer {json.loads(made.stdout)['key']}"}
    with httpx.Client(base_url=mesh.url, headers=access, timeout=PATIENCE_S) as with_key:
        wait_for(lambda: with_key.get("/v1/models").status_code == 200, lambda: "the key to be known")
        store.delay_s = DELAY_S
        yield with_key


@contextmanager
def steady_gaps_s(client: httpx.Client) -> Iterator[list[float]]:
    """A stream beside the block; its gaps, once the block has ended."""
    gaps_s: list[float] = []
    body = TEXT | {"max_tokens": 4000, "stream": True, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        events = response.iter_raw()
        next(events)
        ended = threading.Event()

        def read() -> None:
            last_s = time.monotonic()
            for _ in events:
                now_s = time.monotonic()
                gaps_s.append(now_s - last_s)
                last_s = now_s
                if ended.is_set():
                    return

        reading = threading.Thread(target=read)
        reading.start()
        try:
            yield gaps_s
        finally:
            ended.set()
            reading.join(PATIENCE_S)


def answer_comes_whole_and_streamed(client: httpx.Client, path: str) -> None:
    whole = client.post(path, json=GENERATING[path])
    assert whole.status_code == 200, whole.text
    with client.stream("POST", path, json=GENERATING[path] | {"stream": True}) as streamed:
        text = streamed.read().decode()
    assert streamed.status_code == 200, text
    assert '"error":{' not in text.replace(" ", "")


def kept_answer_is_read_again_and_deleted(client: httpx.Client) -> None:
    """As is a stream that another connection goes on with, and a request that was sent twice with one key."""
    kept = {"X-Resume": "true", "Idempotency-Key": "once"}
    first = client.post("/v1/completions", json=TEXT, headers=kept)
    again = client.post("/v1/completions", json=TEXT, headers=kept)
    assert (first.status_code, again.status_code) == (200, 200), first.text + again.text
    assert again.json()["choices"] == first.json()["choices"]
    where = f"/v1/requests/{first.json()['id']}"
    assert client.get(where).status_code == 200
    assert client.delete(where).status_code in (200, 204, 409)


def conversation_goes_on_and_is_deleted(client: httpx.Client) -> None:
    first = client.post("/v1/responses", json=ITEMS)
    assert first.status_code == 200, first.text
    where = f"/v1/responses/{first.json()['id']}"
    assert client.get(where).status_code == 200
    next_ = client.post("/v1/responses", json=ITEMS | {"previous_response_id": first.json()["id"]})
    assert next_.status_code == 200, next_.text
    assert client.get(f"{where}/input_items").status_code == 200
    assert client.delete(where).status_code == 200
    assert client.get(where).status_code == 404


def test_requests_of_all_kinds_end_well(client: httpx.Client) -> None:
    """All at once, since each waits for the store most of its time."""
    uses = [partial(answer_comes_whole_and_streamed, client, path) for path in GENERATING]
    uses += [partial(kept_answer_is_read_again_and_deleted, client)]
    uses += [partial(conversation_goes_on_and_is_deleted, client)]
    with ThreadPoolExecutor(len(uses)) as clients:
        for done in [clients.submit(use) for use in uses]:
            done.result()


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/health", "/version", "/ping", "/metrics"])
def test_what_needs_no_store_does_not_wait_for_it(client: httpx.Client, path: str) -> None:
    began_s = time.monotonic()
    assert client.get(path).status_code == 200
    assert time.monotonic() - began_s < DELAY_S


def test_texts_are_tokenized(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"model": MODEL, "prompt": "Hello"})
    assert tokens.status_code == 200, tokens.text
    assert client.post("/detokenize", json={"model": MODEL, "tokens": tokens.json()["tokens"]}).status_code == 200
    assert client.post("/v1/messages/count_tokens", json={"model": MODEL, "messages": HELLO}).status_code == 200


def test_a_stream_does_not_wait_for_the_store(client: httpx.Client) -> None:
    """Its gaps are shorter than the store's delay, beside sixteen requests that ask for room and keep what they answer."""
    with steady_gaps_s(client) as gaps_s, ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda _: client.post("/v1/responses", json=ITEMS), range(16)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(gaps_s) > 10
    assert max(gaps_s) < DELAY_S


def test_members_stay(mesh: SimulatedMesh, client: httpx.Client) -> None:
    """Their registrations are renewed in time, and requests leave nothing behind."""
    shown = mesh.command("status", "--json")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    mesh.wait_until_idle()
