"""`X-Request-Timeout`: from a header to a deadline, and what a client sees of it."""

from __future__ import annotations

import time

import httpx
import pytest
from prometheus_client import CollectorRegistry

from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.routes.app import create_app
from spotwise.http.errors import GenerationError
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.access import open_to
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, MODEL, FakeMesh

ENDPOINTS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
EXCEEDED = GenerationError(504, "deadline_exceeded", "the deadline came after 2 tokens")


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_the_header_is_a_deadline_for_every_choice(
    client: httpx.AsyncClient, mesh: FakeMesh, path: str, body: dict[str, object]
) -> None:
    before_s = time.time()
    answer = await client.post(path, json={**body, "n": 2}, headers={"X-Request-Timeout": "2.5"})
    assert answer.status_code == 200
    deadlines = {spec.deadline_unix_s for spec in mesh.specs.values()}
    (deadline_s,) = deadlines
    assert deadline_s is not None
    assert before_s + 2.5 <= deadline_s <= time.time() + 2.5


async def test_deadlines_are_of_the_clock_that_judges_them(mesh: FakeMesh, text: ChatText) -> None:
    """The machine's own may be set meanwhile: a deadline that is measured by it would come an hour early."""
    metrics = GatewayMetrics(CollectorRegistry(), MODEL)
    app = create_app(mesh, text, ApiOptions(MODEL), metrics, open_to(), now=lambda: 1000.0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        await client.post("/v1/completions", json=COMPLETION, headers={"X-Request-Timeout": "2.5"})
    assert mesh.spec.deadline_unix_s == 1002.5


async def test_without_the_header_there_is_no_deadline(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """OpenAI's clients send how long they wait between two events, which says nothing of the whole answer."""
    await client.post("/v1/completions", json=COMPLETION, headers={"X-Stainless-Read-Timeout": "600"})
    assert mesh.spec.deadline_unix_s is None


@pytest.mark.parametrize("value", ["", "0", "0.0", "-1", "soon", "nan", "inf", "1e3", "1_0", "5,5", "٣", "9" * 400])
async def test_no_number_of_seconds_is_refused(client: httpx.AsyncClient, mesh: FakeMesh, value: str) -> None:
    answer = await client.post("/v1/completions", json=COMPLETION, headers=[(b"x-request-timeout", value.encode())])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "x-request-timeout", "invalid_value")
    assert mesh.specs == {}


async def test_two_of_them_are_refused(client: httpx.AsyncClient) -> None:
    headers = [("X-Request-Timeout", "5"), ("X-Request-Timeout", "6")]
    assert (await client.post("/v1/completions", json=COMPLETION, headers=headers)).status_code == 400


async def test_an_answer_that_is_late_is_a_504_that_no_client_repeats(
    client: httpx.AsyncClient, mesh: FakeMesh
) -> None:
    """OpenAI's clients repeat a 5xx unless they are told not to."""
    mesh.fail_at, mesh.error = 2, EXCEEDED
    answer = await client.post("/v1/completions", json=COMPLETION, headers={"X-Request-Timeout": "2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers


async def test_a_stream_that_is_late_ends_with_an_error_event(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    mesh.fail_at, mesh.error = 2, EXCEEDED
    answer = await client.post("/v1/completions", json={**COMPLETION, "stream": True})
    *_, error, done = [line for line in answer.text.split("\n") if line]
    assert '"code":"deadline_exceeded"' in error
    assert done == "data: [DONE]"
