"""Models, health, probes, metrics, keys, routes: what surrounds the two endpoints."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from spotwise.gateway.access.auth import ApiKey
from spotwise.http.errors import GenerationError
from spotwise.http.limits import HttpLimits
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Http, MakeApp, connect, metric
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, CONTEXT_LENGTH, MODEL, RESPONSE, FakeMesh
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, keeping_app
from tests.unit.gateway.listening import listening


async def test_models(client: Http) -> None:
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


async def test_health(client: Http, mesh: FakeMesh) -> None:
    """200 while the mesh can serve, else 503 and why."""
    up = await client.get("/health")
    assert (up.status_code, up.json()["status"], up.json()["workers"]) == (200, "ok", {"prompt": 1, "token": 1})
    mesh.ready = False
    down = await client.get("/health")
    assert (down.status_code, down.json()["status"], down.json()["detail"]) == (503, "unavailable", "no workers")


async def test_metrics_count_what_was_served(client: Http, registry: CollectorRegistry, mesh: FakeMesh) -> None:
    """Tokens, ends and latencies of two sequences and of an error; nothing runs or waits afterwards."""
    answer = (await client.post(CHATS, json=CHAT | {"n": 2})).json()
    mesh.fail_at = 1
    await client.post(CHATS, json=CHAT)

    value = partial(metric, registry)
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
            await client.post(CHATS, json=CHAT, headers=headers),
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


async def test_unknown_route_and_wrong_method(client: Http) -> None:
    """404 and 405 have OpenAI's shape too."""
    unknown = await client.get("/v1/nothing")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_url")
    wrong = await client.get(COMPLETIONS)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(("retry_after_s", "header"), [(0.0, "1"), (1.4, "2"), (30.0, "30"), (None, None)])
@pytest.mark.parametrize("stream", [False, True])
async def test_full_mesh_is_a_status_with_retry_after(
    client: Http, mesh: FakeMesh, retry_after_s: float | None, header: str | None, stream: bool
) -> None:
    """A failure before the mesh's first sign of life is an HTTP error, for streams as well."""
    mesh.fail_at, mesh.error = 0, GenerationError(429, "too_many_requests", "Wait.", retry_after_s)
    response = await client.post(COMPLETIONS, json=COMPLETION | {"stream": stream})
    assert response.status_code == 429
    assert response.headers.get("retry-after") == header
    want = {"message": "Wait.", "type": "rate_limit_error", "param": None, "code": "too_many_requests"}
    assert response.json() == {"error": want}


async def test_unforeseen_failure_reveals_nothing(client: Http, mesh: FakeMesh) -> None:
    """A bare 500 for the client, the traceback for the log."""
    mesh.fail_at, mesh.error = 0, RuntimeError("secret detail")
    with capture_logs() as logs:
        response = await client.post(COMPLETIONS, json=COMPLETION)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert "secret" not in response.text
    assert [str(entry["exc_info"]) for entry in logs] == ["secret detail"]
    assert [entry["request_id"] for entry in logs] == [response.headers["x-request-id"]]


async def test_head_is_get_without_its_body(text: ChatText, mesh: FakeMesh) -> None:
    """At every path that takes GET, with the same status and headers; there, and at paths that take neither."""
    async with (
        listening(keeping_app(KeepingMesh(mesh.reply), text), HttpLimits()) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
    ):
        chat = (await client.post(CHATS, json=CHAT, headers={"X-Spotwise-Resumable": "true"})).json()
        response = (await client.post("/v1/responses", json=RESPONSE)).json()
        paths = ["models", f"models/{MODEL}", "nothing", "models/none", "completions", f"requests/{chat['id']}"]
        paths += [f"responses/{response['id']}", f"responses/{response['id']}/input_items"]
        others = ["/health", "/livez", "/readyz", "/ping", "/version", "/openapi.json"]
        for path in (*others, *(f"/v1/{each}" for each in paths)):
            got, head = await client.get(path), await client.head(path)
            assert head.status_code == got.status_code, path
            assert head.content == b""
            assert head.headers["content-type"] == got.headers["content-type"]
            if got.is_success:
                assert head.headers["content-length"] == got.headers["content-length"], path
        assert (await client.head("/metrics")).status_code == 200


async def test_head_takes_no_stream_from_its_connection(text: ChatText, mesh: FakeMesh) -> None:
    """Though it asks for events."""
    keeping = KeepingMesh(mesh.reply, hang_at=2)
    app = keeping_app(keeping, text)
    streaming = Client(app, "POST", CHATS, CHAT | {"stream": True})
    event = await streaming.event()
    request_id = event.id.partition(".")[0]
    asking = Client(app, "HEAD", f"/v1/requests/{request_id}", headers={"Accept": "text/event-stream"})
    await asking.task
    keeping.go.set()
    assert (await streaming.events())[-1].data is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_ping_says_whether_requests_can_be_served(make_app: MakeApp, mesh: FakeMesh, method: str) -> None:
    """To who has no key as well, as SageMaker has none."""
    async with connect(make_app(api_keys=(ApiKey("key"),))) as client:
        assert (await client.request(method, "/ping")).status_code == 200
        mesh.ready = False
        assert (await client.request(method, "/ping")).status_code == 503


async def test_alive_ready_and_able_to_serve_are_three_answers(make_app: MakeApp, mesh: FakeMesh) -> None:
    """Without workers requests wait at a gateway that takes them; one that takes none lives on. No key is needed for any."""
    paths = ("/livez", "/readyz", "/health")
    async with connect(make_app(api_keys=(ApiKey("key"),))) as client:
        assert [(await client.get(path)).status_code for path in paths] == [200, 200, 200]
        mesh.ready = False
        assert [(await client.get(path)).status_code for path in paths] == [200, 200, 503]
        mesh.problem = "the broker does not answer"
        assert [(await client.get(path)).status_code for path in paths] == [200, 503, 503]
        assert (await client.get("/readyz")).json() == {"status": "unavailable", "detail": mesh.problem}


async def test_the_version_is_the_packages(make_app: MakeApp) -> None:
    async with connect(make_app(api_keys=(ApiKey("key"),))) as client:
        assert (await client.get("/version")).json() == {"version": version("spotwise")}
        refused = await client.post("/version")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
