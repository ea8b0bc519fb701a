"""Tests of headers and paths: request ids, origins, encodings, slashes, and deadlines by `X-Request-Timeout`."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest
from pydantic import ValidationError

from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.errors import GenerationError
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Http, MakeApp, app_over, connect
from tests.unit.gateway.fake_mesh import BOTH, CHAT, CHATS, COMPLETION, COMPLETIONS, MODEL, FakeMesh

ORIGIN = "https://chat.example"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_clients_request_id_is_the_answers(client: Http, mesh: FakeMesh, stream: bool) -> None:
    body = COMPLETION | {"stream": stream}
    response = await client.post(COMPLETIONS, json=body, headers={"X-Request-Id": "trace/42:a=b"})
    assert response.headers.get_list("x-request-id") == ["trace/42:a=b"]
    assert mesh.spec.client_request_id == "trace/42:a=b"


async def test_without_one_it_is_the_id_of_the_answer(client: Http, mesh: FakeMesh) -> None:
    """Under which its ledger is kept; errors of the mesh carry it as well."""
    response = await client.post(COMPLETIONS, json=COMPLETION)
    assert response.headers.get_list("x-request-id") == [response.json()["id"]]
    assert mesh.spec.client_request_id == ""
    mesh.specs.clear()
    mesh.fail_at = 0
    failed = await client.post(COMPLETIONS, json=COMPLETION)
    assert (failed.status_code, failed.headers.get_list("x-request-id")) == (503, list(mesh.specs))


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/nothing", "/v1/models"])
async def test_errors_carry_an_id(make_app: MakeApp, path: str) -> None:
    """Whatever is refused: by its body, its path, its key."""
    async with connect(make_app(api_keys=(ApiKey("key"),))) as client:
        for headers in ({}, {"Authorization": "Bearer key"}):
            response = await client.post(path, json={}, headers=headers)
            assert response.status_code >= 400
            assert response.headers["x-request-id"].startswith("req-")
            named = await client.post(path, json={}, headers=headers | {"X-Request-Id": "mine"})
            assert named.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é", '"quoted"', "a,b"])
async def test_odd_ids_are_not_given_back(client: Http, given: str) -> None:
    headers = {b"X-Request-Id": given.encode("latin-1")}
    response = await client.post(COMPLETIONS, json=COMPLETION, headers=headers)
    assert response.headers["x-request-id"] == response.json()["id"]


async def test_a_browser_without_a_key_reads_answers_and_errors(make_app: MakeApp) -> None:
    """The preflight needs no key; the request itself does, and a page may read what is wrong with it."""
    app = make_app(api_keys=(ApiKey("key"),), cors_origins=(ORIGIN,))
    preflight_headers = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    async with connect(app) as client:
        preflight = await client.options(CHATS, headers=preflight_headers)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
        refused = await client.post(CHATS, json=CHAT, headers={"Origin": ORIGIN})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)
        answer = await client.post(CHATS, json=CHAT, headers={"Origin": ORIGIN, "Authorization": "Bearer key"})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        other = await client.options(CHATS, headers=preflight_headers | {"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


OPEN_API_PAGES = [
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "http://evil.example:8000", "Host": "evil.example:8000", "Sec-Fetch-Site": "same-origin"}, 403),
    ({"Origin": "http://localhost.evil.example"}, 403),
    ({"Origin": "http://["}, 403),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({}, 200),
    ({"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"}, 200),
    ({"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}, 200),
    ({"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}, 200),
    ({"Origin": "http://[::1]"}, 200),
]


@pytest.mark.parametrize(("headers", "status"), OPEN_API_PAGES)
async def test_pages_of_other_origins_cannot_use_an_open_api(
    make_app: MakeApp, mesh: FakeMesh, headers: dict[str, str], status: int
) -> None:
    """A page that a user of this machine looks at sends without asking, under a name that may lead to loopback."""
    async with connect(make_app(cors_origins=(ORIGIN,))) as client:
        # Without a media type: a browser sends that without a preflight request.
        answer = await client.post(CHATS, content=json.dumps(CHAT), headers=headers)
        assert (answer.status_code, bool(mesh.specs)) == (status, status == 200)
        if status == 403:
            error = answer.json()["error"]
            assert error["code"] == "origin_not_allowed" and "SPOTWISE_CORS_ORIGINS" in error["message"]


@pytest.mark.parametrize(("headers", "status"), OPEN_API_PAGES)
async def test_a_valid_key_is_enough_from_any_page(make_app: MakeApp, headers: dict[str, str], status: int) -> None:
    """A page that has a key was given it; one that has none is refused for that."""
    async with connect(make_app(api_keys=(ApiKey("key"),))) as client:
        post = partial(client.post, CHATS, json=CHAT)
        assert (await post(headers=headers | {"Authorization": "Bearer key"})).status_code == 200
        assert (await post(headers=headers)).status_code == 401


async def test_every_page_may_use_an_open_api_where_that_is_said(make_app: MakeApp) -> None:
    """`*` is for pages without an origin, too."""
    async with connect(make_app(cors_origins=("*",))) as client:
        for origin in ("https://any.example", "null"):
            answer = await client.post(CHATS, json=CHAT, headers={"Origin": origin})
            assert answer.status_code == 200


@pytest.mark.parametrize(("origins", "allowed"), [(("*",), "*"), ((), None)])
async def test_every_origin_or_none(make_app: MakeApp, origins: tuple[str, ...], allowed: str | None) -> None:
    """`*` lets pages of all origins in; by default none is."""
    async with connect(make_app(cors_origins=origins), Origin=ORIGIN) as client:
        assert (await client.get("/v1/models")).headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize("origins", ["chat.example", "https://chat.example/", "https://a, b", "https://a/b"])
def test_what_is_no_origin_is_refused_at_the_start(origins: str, model_dir: Path) -> None:
    """Browsers send scheme, host and port; anything else would never match."""
    with pytest.raises(ValidationError, match="an origin is"):
        GatewaySettings(model_dir=model_dir, cors_origins=origins)
    allowed = GatewaySettings(model_dir=model_dir, cors_origins="https://chat.example:8443, http://localhost,")
    assert allowed.browser_origins == ("https://chat.example:8443", "http://localhost")


@pytest.mark.parametrize("coding", ["deflate", "br", "gzip, identity", "gzip, gzip"])
async def test_encoded_bodies(client: Http, coding: str) -> None:
    """What is neither gzip nor `identity` gets 415 with what to send instead."""
    response = await client.post(COMPLETIONS, content=b"\x1f\x8b", headers={"Content-Encoding": coding})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_content_encoding")
    assert response.headers["accept-encoding"] == "gzip, identity"
    plain = await client.post(COMPLETIONS, json=COMPLETION, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200


async def test_slashes_behind_a_path(make_app: MakeApp) -> None:
    """Mean the path without them, also for what needs no key."""
    async with connect(make_app(api_keys=(ApiKey("key"),))) as client:
        assert (await client.get("/health/")).status_code == 200
        client.headers["Authorization"] = "Bearer key"
        assert (await client.get("/v1/models/")).json()["object"] == "list"
        assert (await client.get(f"/v1/models/{MODEL}/")).json()["id"] == MODEL
        assert (await client.post("/v1/chat/completions/", json=CHAT)).status_code == 200
        assert (await client.post("/v1/completions//", json=COMPLETION)).status_code == 200
        assert (await client.get("/")).json()["error"]["code"] == "unknown_url"


EXCEEDED = GenerationError(504, "deadline_exceeded", "the deadline came after 2 tokens")


@pytest.mark.parametrize(("path", "body"), BOTH.items())
async def test_the_header_is_a_deadline_for_every_choice(
    client: Http, mesh: FakeMesh, path: str, body: dict[str, object]
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
    app = app_over(mesh, text, now=lambda: 1000.0)
    async with connect(app) as client:
        await client.post(COMPLETIONS, json=COMPLETION, headers={"X-Request-Timeout": "2.5"})
    assert mesh.spec.deadline_unix_s == 1002.5


async def test_without_the_header_there_is_no_deadline(client: Http, mesh: FakeMesh) -> None:
    """OpenAI's clients send how long they wait between two events, which says nothing of the whole answer."""
    await client.post(COMPLETIONS, json=COMPLETION, headers={"X-Stainless-Read-Timeout": "600"})
    assert mesh.spec.deadline_unix_s is None


@pytest.mark.parametrize("value", ["", "0", "0.0", "-1", "soon", "nan", "inf", "1e3", "1_0", "5,5", "٣", "9" * 400])
async def test_no_number_of_seconds_is_refused(client: Http, mesh: FakeMesh, value: str) -> None:
    answer = await client.post(COMPLETIONS, json=COMPLETION, headers=[(b"x-request-timeout", value.encode())])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "x-request-timeout", "invalid_value")
    assert mesh.specs == {}


async def test_two_of_them_are_refused(client: Http) -> None:
    headers = [("X-Request-Timeout", "5"), ("X-Request-Timeout", "6")]
    assert (await client.post(COMPLETIONS, json=COMPLETION, headers=headers)).status_code == 400


async def test_an_answer_that_is_late_is_a_504_that_no_client_repeats(client: Http, mesh: FakeMesh) -> None:
    """OpenAI's clients repeat a 5xx unless they are told not to."""
    mesh.fail_at, mesh.error = 2, EXCEEDED
    answer = await client.post(COMPLETIONS, json=COMPLETION, headers={"X-Request-Timeout": "2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers


async def test_a_stream_that_is_late_ends_with_an_error_event(client: Http, mesh: FakeMesh) -> None:
    mesh.fail_at, mesh.error = 2, EXCEEDED
    answer = await client.post(COMPLETIONS, json={**COMPLETION, "stream": True})
    *_, error, done = [line for line in answer.text.split("\n") if line]
    assert '"code":"deadline_exceeded"' in error
    assert done == "data: [DONE]"
