"""The API does what `/openapi.json` says, whatever is sent: schemathesis makes requests from it, right ones and wrong ones."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from prometheus_client import CollectorRegistry
from schemathesis import BaseSchema, GenerationMode
from starlette.applications import Starlette
from starlette.routing import Route

from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.routes.app import create_app
from spotwise.text.chat_text import ChatText
from tests.example_budget import BUDGET_S
from tests.fakes.memory import MemoryStore
from tests.openapi_checks import CONFIG, does_what_it_says
from tests.unit.gateway.apps import open_to
from tests.unit.gateway.fake_mesh import EMBEDDINGS, MODEL, FakeMesh
from tests.unit.gateway.keeping_mesh import KeepingMesh, keeping_app, storing

#: So that `make test-properties` makes all examples.
pytestmark = pytest.mark.hypothesis

GENERATING = ["POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses", "POST /v1/messages"]
STORED = [
    "GET /v1/responses/{response_id}",
    "DELETE /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}/input_items",
]
EMBEDDING = ["POST /v1/embeddings"]
TOKENS = ["POST /v1/messages/count_tokens", "POST /tokenize", "POST /detokenize"]
READING = [
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "GET /health",
    "GET /livez",
    "GET /readyz",
    "GET /metrics",
    "GET /ping",
    "POST /ping",
    "GET /version",
]


@pytest.fixture(scope="module")
def described(text: ChatText) -> BaseSchema:
    return _described(text, ApiOptions(MODEL, embeddings=EMBEDDINGS))


def _described(text: ChatText, options: ApiOptions) -> BaseSchema:
    return schemathesis.openapi.from_asgi("/openapi.json", _app(text, options), config=CONFIG)


def _app(text: ChatText, options: ApiOptions) -> Starlette:
    metrics = GatewayMetrics(CollectorRegistry(), MODEL)
    return create_app(FakeMesh([72, 73, 2]), text, options, metrics, open_to(), stored=storing(MemoryStore()))


def test_all_paths_are_described(described: BaseSchema) -> None:
    described.validate()
    labels = [operation.ok().label for operation in described.get_all_operations()]
    assert sorted(labels) == sorted([*GENERATING, *STORED, *EMBEDDING, *TOKENS, *READING])


@pytest.mark.parametrize("keeps", [False, True])
async def test_the_description_has_the_routes_of_the_app(text: ChatText, keeps: bool) -> None:
    """All of them but its own; every GET answers a HEAD, too."""
    mesh = KeepingMesh([72, 73, 2])
    app = keeping_app(mesh, text) if keeps else _app(text, ApiOptions(MODEL))
    routes = {
        (each.path_format, method) for each in app.routes if isinstance(each, Route) for method in each.methods or ()
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    described = {(path, method.upper()) for path, item in paths.items() for method in item.keys() - {"parameters"}}
    assert ("/v1/requests/{request_id}" in paths) is keeps
    assert described | {("/openapi.json", "GET")} == {(path, method) for path, method in routes if method != "HEAD"}
    assert {path for path, method in routes if method == "HEAD"} == {path for path, method in routes if method == "GET"}


@pytest.mark.parametrize("label", [*GENERATING, *STORED, *EMBEDDING, *TOKENS, *READING])
def test_what_the_description_allows_is_answered(described: BaseSchema, label: str) -> None:
    """No 5xx, and no status, type or content that is not described."""
    does_what_it_says(described, label, GenerationMode.POSITIVE, max_examples=60)


@pytest.mark.parametrize("label", [*GENERATING, *EMBEDDING, *TOKENS])
def test_what_the_description_forbids_is_refused(described: BaseSchema, label: str) -> None:
    """With a 4xx; other paths take nothing that could be wrong."""
    does_what_it_says(described, label, GenerationMode.NEGATIVE, max_examples=100)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_a_body_above_the_limit_is_refused_as_described(text: ChatText, mode: GenerationMode) -> None:
    """With 413, whether it is right or wrong otherwise."""
    described = _described(text, ApiOptions(MODEL, max_body_bytes=40))
    for label in (*GENERATING, *EMBEDDING, *TOKENS):
        does_what_it_says(described, label, mode, max_examples=8 if BUDGET_S else 30)
