"""Models, health, metrics, keys, routes: what surrounds the two endpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from structlog.testing import capture_logs

from spotwise.gateway.access.auth import ApiKey
from spotwise.http.errors import GenerationError
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, CONTEXT_LENGTH, MODEL, FakeMesh

MakeApp = Callable[..., Starlette]


def connect(app: Starlette, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers)


async def test_models(client: httpx.AsyncClient) -> None:
    """The list and the single model contain the context length; slashes in the name are fine."""
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert listed["data"][0] | {"created": 0} == {
        "id": MODEL,
        "object": "model",
        "created": 0,
        "owned_by": "spotwise",
        "root": MODEL,
        "parent": None,
        "max_model_len": CONTEXT_LENGTH,
    }
    assert (await client.get(f"/v1/models/{MODEL}")).json() == listed["data"][0]


async def test_unknown_model_card(client: httpx.AsyncClient) -> None:
    """An unknown model is answered with 404 and OpenAI's error code."""
    response = await client.get("/v1/models/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_health(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """200 while the mesh can serve, else 503 and why."""
    up = await client.get("/health")
    assert (up.status_code, up.json()["status"], up.json()["workers"]) == (200, "ok", {"prompt": 1, "token": 1})
    mesh.ready = False
    down = await client.get("/health")
    assert (down.status_code, down.json()["status"], down.json()["detail"]) == (503, "unavailable", "no workers")


async def test_metrics_count_what_was_served(
    client: httpx.AsyncClient, registry: CollectorRegistry, mesh: FakeMesh
) -> None:
    """Tokens, ends and latencies of two sequences and of an error; nothing runs or waits afterwards."""
    answer = (await client.post("/v1/chat/completions", json=CHAT | {"n": 2})).json()
    mesh.fail_at = 1
    await client.post("/v1/chat/completions", json=CHAT)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"model_name": MODEL} | labels)

    output_tokens, prompt_tokens = answer["usage"]["completion_tokens"], answer["usage"]["prompt_tokens"]
    assert value("vllm:prompt_tokens_total") == 2 * prompt_tokens
    assert value("vllm:generation_tokens_total") == output_tokens + 1
    assert value("vllm:time_to_first_token_seconds_count") == 3
    assert value("vllm:inter_token_latency_seconds_count") == output_tokens - 2
    assert value("vllm:e2e_request_latency_seconds_count") == 3
    assert value("vllm:request_success_total", finished_reason="stop") == 2
    assert value("vllm:request_success_total", finished_reason="error") == 1
    assert value("spotwise_request_errors_total", code="mesh_full") == 1
    assert (value("vllm:num_requests_running"), value("vllm:num_requests_waiting")) == (0, 0)
    shown = await client.get("/metrics")
    assert shown.headers["content-type"].startswith("text/plain")
    for name in ("request_queue_time_seconds_bucket", "kv_cache_usage_perc", "num_preemptions_total"):
        assert f"vllm:{name}{{" in shown.text


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer ", "Basic key-1", "Bearer schlüssel"])
async def test_keys_are_required(make_app: MakeApp, authorization: str | None) -> None:
    """Without a valid bearer key every path of the API is 401."""
    headers: Any = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    async with connect(make_app(api_keys=(ApiKey("key-1"), ApiKey("key-2", "acme")))) as client:
        for response in (
            await client.get("/v1/models", headers=headers),
            await client.post("/v1/chat/completions", json=CHAT, headers=headers),
        ):
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (401, "invalid_api_key")
            assert error["type"] == "invalid_request_error"
            assert response.headers["www-authenticate"] == "Bearer"


async def test_any_of_the_keys_opens(make_app: MakeApp) -> None:
    """Each key opens the API; probes and metrics need none."""
    app = make_app(api_keys=(ApiKey("key-1", "acme"), ApiKey("clé")))
    for key in ("key-1", "clé"):
        async with connect(app) as client:
            response = await client.get("/v1/models", headers={b"Authorization": f"bearer {key}".encode()})
            assert response.status_code == 200
    async with connect(app) as client:
        assert [(await client.get(path)).status_code for path in ("/health", "/metrics")] == [200, 200]


async def test_unknown_route_and_wrong_method(client: httpx.AsyncClient) -> None:
    """404 and 405 have OpenAI's shape too."""
    unknown = await client.get("/v1/nothing")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_url")
    wrong = await client.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(("retry_after_s", "header"), [(0.0, "1"), (1.4, "2"), (30.0, "30"), (None, None)])
@pytest.mark.parametrize("stream", [False, True])
async def test_full_mesh_is_a_status_with_retry_after(
    client: httpx.AsyncClient, mesh: FakeMesh, retry_after_s: float | None, header: str | None, stream: bool
) -> None:
    """A failure before the mesh's first sign of life is an HTTP error, for streams as well."""
    mesh.fail_at, mesh.error = 0, GenerationError(429, "too_many_requests", "Wait.", retry_after_s)
    response = await client.post("/v1/completions", json=COMPLETION | {"stream": stream})
    assert response.status_code == 429
    assert response.headers.get("retry-after") == header
    want = {"message": "Wait.", "type": "rate_limit_error", "param": None, "code": "too_many_requests"}
    assert response.json() == {"error": want}


async def test_unforeseen_failure_reveals_nothing(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """A bare 500 for the client, the traceback for the log."""
    mesh.fail_at, mesh.error = 0, RuntimeError("secret detail")
    with capture_logs() as logs:
        response = await client.post("/v1/completions", json=COMPLETION)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert "secret" not in response.text
    assert [str(entry["exc_info"]) for entry in logs] == ["secret detail"]
    assert [entry["request_id"] for entry in logs] == [response.headers["x-request-id"]]
