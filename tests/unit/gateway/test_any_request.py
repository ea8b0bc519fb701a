"""Requests of any content: an answer, or an error that docs/api.md lists. Nothing that a client sends is a 5xx."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.applications import Starlette

from spotwise.core.requests.record import RequestRecord
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.routes.app import create_app
from spotwise.gateway.schema.chat import ChatRequest
from spotwise.gateway.schema.completions import CompletionRequest
from spotwise.gateway.schema.embeddings import EmbeddingRequest
from spotwise.gateway.schema.messages import MessagesPrompt, MessagesRequest
from spotwise.gateway.schema.responses import ResponsesRequest
from spotwise.text.chat_text import ChatText
from spotwise.wire.codec_records import decode_record, encode_record
from tests.unit.gateway.apps import Http, open_to
from tests.unit.gateway.fake_mesh import (
    CHAT,
    CHATS,
    COMPLETION,
    COMPLETIONS,
    EMBEDDING,
    EMBEDDINGS,
    MODEL,
    RESPONSE,
    FakeMesh,
)

ROOT = Path(__file__).parents[3]
ENDPOINTS: dict[str, tuple[dict[str, Any], type[BaseModel]]] = {
    CHATS: (CHAT, ChatRequest),
    COMPLETIONS: (COMPLETION, CompletionRequest),
    "/v1/responses": (RESPONSE, ResponsesRequest),
    "/v1/embeddings": (EMBEDDING, EmbeddingRequest),
    "/v1/messages": (CHAT | {"max_tokens": 8}, MessagesRequest),
    "/v1/messages/count_tokens": (CHAT, MessagesPrompt),
}
#: Names that only the table of parameters knows.
OTHERS = (
    "functions",
    "response_format",
    "guided_json",
    "best_of",
    "mcp_servers",
    "suffix",
    "metadata",
    "prompt",
    "nonsense",
)
NUMBERS = st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, -1, 2, 16, 2**31, 2**63]) | st.floats(allow_nan=False)
SCALARS = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=8)
    | st.sampled_from(["user", "text", MODEL, "auto", "function", "tool_use", "tool_result", "enabled", "\0"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "1", "include_usage", "function", "name", "input", "format", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "x-request-timeout": st.sampled_from(["5", "0", "x", "-3", "1e9"]),
        "x-request-id": st.sampled_from(["mine", "a b", "x" * 300]),
        "content-type": st.sampled_from(["application/json", "text/plain", "application/json; charset=x", ""]),
        "content-encoding": st.sampled_from(["identity", "gzip"]),
        "authorization": st.sampled_from(["Bearer x", "Basic"]),
    },
)


def documented() -> dict[int, set[str]]:
    """Codes by status, as the page has them."""
    rows = re.findall(r"^\| (\d{3}) \| (`.+?`) \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    codes: dict[int, set[str]] = {}
    for status, names in rows:
        codes.setdefault(int(status), set()).update(re.findall(r"`(\w+)`", names))
    return codes


DOCUMENTED = documented()


def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    """A request's parameters with any values, over a valid request or over none."""
    valid, schema = ENDPOINTS[path]
    names = st.sampled_from([*sorted(schema.model_fields), *OTHERS])
    given_ones = st.dictionaries(names, VALUES, max_size=5)
    return st.builds(lambda base, own: {**base, **own}, st.sampled_from([valid, valid, {}]), given_ones)


@pytest.fixture(scope="module")
def app(text: ChatText) -> Starlette:
    metrics = GatewayMetrics(CollectorRegistry(), MODEL)
    return create_app(FakeMesh([72, 73, 2]), text, ApiOptions(MODEL, embeddings=EMBEDDINGS), metrics, open_to())


async def check(app: Starlette, method: str, path: str, content: bytes, headers: dict[str, str]) -> None:
    transport = httpx.ASGITransport(app)  # which raises what the app does not answer
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.request(method, path, content=content, headers=headers)
    event(f"{answer.status_code}")
    assert answer.headers["x-request-id"]
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert answer.status_code < 500, error
        assert error["code"] in DOCUMENTED[answer.status_code], error
        assert error["message"]


QUICK = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.mark.parametrize("path", ENDPOINTS)
def test_any_parameters_are_answered_or_refused(app: Starlette, path: str) -> None:
    """With names that the API has and others, and with headers that are wrong."""

    @QUICK
    @given(bodies(path), HEADERS)
    def answered(body: dict[str, Any], headers: dict[str, str]) -> None:
        try:
            content = orjson.dumps(body)
        except (TypeError, ValueError):
            content = repr(body).encode()  # an integer beyond 64 bits: no JSON of ours
        asyncio.run(check(app, "POST", path, content, headers))

    answered()


def test_any_bytes_on_any_path_are_refused(app: Starlette) -> None:
    """Bodies that are no JSON, methods and paths that are none of the API's."""

    paths = [*ENDPOINTS, "/v1/models", "/v1/models/x/y", "/v1", "/nothing", "/v1/completions//"]

    @QUICK
    @given(st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEADX"]), st.sampled_from(paths), st.binary(max_size=60))
    def answered(method: str, path: str, content: bytes) -> None:
        asyncio.run(check(app, method, path, content, {}))

    answered()


INTEGERS = ("max_tokens", "n", "seed", "top_k", "min_tokens", "priority", "logprobs", "best_of")
FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
#: As JSON, because a client's own library may not be what wrote it.
EDGES = (
    *("0", "-0", "1", "-1", "2147483647", "2147483648", "4294967295", "4294967296", "8589934592", "9007199254740993"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615"),
    *("18446744073709551616", "1" + "0" * 400, "0.0", "-0.0", "1.0", "1e-5", "1e-38", "1e-46", "5e-324", "1e-400"),
    *("1e308", "-1e308", "true", "false", '"1"', "[1]", "{}"),
)


def record(mesh: FakeMesh) -> RequestRecord:
    """Return the record that a gateway writes of the only sequence."""
    choice_id, spec = next(iter(mesh.specs.items()))
    return RequestRecord(choice_id, 1, "g", 1, "m", spec.prompt_token_ids, (), spec.sampling, spec.stop, 0.0)


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge[:24])
@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, "logit_bias", "stop_token_ids", "prompt"])
async def test_a_number_at_the_edge_is_refused_or_carried(client: Http, mesh: FakeMesh, name: str, edge: str) -> None:
    """A 400 that names the parameter, or a record that comes through the wire as it was."""
    value = {"logit_bias": f'{{"5": {edge}}}', "stop_token_ids": f"[{edge}]", "prompt": f"[{edge}]"}.get(name, edge)
    fields = {"model": f'"{COMPLETION["model"]}"', "prompt": '"Hi"', "echo": "true"} | {name: value}
    body = "{" + ", ".join(f'"{key}": {member}' for key, member in fields.items()) + "}"
    response = await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["code"] == "invalid_json" or error["param"].split(".")[0] in (name, "prompt"), error
        return
    assert response.status_code == 200, response.text
    written = record(mesh)
    assert decode_record(encode_record(written)) == written
