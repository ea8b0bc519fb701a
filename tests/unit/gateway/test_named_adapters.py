"""Adapters over HTTP: requests name one as their model, and answers name it again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from pydantic import ValidationError
from starlette.applications import Starlette

from spotwise.core.requests.names import AdapterRef
from spotwise.gateway.apis.chat import prepare_chat
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.prepared_request import PreparedBody, PreparedRequest, RequestTerms
from spotwise.gateway.resume.kept_forms import form_of
from spotwise.gateway.routes.openapi import api_description
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.errors import ApiError
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, CONTEXT_LENGTH, MODEL, FakeMesh

ADAPTERS = (AdapterRef("law", "11"), AdapterRef("acme/poems", "22"))
BOTH = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]


@pytest.fixture
async def client(make_app: Callable[..., Starlette]) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(adapters=ADAPTERS))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as opened:
        yield opened


async def test_adapters_are_listed_after_their_model(client: httpx.AsyncClient) -> None:
    """An adapter's parent is the model; each has a card of its own."""
    listed = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in listed] == [
        (MODEL, MODEL, None),
        ("law", "law", MODEL),
        ("acme/poems", "acme/poems", MODEL),
    ]
    assert {card["max_model_len"] for card in listed} == {CONTEXT_LENGTH}
    for card in listed:
        assert (await client.get(f"/v1/models/{card['id']}")).json() == card


@pytest.mark.parametrize(("path", "body"), BOTH)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_chooses_an_adapter_by_name(
    client: httpx.AsyncClient, mesh: FakeMesh, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = await client.post(path, json=body | {"model": "law", "n": 2, "stream": stream})
    assert answer.status_code == 200, answer.text
    events = answer.text.split("data: ")[1:-1] if stream else [answer.text]
    assert {orjson.loads(event)["model"] for event in events} == {"law"}
    assert [spec.adapter for spec in mesh.specs.values()] == [ADAPTERS[0]] * 2


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_the_model_itself_has_none(
    client: httpx.AsyncClient, mesh: FakeMesh, path: str, body: dict[str, Any]
) -> None:
    """Its requests and answers are what they are without adapters."""
    assert (await client.post(path, json=body)).json()["model"] == MODEL
    assert (mesh.spec.adapter, mesh.spec.prefix_salt) == (None, "")


async def test_salts_differ_by_adapter_and_client(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """An adapter's KV is found by requests for it alone, and by those with the client's own salt alone."""
    for name in (MODEL, *(adapter.name for adapter in ADAPTERS)):
        for salt in ({}, {"cache_salt": "mine"}):
            await client.post("/v1/completions", json=COMPLETION | {"model": name} | salt)
    assert len({spec.prefix_salt for spec in mesh.specs.values()}) == 6


@pytest.mark.parametrize(("path", "body"), [*BOTH, ("/tokenize", {"prompt": "Hi"}), ("/detokenize", {"tokens": [1]})])
async def test_names_that_are_served(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    """Every path with a model takes the adapters' names; another gets a 404 with the names there are."""
    assert (await client.post(path, json=body | {"model": "law"})).status_code == 200
    answer = await client.post(path, json=body | {"model": "poems"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert f"'{MODEL}', 'law', 'acme/poems'" in error["message"]


def test_the_description_has_all_names() -> None:
    """Of `/openapi.json`."""
    schemas = api_description(ApiOptions(MODEL, adapters=ADAPTERS), keeps_requests=False)["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["model"] == {"enum": [MODEL, "law", "acme/poems"]}
    assert schemas["TokenizePrompt"]["properties"]["model"] == {"enum": [None, MODEL, "law", "acme/poems"]}


def test_a_kept_request_is_not_resumed_with_another_adapter(text: ChatText) -> None:
    """A gateway whose adapter of that name has other weights refuses to continue the answer."""

    def planned(digest: str, terms: RequestTerms) -> PreparedRequest:
        options = ApiOptions(MODEL, adapters=(AdapterRef("law", digest),))
        return prepare_chat(CHAT | {"model": "law"}, text, options, terms)

    first = planned("11", RequestTerms())
    form = form_of(PreparedBody(first, "chat", b"{}", ""), key_name="", claim="", is_resumable=True)
    again = planned("11", RequestTerms.of_kept(form))
    assert (again.request_id, again.created_unix_s) == (first.request_id, first.created_unix_s)
    assert again.sequences == first.sequences
    with pytest.raises(ApiError, match="files differ"):
        planned("12", RequestTerms.of_kept(form))


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        ("law", "NAME=FOLDER"),
        ("law=", "NAME=FOLDER"),
        ("=folder", "NAME=FOLDER"),
        ("a law=folder", "no adapter's name"),
        ("law=a,law=b", "named twice"),
        ("acme=a,tiny=b", "the model itself is called 'tiny'"),
    ],
)
def test_malformed_settings_are_refused(model_dir: Path, adapters: str, said: str) -> None:
    with pytest.raises(ValidationError, match="SPOTWISE_ADAPTERS") as refused:
        GatewaySettings(model_dir=model_dir, model_name="tiny", adapters=adapters)
    assert said in str(refused.value)


def test_names_and_folders_are_read(model_dir: Path) -> None:
    """Blanks around entries do not count; a folder may have an equals sign."""
    settings = GatewaySettings(model_dir=model_dir, adapters=" law=/a/b , acme/poems=/c=d,")
    assert settings.adapter_folders == (("law", Path("/a/b")), ("acme/poems", Path("/c=d")))
