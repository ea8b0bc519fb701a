"""The names of models: adapters, and further names of either. Requests give them, answers repeat them, lists show them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from pydantic import ValidationError

from spotwise.core.requests.names import AdapterRef
from spotwise.gateway.apis.chat import prepare_chat
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.prepared_request import PreparedBody, PreparedRequest, RequestTerms
from spotwise.gateway.resume.kept_forms import form_of
from spotwise.gateway.routes.openapi import api_description
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.errors import ApiError
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Http, Json, MakeApp, connect
from tests.unit.gateway.fake_mesh import (
    BOTH,
    CHAT,
    COMPLETION,
    COMPLETIONS,
    CONTEXT_LENGTH,
    EMBEDDINGS,
    MODEL,
    PATHS,
    FakeMesh,
)

LAW = AdapterRef("law", "11")
ADAPTERS = (LAW, AdapterRef("acme/poems", "22"))
ALIASES = {"gpt-4o": MODEL, "claude-law": "law"}
TOKENS: dict[str, Json] = {"/tokenize": {"prompt": "Hi"}, "/detokenize": {"tokens": [1]}}


@pytest.fixture
async def client(make_app: MakeApp) -> AsyncIterator[Http]:
    async with connect(make_app(adapters=ADAPTERS, aliases=ALIASES, embeddings=EMBEDDINGS)) as opened:
        yield opened


async def test_each_name_has_a_card(client: Http) -> None:
    """An adapter's parent is the model; aliases come last, as vLLM has several names of a model."""
    listed = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in listed] == [
        (MODEL, MODEL, None),
        ("law", "law", MODEL),
        ("acme/poems", "acme/poems", MODEL),
        ("gpt-4o", MODEL, None),
        ("claude-law", "law", MODEL),
    ]
    assert {card["max_model_len"] for card in listed} == {CONTEXT_LENGTH}
    for card in listed:
        assert (await client.get(f"/v1/models/{card['id']}")).json() == card
    unknown = await client.get("/v1/models/gpt-5")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(("path", "body"), BOTH.items())
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["law", "claude-law"])
async def test_a_request_chooses_an_adapter_by_name(
    client: Http, mesh: FakeMesh, path: str, body: Json, stream: bool, name: str
) -> None:
    answer = await client.post(path, json=body | {"model": name, "n": 2, "stream": stream})
    assert answer.status_code == 200, answer.text
    events = answer.text.split("data: ")[1:-1] if stream else [answer.text]
    assert {orjson.loads(event)["model"] for event in events} == {name}
    assert [spec.adapter for spec in mesh.specs.values()] == [LAW] * 2


@pytest.mark.parametrize(("path", "body"), BOTH.items())
async def test_the_model_itself_has_none(client: Http, mesh: FakeMesh, path: str, body: Json) -> None:
    """Its requests and answers are what they are without adapters."""
    assert (await client.post(path, json=body)).json()["model"] == MODEL
    assert (mesh.spec.adapter, mesh.spec.prefix_salt) == (None, "")


async def test_salts_differ_by_adapter_and_client(client: Http, mesh: FakeMesh) -> None:
    """An adapter's KV is found by requests for it alone, and by those with the client's own salt alone."""
    for name in (MODEL, *(adapter.name for adapter in ADAPTERS)):
        for salt in ({}, {"cache_salt": "mine"}):
            await client.post(COMPLETIONS, json=COMPLETION | {"model": name} | salt)
    assert len({spec.prefix_salt for spec in mesh.specs.values()}) == 6


@pytest.mark.parametrize(("path", "body"), [*PATHS.items(), *TOKENS.items()])
async def test_every_path_takes_the_names_and_no_others(client: Http, path: str, body: Json) -> None:
    """An answer has the name that its request gave; an unknown one gets a 404 with the names there are."""
    for name in (MODEL, "gpt-4o", "law"):
        answer = await client.post(path, json=body | {"model": name})
        if path.endswith("embeddings") and name == "law":
            continue  # those are the model's alone
        assert answer.status_code == 200, answer.text
        assert path in TOKENS or answer.json()["model"] == name
    answer = await client.post(path, json=body | {"model": "poems"})
    error = answer.json()["error"]
    assert (answer.status_code, error.get("code"), error.get("param")) == (404, "model_not_found", "model")
    assert f"'{MODEL}', 'law', 'acme/poems', 'gpt-4o', 'claude-law'" in error["message"]


async def test_any_name_stands_for_the_model_where_that_is_said(make_app: MakeApp, mesh: FakeMesh) -> None:
    """Known names stay what they are; the list has no `*`, but asking for a name finds it."""
    async with connect(make_app(aliases={"*": MODEL, "claude-law": "law"}, adapters=(LAW,))) as client:
        for name, adapter in (("whatever/it is", None), ("law", LAW), ("claude-law", LAW), ("*", None)):
            mesh.specs.clear()
            answered = await client.post(COMPLETIONS, json=COMPLETION | {"model": name})
            assert answered.json()["model"] == name
            assert mesh.spec.adapter == adapter
        listed = (await client.get("/v1/models")).json()["data"]
        found = (await client.get("/v1/models/claude-3")).json()
    assert [card["id"] for card in listed] == [MODEL, "law", "claude-law"]
    assert (found["id"], found["root"]) == ("claude-3", MODEL)


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
    ("setting", "value", "said"),
    [
        ("adapters", "law", "NAME=FOLDER"),
        ("adapters", "acme=a,tiny=b", "the model itself is called 'tiny'"),
        ("model_aliases", "gpt-4o", "alias"),
    ],
)
def test_malformed_settings_are_refused(model_dir: Path, setting: str, value: str, said: str) -> None:
    """The forms themselves are shown by the tests of core's names."""
    with pytest.raises(ValidationError, match=f"SPOTWISE_{setting.upper()}|alias") as refused:
        GatewaySettings(model_dir=model_dir, model_name="tiny", **{setting: value})  # type: ignore[arg-type]
    assert said in str(refused.value)
