"""What probes and clients ask beside answers: `HEAD`, the version, and pings."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import httpx
import pytest
from starlette.applications import Starlette

from spotwise.gateway.access.auth import ApiKey
from spotwise.http.limits import HttpLimits
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.fake_mesh import CHAT, MODEL, RESPONSE, FakeMesh
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, keeping_app
from tests.unit.gateway.listening import listening

MakeApp = Callable[..., Starlette]


async def test_head_is_get_without_its_body(text: ChatText, mesh: FakeMesh) -> None:
    """At every path that takes GET, with the same status and headers; there, and at paths that take neither."""
    async with (
        listening(keeping_app(KeepingMesh(mesh.reply), text), HttpLimits()) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
    ):
        chat = (await client.post("/v1/chat/completions", json=CHAT, headers={"X-Spotwise-Resumable": "true"})).json()
        response = (await client.post("/v1/responses", json=RESPONSE)).json()
        paths = [
            "/v1/models",
            f"/v1/models/{MODEL}",
            "/health",
            "/livez",
            "/readyz",
            "/ping",
            "/version",
            "/openapi.json",
            "/v1/nothing",
        ]
        paths += [
            f"/v1/requests/{chat['id']}",
            f"/v1/responses/{response['id']}",
            "/v1/models/none",
            "/v1/completions",
        ]
        paths.append(f"/v1/responses/{response['id']}/input_items")
        for path in paths:
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
    streaming = Client(app, "POST", "/v1/chat/completions", CHAT | {"stream": True})
    event = await streaming.event()
    request_id = event.id.partition(".")[0]
    asking = Client(app, "HEAD", f"/v1/requests/{request_id}", headers={"Accept": "text/event-stream"})
    await asking.task
    keeping.go.set()
    assert (await streaming.events())[-1].data is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_ping_says_whether_requests_can_be_served(make_app: MakeApp, mesh: FakeMesh, method: str) -> None:
    """To who has no key as well, as SageMaker has none."""
    async with _connect(make_app(api_keys=(ApiKey("key"),))) as client:
        assert (await client.request(method, "/ping")).status_code == 200
        mesh.ready = False
        assert (await client.request(method, "/ping")).status_code == 503


async def test_alive_ready_and_able_to_serve_are_three_answers(make_app: MakeApp, mesh: FakeMesh) -> None:
    """Without workers requests wait at a gateway that takes them; one that takes none lives on. No key is needed for any."""
    paths = ("/livez", "/readyz", "/health")
    async with _connect(make_app(api_keys=(ApiKey("key"),))) as client:
        assert [(await client.get(path)).status_code for path in paths] == [200, 200, 200]
        mesh.ready = False
        assert [(await client.get(path)).status_code for path in paths] == [200, 200, 503]
        mesh.problem = "the broker does not answer"
        assert [(await client.get(path)).status_code for path in paths] == [200, 503, 503]
        assert (await client.get("/readyz")).json() == {"status": "unavailable", "detail": mesh.problem}


async def test_the_version_is_the_packages(make_app: MakeApp) -> None:
    async with _connect(make_app(api_keys=(ApiKey("key"),))) as client:
        assert (await client.get("/version")).json() == {"version": version("spotwise")}
        refused = await client.post("/version")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def _connect(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
